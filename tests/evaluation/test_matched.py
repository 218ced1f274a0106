"""Matched score on constructed curves: which point is chosen, what the differences are, what the verdict says."""

import numpy as np
import pytest

from hf_selfjudge.evaluation.figure import frontier
from hf_selfjudge.evaluation.matched import choose, difference, keeps_score, match, meaning, verdict
from hf_selfjudge.evaluation.outcomes import Outcome
from hf_selfjudge.evaluation.tables import Table


def row(length, change, low=None, high=None, score=0.9):
    low, high = change if low is None else low, change if high is None else high
    return {
        "score": {"estimate": score + change / 100},
        "score_difference": {"estimate": change / 100, "low": low / 100, "high": high / 100},
        "accepted_per_cycle": {"estimate": length},
    }


@pytest.mark.parametrize(
    ("change", "low", "high", "expected"),
    [
        (0.0, -0.5, 0.5, {"within", "indistinguishable", "non-inferior"}),
        (-0.9, -1.5, -0.1, {"within"}),
        (-1.0, -2.0, 0.0, {"within", "indistinguishable"}),
        (-3.0, -7.0, 1.0, {"indistinguishable"}),
        (-0.5, -0.9, -0.1, {"within", "non-inferior"}),
        (-3.0, -4.0, -2.0, set()),
    ],
)
def test_the_three_criteria(change, low, high, expected):
    found = row(3.0, change, low, high)
    assert {
        name for name in ("within", "indistinguishable", "non-inferior") if keeps_score(found, name, 1.0)
    } == expected


def test_the_longest_point_that_keeps_the_score_is_chosen():
    rows = [row(2.0, 0), row(2.5, -0.5), row(3.0, -1.0), row(3.5, -1.1), row(2.9, +2.0), row(4.0, -8)]
    assert choose(rows, [1, 2, 3], "within", 1.0) == 2
    assert choose(rows, [1, 2, 3], "within", 1.2) == 3
    assert choose(rows, [1, 2, 3], "within", 0.6) == 1
    assert choose(rows, [3, 5], "within", 1.0) == 0  # exact decoding, where any method can go
    assert choose(rows, [4, 2], "within", 1.0) == 2  # the longest, not the best
    assert choose([row(2, 0), row(3, -1), row(3, -0.2)], [1, 2], "within", 1.0) == 2  # of equals the better


def outcome(scores, accepted, cycles=1, checksum=0):
    count = len(scores)
    accepted = [accepted] * count if isinstance(accepted, (int, float)) else accepted
    return Outcome(
        scores=list(scores),
        cycles=[cycles] * count,
        new_tokens=[9] * count,
        drafted=[5 * cycles] * count,
        accepted=accepted,
        judged_in=[1] * count,
        checksums=[checksum] * count,
        seconds=2.0,
        phases={"draft": 0.5, "target": 0.5, "judge": 0.25, "verify": 0.25, "total": 1.9},
    )


RIGHT = [1.0] * 50
ONE_WRONG = [0.0] + [1.0] * 49
NOISY = [2 + item % 3 for item in range(50)]


def curves(*points):
    """A table of one task from (scores, accepted) of each rule."""
    return Table.build({"t": [outcome(*point) for point in points]}, 400, 0)


def pooled(table):
    return [table.rows(rule)["pooled"] for rule in range(len(table.outcomes[0]))]


def test_rows_hold_every_figure():
    exact, other = outcome([1.0, 1.0, 0.0, 1.0], 4, 2), outcome([1.0, 0.0, 1.0, 0.0], 6, 2, checksum=1)
    table = Table.build({"t": [exact, other], "open": [outcome([None] * 4, 2)] * 2}, 200, 0)
    found = table.rows(1)
    scored, unscored, pool = found["tasks"]["t"], found["tasks"]["open"], found["pooled"]
    assert scored["score"]["estimate"] == 0.5
    assert scored["score_difference"]["estimate"] == -0.25
    assert scored["accepted_per_cycle"] == {"estimate": 3.0, "low": 3.0, "high": 3.0}
    assert scored["length_ratio"]["estimate"] == 1.5
    assert (scored["lost"], scored["gained"], scored["same_answers"], scored["items"]) == (2, 1, 0.0, 4)
    assert scored["tokens_per_target_forward"] == 4.5
    assert scored["acceptance_rate"] == 0.6
    assert unscored["score"] is None
    assert unscored["score_difference"] is None
    assert unscored["accepted_per_cycle"]["estimate"] == 2.0
    assert table.scored == ["t"]
    assert scored.pop("figures") == {}
    assert {key: pool[key] for key in scored} == scored  # only the task with a score is pooled
    assert pool["worst_task_difference"] == -0.25
    phases = table.phases(1)
    assert phases["seconds"] == 4.0
    assert phases["tokens_per_second"] == 18.0
    assert phases["shares"] == {"draft": 0.25, "target": 0.25, "judge": 0.125, "verify": 0.125, "other": 0.25}


