"""A third party's distribution, made in a temporary folder and found through real metadata."""

import textwrap
from pathlib import Path


def write_package(
    folder: Path,
    name: str,
    entry_points: dict[str, str],
    source: str,
    version: str = "1.0",
) -> Path:
    """Write module `name` and its metadata into `folder`, which goes on sys.path.

    entry_points: `kind name` (for instance "estimator mine"): attribute of the module.
    """
    module = name.replace("-", "_")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{module}.py").write_text(textwrap.dedent(source))
    info = folder / f"{module}-{version}.dist-info"
    info.mkdir(exist_ok=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    lines = []
    for key, attribute in entry_points.items():
        kind, short = key.split()
        lines.append(f"[headwater.{kind}]\n{short} = {module}:{attribute}\n")
    (info / "entry_points.txt").write_text("\n".join(lines))
    return folder
