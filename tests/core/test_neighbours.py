"""What does not divide is refused with the valid values next to it."""

import pytest

from headwater.composition import compose
from headwater.errors import InputError
from headwater.geometry import Draw, neighbours, share_of
from headwater.types import Prompt


@pytest.mark.parametrize("factor", [2, 3, 7])
def test_neighbours_are_the_nearest_multiples_and_never_nothing(factor):
    for value in (v for v in range(1, 40) if v % factor):
        valid = [m for m in range(1, 60) if m % factor == 0]
        below = [m for m in valid if m < value][-1:]
        above = [m for m in valid if m > value][:1]
        assert neighbours(value, factor) == " or ".join(map(str, below + above))


def test_samples_that_cannot_be_dealt_name_the_counts_that_can():
    draws = [Draw(Prompt("p"), 0, seed, part=0) for seed in range(7)]
    with pytest.raises(ValueError, match=r"7 samples .* to 3 processes; .* of it, 6 or 9$"):
        share_of(draws, 0, 3)


def test_draws_that_do_not_divide_the_prompts_name_those_that_do(run_file):
    path = run_file({"per_step = 4": "per_step = 12", "[estimator]": "[estimator]\ndraws = 5"})
    with pytest.raises(InputError, match="valid: 1, 2, 3, 4, 6, 12"):
        compose(path)