def test_the_worst_task_is_told():
    better, worse = [outcome([0.0] * 4, 1), outcome([1.0] * 4, 1)], [outcome([1.0] * 4, 1), outcome([0.0] * 4, 1)]
    found = Table.build({"a": better, "b": worse}, 50, 0).rows(1)["pooled"]
    assert found["score_difference"]["estimate"] == 0.0
    assert found["worst_task_difference"] == -1.0


def test_a_difference_is_paired():
    longer = [value + 0.25 for value in NOISY]
    gap = difference(curves((RIGHT, NOISY), (ONE_WRONG, longer)), 1, 0)
    assert gap["accepted_per_cycle"] == pytest.approx({"estimate": 0.25, "low": 0.25, "high": 0.25})
    assert gap["outcome"] == "longer"
    assert gap["familywise"]
    assert gap["relative"] == pytest.approx(0.25 / np.mean(NOISY), abs=1e-6)
    assert gap["score"]["estimate"] == pytest.approx(-0.02)
    assert gap["score"]["low"] < gap["score"]["high"] == 0.0
    assert difference(curves((RIGHT, NOISY), (RIGHT, longer)), 0, 1)["outcome"] == "shorter"
    shuffled = NOISY[1:] + NOISY[:1]
    assert difference(curves((RIGHT, NOISY), (RIGHT, shuffled)), 1, 0)["outcome"] == "no clear difference"


def test_many_comparisons_need_a_wider_interval():
    rng = np.random.default_rng(1)
    table = curves((RIGHT, NOISY), (RIGHT, list(np.array(NOISY) + rng.normal(0.36, 1, 50))))
    assert difference(table, 1, 0, 1)["familywise"]
    many = difference(table, 1, 0, 200)
    assert many["outcome"] == "longer"
    assert not many["familywise"]


def test_points_are_chosen_on_selection_items_and_reported_on_test_items():
    half = [0.0, 1.0] * 25
    selection = curves((RIGHT, 2), (RIGHT, 3), (half, 4), (RIGHT, 2.5), (half, 5))
    test = curves((RIGHT, 2), (half, 3.5), (RIGHT, 4.5), (RIGHT, 2.25), (RIGHT, 6))
    methods = {"exact": [0], "ours": [1, 2], "other": [3], "hopeless": [4]}
    found = match(pooled(selection), test, pooled(test), methods, "ours", "within", 1.0)
    assert {name: entry["point"] for name, entry in found["methods"].items()} == {
        "exact": 0, "ours": 1, "other": 3, "hopeless": 0,
    }  # fmt: skip
    ours, other, hopeless = (found["methods"][name] for name in ("ours", "other", "hopeless"))
    assert ours["test"]["accepted_per_cycle"]["estimate"] == 3.5
    assert ours["selection"]["accepted_per_cycle"]["estimate"] == 3.0
    assert not ours["holds_on_test"]
    assert hopeless["none_matched"]
    assert not other["none_matched"]
    assert other["ours_minus_this"]["accepted_per_cycle"]["estimate"] == 1.25
    words = verdict(found, ["exact", "a", "b", "c", "d"], "selection")
    assert "ours is at 3.50 draft tokens kept per cycle, 1.75 times exact decoding, score -50.00 points" in words
    assert "longer than exact (+1.50 [+1.50, +1.50]), other (+1.25 [+1.25, +1.25]), hopeless (no point kept" in words
    assert words.endswith("On the test items the score is not kept by ours.")
    assert "keeps the score on the selection items (score at most 1 point below exact" in words


def test_the_verdict_where_no_point_of_ours_keeps_the_score():
    table = curves((RIGHT, 2), ([0.0, 1.0] * 25, 3))
    found = match(pooled(table), table, pooled(table), {"exact": [0], "ours": [1]}, "ours", "within", 1.0)
    words = verdict(found, ["exact", "a"], "test")
    assert "no point of ours keeps it, and exact decoding stands for it, at 2.00 draft tokens" in words


def test_the_verdict_without_a_method_of_ours():
    table = curves((RIGHT, 2), (RIGHT, 3))
    found = match(pooled(table), table, pooled(table), {"exact": [0], "topk": [1]}, None, "within", 1.0)
    assert "topk is the longest, 3.00 draft tokens" in verdict(found, ["exact", "topk:2"], "test")
    assert "ours_minus_this" not in found["methods"]["topk"]


def test_criteria_are_told_with_their_margin():
    assert meaning("within", 0.5) == "score at most 0.5 points below exact decoding's"
    assert meaning("non-inferior", 1.0).endswith("stays above -1 point")


def test_the_frontier_leaves_out_points_with_a_longer_better_one():
    assert frontier([(1, 0), (2, -1), (3, 0), (4, -5), (3.5, -6)]) == [0, 2, 3]
    assert frontier([(2, 1)]) == [0]
