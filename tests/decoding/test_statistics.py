"""Counts by hand, sums, JSON and the printed block."""

import json

import pytest
from tiny import Always, prompts

from hf_selfjudge import JudgeStats
from hf_selfjudge.decoding.statistics import Replacement, Source

M, J, C, B = Source.MATCHED, Source.JUDGED, Source.CORRECTION, Source.BONUS


def stats_of(*cycles, mode="two-stage"):
    stats = JudgeStats(mode=mode)
    for kept, drafted, accepted in cycles:
        stats.add_cycle(kept, drafted, accepted)
    return stats


@pytest.mark.parametrize(
    ("cycle", "counts"),
    [
        # (sources kept, drafted, accepted before any stop): matched, judged_in, rejected, discarded, bonus
        (([M, J, C], 5, 2), (1, 1, 1, 2, 0)),
        (([M, M, M, B], 3, 3), (3, 0, 0, 0, 1)),
        (([C], 4, 0), (0, 0, 1, 3, 0)),
        (([B], 0, 0), (0, 0, 0, 0, 1)),
        (([M, J], 6, 4), (1, 1, 0, 4, 0)),  # stopped inside the accepted part
        (([M, M, M], 5, 3), (3, 0, 0, 2, 0)),  # stopped just before the correction
        (([M, M], 2, 2), (2, 0, 0, 0, 0)),  # stopped just before the bonus token
    ],
)
def test_one_cycle(cycle, counts):
    stats = stats_of(cycle)
    found = (stats.matched, stats.judged_in, stats.rejected, stats.discarded, stats.bonus)
    assert found == counts
    assert stats.drafted == sum(counts[:4]) == cycle[1]
    assert (stats.cycles, stats.new_tokens, stats.sources) == (1, len(cycle[0]), cycle[0])


def test_averages_are_not_confused():
    stats = stats_of(([M, J, C], 5, 2), ([M, M, M, M, B], 4, 4), ([C], 1, 0))
    assert stats.accepted == 6
    assert stats.accepted_per_cycle == pytest.approx(2.0)
    assert stats.tokens_per_target_forward == pytest.approx(3.0)
    assert stats.acceptance_rate == pytest.approx(0.6)
    assert stats.drafted_by_position == [3, 2, 2, 2, 1]
    assert stats.accepted_by_position == [2, 2, 1, 1, 0]
    assert stats.lossy


def test_lossy_is_what_may_differ_from_the_target():
    exact = ([M, M, C], 3, 2)
    assert not stats_of(exact).lossy
    assert stats_of(exact, mode="judge-only").lossy
    assert stats_of(([J, B], 1, 1)).lossy


def test_nothing_is_divided_by_zero():
    empty = JudgeStats()
    assert (empty.accepted_per_cycle, empty.tokens_per_target_forward, empty.acceptance_rate) == (0, 0, 0)
    assert "0 new tokens" in str(empty)


def test_sums():
    one, two = stats_of(([M, J, C], 5, 2)), stats_of(([M, B], 1, 1), ([C], 2, 0))
    one.seconds["total"], two.seconds["total"] = 1.0, 2.0
    one.replacements.append(Replacement(1, 5, 6, 0.2, None))
    total = one + two
    for name in ("cycles", "new_tokens", "drafted", "matched", "judged_in", "rejected", "discarded", "bonus"):
        assert getattr(total, name) == getattr(one, name) + getattr(two, name)
    assert total.drafted_by_position == [3, 2, 1, 1, 1]
    assert total.sources == one.sources + two.sources
    assert total.seconds["total"] == 3.0
    assert total.mode == "two-stage"
    assert (one + stats_of(mode="judge-only")).mode == "mixed"
    assert one.cycles == 1  # unchanged


def test_the_printed_block_names_both_averages():
    stats = stats_of(([M, J, C], 5, 2), ([M, M, M, M, B], 4, 4))
    text = str(stats)
    assert "accepted draft tokens per cycle   3.00" in text
    assert "tokens per target forward         4.00" in text
    assert "drafted 9 = matched 5 + judged in 1 + rejected 1 + discarded 2; bonus 1" in text
    assert "8 new tokens in 2 cycles; output: may differ from the target's own" in text
    assert "output: the target's own" in str(stats_of(([M, B], 1, 1)))


def test_json_holds_everything(pair):
    out = pair.judged(prompts(1)[0], "topk:5", 14)
    values = json.loads(out.judge_stats.to_json())
    assert values == json.loads(json.dumps(out.judge_stats.to_dict()))
    assert values["sources"] == [source.value for source in out.judge_stats.sources]
    assert values["accepted_per_cycle"] == out.judge_stats.accepted_per_cycle
    assert values["tokens_per_target_forward"] == out.judge_stats.tokens_per_target_forward
    assert len(values["replacements"]) == values["judged_in"] > 0


def test_time_is_split(pair):
    seconds = pair.judged(prompts(1)[0], Always(True), 14).judge_stats.seconds
    assert set(seconds) == {"draft", "target", "judge", "verify", "total"}
    assert all(value > 0 for value in seconds.values())
    assert sum(seconds.values()) - seconds["total"] <= seconds["total"]
