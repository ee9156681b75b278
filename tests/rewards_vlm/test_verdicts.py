"""The number in a judge's words, and when there is none."""

import time

import pytest

from headwater_rewards_vlm.verdicts import labelled_score, said


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("All is well.\nFinal Score: 4", 4.0),
        ("Final Score:4.5", 4.5),
        ("**Final Score:** 3", 3.0),
        ("**Final Score**: **2.25**", 2.25),
        ("final score: 5/5.", 5.0),
        ("Final Score: [ 4.5 ]", 4.5),
        ("Final Score:\n1", 1.0),
        ("I would say Final Score: X, so\nFinal Score: 4\nFinal Score: 4.0", 4.0),
    ],
)
def test_a_score_line_is_read(text, value):
    assert labelled_score(text, "Final Score", 1, 5) == value


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("A fine image, four points.", "no 'Final Score:'"),
        ("Final Score: X", "no 'Final Score:'"),
        ("Final Score: four", "no 'Final Score:'"),
        ("Final Score: 10", "is 10, expected 1 to 5"),
        ("Final Score: 0", "is 0, expected"),
        ("Final Score: -3", "is -3, expected"),
        ("Final Score: 4/10", "not out of 5"),
        ("Final Score: 4,5", "no 'Final Score:'"),
        ("Final Score: 2\nFinal Score: 4", "2 different numbers"),
        ("Semifinal Score: 3", "no 'Final Score:'"),
        ("Final Score: nan", "no 'Final Score:'"),
    ],
)
def test_what_is_no_score_gives_none(text, why):
    with pytest.raises(ValueError, match=why):
        labelled_score(text, "Final Score", 1, 5)


def test_a_hostile_answer_is_read_in_little_time():
    began = time.monotonic()
    for filling in (" " * 10**5, "*" * 10**5, "9" * 10**5, "Final Score: " * 10**4, "\n-" * 10**5):
        with pytest.raises(ValueError):
            labelled_score(f"Final Score:{filling}", "Final Score", 1, 5)
    assert time.monotonic() - began < 2


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ({}, "expected an object with 'choices'"),
        ([], "no object"),
        ({"choices": []}, "expected one choice, got 0"),
        ({"choices": [{"message": {"content": "Score: 1"}}] * 2}, "expected one choice, got 2"),
        ({"choices": [{"message": {"content": None}}]}, "of the wrong type"),
        ({"choices": [{}]}, "expected an object with 'message'"),
        ({"choices": [{"message": {"content": " "}, "finish_reason": "length"}]}, "'length'"),
    ],
)
def test_an_answer_that_is_no_completion_says_why(answer, why):
    with pytest.raises(ValueError, match=why):
        said(answer)
