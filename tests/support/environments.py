"""Virtual environments that borrow the third-party packages of the one that runs the tests.

Nothing is downloaded, and torch is on the disk once.
"""

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

OUTER = Path(sysconfig.get_path("purelib"))
OURS = ("headwater", "opponent_colours", "_editable_impl_", "__editable__", "__pycache__")


class Environment:
    """A virtual environment in a folder of a test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.python = folder / "bin" / "python"
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        self.site = folder / "lib" / version / "site-packages"

    def install(self, *packages) -> None:
        """Install folders or wheels, and nothing that they ask for."""
        flags = ["--quiet", "--disable-pip-version-check", "--no-deps", "--no-build-isolation"]
        self.run("-m", "pip", "install", *flags, "--no-index", *packages)

    def run(self, *arguments, cwd=None, expect=0):
        """Run this environment's Python away from the repository; returns what it printed.

        It is as good as a fresh shell: no variable of the calling Python reaches it.
        expect: its exit status, or None for any.
        """
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "VIRTUAL_ENV"))}
        kept.update({"OMP_NUM_THREADS": "1", "PATH": f"{self.python.parent}:{kept['PATH']}"})
        command = [str(self.python), *map(str, arguments)]
        done = subprocess.run(
            command, cwd=cwd or self.folder, env=kept, capture_output=True, text=True, check=False
        )
        said = done.stdout + done.stderr
        assert expect in (None, done.returncode), f"{' '.join(command)}\n{said[-6000:]}"
        return said

    def headwater(self, *arguments, cwd=None, expect=0):
        """Run the command line."""
        return self.run("-m", "headwater", *arguments, cwd=cwd, expect=expect)


def beside_the_workspace(folder: Path) -> Environment:
    """An environment that sees everything installed here, the workspace's packages included."""
    made = _empty(folder)
    (made.site / "outer.pth").write_text(f"import site; site.addsitedir({str(OUTER)!r})\n")
    return made


def without_the_workspace(folder: Path) -> Environment:
    """An environment that sees third-party packages alone: no headwater of any sort."""
    made = _empty(folder)
    borrowed = folder / "borrowed"
    borrowed.mkdir()
    for path in OUTER.iterdir():
        if not path.name.startswith(OURS) and path.suffix != ".pth":
            (borrowed / path.name).symlink_to(path)
    (made.site / "borrowed.pth").write_text(f"{borrowed}\n")
    return made


def _empty(folder: Path) -> Environment:
    """Without pip of its own: that of the outer environment installs into this one."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    return Environment(folder)
