import os
import sys
import zipfile
from pathlib import Path

import hatchling.build
import pytest


@pytest.fixture
def offered(tmp_path, monkeypatch):
    """Put the wheel of a package on sys.path: offered(folder). Modules are forgotten afterwards."""
    before = set(sys.modules)

    def install(package: Path) -> None:
        site = tmp_path / "site" / package.name
        site.mkdir(parents=True)
        here = Path.cwd()
        try:
            os.chdir(package)
            wheel = hatchling.build.build_wheel(str(site))
        finally:
            os.chdir(here)
        with zipfile.ZipFile(site / wheel) as archive:
            archive.extractall(site)
        monkeypatch.syspath_prepend(str(site))

    yield install
    for module in set(sys.modules) - before:
        if str(tmp_path) in str(getattr(sys.modules[module], "__file__", "")):
            del sys.modules[module]
