"""Tables that become attrs classes: what an optional field takes."""

import attrs
import pytest

from headwater.settings import structure


@attrs.frozen(eq=False)
class Optional:
    flag: bool | None = None
    number: float | None = None


def test_an_optional_field_takes_its_type_and_nothing_else() -> None:
    made, problems = structure(Optional, {"flag": False, "number": 2}, "[t]")
    assert not problems
    assert made.flag is False and made.number == 2.0


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({"flag": "false"}, "[t] flag: expected true or false, got 'false'"),
        ({"flag": 0}, "[t] flag: expected true or false, got 0"),
        ({"number": "1"}, "[t] number: expected a number, got '1'"),
    ],
)
def test_a_wrong_value_of_an_optional_field_is_refused_and_not_unset(table, said) -> None:
    assert structure(Optional, table, "[t]") == (None, [said])
