import pytest

from families.family_cases import FAMILIES
from headwater.testing import pipelines as tiny_pipelines


@pytest.fixture(scope="session")
def folders(tmp_path_factory):
    """name: folder of its tiny pipeline, made once."""
    made = {}

    def get(name):
        if name not in made:
            folder = tmp_path_factory.mktemp(name) / "model"
            made[name] = tiny_pipelines.saved(FAMILIES[name].make, folder)
        return made[name]

    return get
