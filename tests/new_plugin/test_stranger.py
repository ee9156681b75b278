"""Somebody else's package comes, works, and goes, and no other run is any different for it."""

import pytest
import torch
from new_plugin.stranger import FILES
from safetensors.torch import load_file

from support.environments import beside_the_workspace

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    made = beside_the_workspace(tmp_path_factory.mktemp("stranger") / "venv")
    for path, text in FILES.items():
        file = made.folder / "acme" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text.lstrip("\n"), encoding="utf-8")
    return made


def weights(folder):
    (path,) = folder.glob("checkpoints/*/weights.safetensors")
    return load_file(path)


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[k], other[k]) for k in one)


def test_a_package_comes_works_and_goes(environment):
    home = environment.folder / "acme"
    names = ("late-pairs", "said-colour", "mosaic")
    listed = environment.headwater("plugins")
    assert not any(name in listed for name in names)
    environment.headwater("run", "other.toml", "--out", "before", cwd=home)

    environment.install(home)
    listed = environment.headwater("plugins")
    assert all(name in listed for name in names) and "acme-align" in listed
    environment.headwater("check", "acme.toml", cwd=home)
    environment.headwater("run", "acme.toml", "--out", "acme", cwd=home)
    assert (home / "acme" / "summary.json").is_file()
    environment.headwater("run", "other.toml", "--out", "with", cwd=home)

    environment.run("-m", "pip", "uninstall", "--yes", "--quiet", "acme-align")
    listed = environment.headwater("plugins")
    assert not any(name in listed for name in names)
    said = environment.headwater("check", "acme.toml", cwd=home, expect=2)
    assert all(name in said for name in names) and "Traceback" not in said
    environment.headwater("run", "other.toml", "--out", "after", cwd=home)

    before = weights(home / "before")
    assert before and not same(before, {k: v + 1 for k, v in before.items()})
    assert same(before, weights(home / "with"))
    assert same(before, weights(home / "after"))


def test_it_passes_the_contracts(environment):
    """As its authors test it, from its folder."""
    home = environment.folder / "acme"
    environment.install(home)
    said = environment.run("-m", "pytest", "-q", "-p", "no:cacheprovider", "test_acme.py", cwd=home)
    assert " passed" in said
    assert "failed" not in said and "skipped" not in said
