import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "docs"))

from headwater.testing.fixtures import headwater_toys, headwater_toys_folder  # noqa: E402, F401
