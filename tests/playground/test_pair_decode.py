"""Decoding held-out items with the embedded pair: exact mode is the target's own text, and the counts add up."""

import pytest

from hf_selfjudge.playground.decode import decode
from hf_selfjudge.playground.evaluate import greedy_answers
from hf_selfjudge.playground.world import generate, score

COUNTS = ("cycles", "new_tokens", "drafted", "matched", "judged_in", "rejected", "discarded", "bonus")


@pytest.fixture(scope="module")
def items():
    return [item for task in ("word_problems", "news", "open_ended") for item in generate(task, "test", 2, seed=3)]


@pytest.fixture(scope="module")
def plain(embedded, items):
    return greedy_answers(embedded[0], embedded[2], items, batch_size=1)


@pytest.mark.parametrize("batch_size", [1, 4])
def test_exact_mode_gives_the_targets_own_answers(embedded, items, plain, batch_size):
    finished = []
    done = decode(embedded, items, "topk:5", mode="alignment-only", batch_size=batch_size, advance=finished.append)
    assert done.texts == plain
    assert done.scores == [score(item, text) for item, text in zip(items, plain, strict=True)]
    assert done.stats.judged_in == 0
    assert done.stats.cycles < done.stats.new_tokens
    assert finished == ([1] * 6 if batch_size == 1 else [4, 2])


def test_statistics_of_rows_add_up(embedded, items):
    done = decode(embedded, items, "topk:2", batch_size=4, gamma=5)
    assert len(done.rows) == len(done.texts) == len(items)
    for name in COUNTS:
        assert getattr(done.stats, name) == sum(getattr(row, name) for row in done.rows)
    for row, text in zip(done.rows, done.texts, strict=True):
        assert row.drafted == row.matched + row.judged_in + row.rejected + row.discarded
        assert row.new_tokens == len(row.sources) == len(embedded[2](text)["input_ids"]) + 1  # and the end of the turn
    assert done.stats.judged_in > 0
    assert done.seconds > 0


def test_the_mean_score_leaves_out_tasks_without_one(embedded, items, plain):
    done = decode(embedded, items[-2:], "exact", batch_size=2)
    assert done.scores == [None, None]
    assert done.score is None
    mixed = type(done)(plain, [1.0, 0.0, None], [], 0.0)
    assert mixed.score == 0.5
