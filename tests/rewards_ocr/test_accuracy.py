"""Which text a prompt asks for, and how much of it was read."""

import random
from functools import cache

import pytest

from headwater_rewards_ocr.accuracy import accuracy, accuracy_of_parts, comparable, edit_distance
from headwater_rewards_ocr.quotes import quoted_parts


@pytest.mark.parametrize(
    ("prompt", "parts"),
    [
        ('a sign that says "OPEN"', ("OPEN",)),
        ("a sign that says “Open late”, at night", ("Open late",)),
        ("a German sign, „Ausgang“", ("Ausgang",)),
        ("a French shop, « Boulangerie »", ("Boulangerie",)),
        ("写着「你好」的牌子", ("你好",)),
        ("写着“你好”的牌子", ("你好",)),
        ('a poster "JAZZ" above "Friday at 8"', ("JAZZ", "Friday at 8")),
        ("a sign that says 'OPEN'", ("OPEN",)),
        ("a sign that says ‘Don’t walk’ in red", ("Don’t walk",)),
        ("a mug, 'World's best dad', on Tom's desk", ("World's best dad",)),
        ("the dogs' bowl in Anna's kitchen", ()),
        ("a rock 'n' roll poster with the word \"LOUD\"", ("LOUD",)),
        ('a 24" screen beside a 12" plate', ()),
        ('a 24" screen that shows "HELLO"', ("HELLO",)),
        ('an empty sign "" and a blank one "  "', ()),
        ('an unclosed "sign', ()),
        ("a green square", ()),
        ("", ()),
    ],
)
def test_quoted_parts_are_found(prompt, parts):
    assert quoted_parts(prompt) == parts


def recursive(left, right):
    """The definition of the edit distance, by its recursion."""

    @cache
    def distance(i, j):
        if not i or not j:
            return i + j
        return min(
            distance(i - 1, j) + 1,
            distance(i, j - 1) + 1,
            distance(i - 1, j - 1) + (left[i - 1] != right[j - 1]),
        )

    return distance(len(left), len(right))


def test_the_edit_distance_is_that_of_its_definition():
    draw = random.Random(0)
    for _ in range(300):
        left, right = ("".join(draw.choices("abc", k=draw.randrange(9))) for _ in range(2))
        assert edit_distance(left, right) == recursive(left, right)
    assert edit_distance("kitten", "sitting") == 3


@pytest.mark.parametrize(
    ("read", "target", "value"),
    [
        ("open", "open", 1.0),
        ("opon", "open", 0.75),
        ("ope", "open", 0.75),
        ("", "open", 0.0),
        ("a long text about something else", "open", 0.0),
        ("weareopentoday", "open", 1.0),
    ],
)
def test_accuracy_is_one_minus_the_distance_over_the_length(read, target, value):
    assert accuracy(read, target) == value


def test_surplus_text_can_count_as_errors():
    assert accuracy("openx", "open", surplus=False) == 0.75
    assert accuracy("open" + "x" * 40, "open", surplus=False) == 0.0


def test_parts_may_stand_in_any_order():
    assert accuracy_of_parts("fridayjazz", ["jazz", "friday"]) == 1.0
    assert accuracy_of_parts("fridayjaz", ["jazz", "friday"]) == 0.9
    five = ["a1", "b2", "c3", "d4", "e5"]
    assert accuracy_of_parts("a1b2c3d4e5", five) == 1.0
    assert accuracy_of_parts("e5d4c3b2a1", five) < 1.0


def test_texts_are_compared_without_space_case_and_width():
    assert comparable(" Open \n LATE！") == "openlate!"
    assert comparable("DON’T") == comparable("don't")
    assert comparable("Open", keep_case=True) == "Open"
