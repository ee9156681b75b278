"""The rule of reward hacking, against streaks written out by hand."""

import json
import math
import statistics

import pytest

from headwater.hacking import Watch, follow, problems
from headwater.tables import Evaluation, PluginTable

FLAT = [0.5, 0.5, 0.5, 0.5]


def told(totals, scores, patience):
    """Evaluations, from 0, at which the rule tells of a streak."""
    streak, out = None, []
    for i, (total, row) in enumerate(zip(totals, scores, strict=True)):
        streak, fall = follow(streak, total, row, patience)
        if fall is not None:
            out.append(i)
    return out


def falling(*means):
    """Scores of four prompts that all fall alike: the paired error is 0."""
    return [[mean + offset for offset in (0.0, 0.3, 0.1, -0.2)] for mean in means]


def test_a_streak_is_told_of_when_it_is_as_long_as_the_patience_and_then_no_more():
    scores = falling(0.9, 0.8, 0.7, 0.6, 0.5)
    for patience in (1, 2, 3, 4):
        assert told([1, 2, 3, 4, 5], scores, patience) == [patience]
    assert told([1, 2, 3, 4, 5], scores, 5) == []


def test_a_second_streak_is_told_of_again():
    scores = falling(0.9, 0.8, 0.7, 0.8, 0.7, 0.6)
    assert told([1, 2, 3, 4, 5, 6], scores, 2) == [2, 5]


@pytest.mark.parametrize(
    ("totals", "means"),
    [
        ([1, 2, 3], (0.9, 0.8, 0.8)),  # the held-out reward stood still
        ([1, 2, 3], (0.9, 0.8, 0.85)),  # it rose
        ([1, 2, 2], (0.9, 0.8, 0.7)),  # the total stood still
        ([3, 2, 1], (0.9, 0.8, 0.7)),  # both fell: the run is getting worse, nothing is hacked
        ([1, 2, math.nan], (0.9, 0.8, 0.7)),
        ([1, 2, 3], (0.9, math.nan, 0.7)),
    ],
)
def test_what_is_no_streak_of_two(totals, means):
    assert told(totals, falling(*means), 2) == []


def test_the_fall_must_be_larger_than_its_paired_error():
    start = [0.5, 0.6, 0.7, 0.8]
    for changes in ([-0.4, 0.3, -0.3, 0.2], [-0.4, 0.1, -0.3, 0.2]):
        after = [s + c for s, c in zip(start, changes, strict=True)]
        fall = -statistics.mean(changes)
        error = statistics.stdev(changes) / math.sqrt(4)
        expected = [1] if fall > error else []
        assert told([1, 2], [start, after], 1) == expected
    # once the fall is large enough, a streak that is long already is told of
    rows = [start, [s - d for s, d in zip(start, (0.4, -0.3, 0.3, -0.2), strict=True)]]
    rows.append([s - 0.3 for s in start])
    assert told([1, 2, 3], rows, 1) == [2]


def test_the_fall_is_taken_from_the_evaluation_before_the_streak():
    rows = falling(0.2, 0.9, 0.8, 0.7)
    _, fall = (streak := None), None
    for total, row in zip([1, 2, 3, 4], rows, strict=True):
        streak, fall = follow(streak, total, row, 2)
    assert fall.mean == pytest.approx(0.2, abs=1e-12)
    assert streak.start == pytest.approx(tuple(rows[1]))


def test_a_watch_goes_on_from_its_state_as_if_it_had_never_stopped():
    totals, scores = [1, 2, 3, 4, 5], falling(0.9, 0.8, 0.7, 0.6, 0.5)
    for cut in range(1, 5):
        watch = Watch("judge", 3, stop=False)
        for i in range(cut):
            watch.after(i, [totals[i]], {"judge": scores[i]})
        state = json.loads(json.dumps(watch.state()))
        watch = Watch("judge", 3, stop=False)
        watch.restore(state, comparable=True)
        for i in range(cut, 5):
            watch.after(i, [totals[i]], {"judge": scores[i]})
        assert len(watch.warnings) == 1
        assert watch.warnings[0].startswith("step 3: in 3 evaluations in a row")


def test_evaluations_that_cannot_be_compared_begin_anew():
    watch = Watch("judge", 1, stop=False)
    watch.after(0, [1.0], {"judge": FLAT})
    state = watch.state()
    watch.restore(state, comparable=False)
    assert watch.after(1, [2.0], {"judge": [0.1] * 3}) == {
        "hacking/streak": 0.0,
        "hacking/warning": 0.0,
    }


def test_without_patience_nothing_is_looked_at():
    assert Watch("", 0, stop=False).after(0, [1.0], {}) == {}


def test_keys_that_would_have_no_effect_are_refused():
    held_out = {"judge": PluginTable("x")}
    assert "needs patience" in problems(Evaluation(on_hacking="stop"))[0]
    assert (
        "evaluation prompts"
        in problems(Evaluation(patience=1, keep_best="judge", rewards=held_out))[0]
    )
    (problem,) = problems(Evaluation(patience=1, prompts="p", rewards=held_out))
    assert "got '', held out: judge" in problem
    (problem,) = problems(Evaluation(patience=1, prompts="p", keep_best="trained"))
    assert "[evaluation.reward.KEY]" in problem
    fine = Evaluation(patience=1, prompts="p", keep_best="judge", rewards=held_out)
    assert problems(fine) == []
