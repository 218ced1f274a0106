"""The bootstrap against a slow computation, and known cases."""

import random

import numpy as np
import pytest

from hf_selfjudge.evaluation.bootstrap import Figures, Measured, estimate, figures, interval, resample


def made_up(items, rules=3, seed=0, scored=True):
    rng = np.random.default_rng(seed)
    scores = rng.integers(0, 2, (rules, items)).astype(float)
    cycles = rng.integers(1, 9, (rules, items)).astype(float)
    return Measured(
        scores if scored else np.full_like(scores, np.nan), rng.integers(0, 5, (rules, items)) * cycles, cycles
    )


def by_hand(measured, rule, chosen):
    """Score and length of some items, which may be there several times."""
    scores = [measured.scores[rule][i] for i in chosen if not np.isnan(measured.scores[rule][i])]
    accepted = sum(measured.accepted[rule][i] for i in chosen)
    return sum(scores) / len(scores), accepted / sum(measured.cycles[rule][i] for i in chosen)


def test_weights_are_repeated_items():
    measured = made_up(6)
    measured.scores[:, 2] = np.nan  # an item without a score counts in the length only
    chosen = [0, 0, 1, 2, 4, 4]
    found = figures(measured, np.array([[chosen.count(item) for item in range(6)]], dtype=float))
    for rule in range(3):
        assert (found.score[0, rule], found.length[0, rule]) == pytest.approx(by_hand(measured, rule, chosen))
        whole = estimate(measured)
        assert (whole.score[0, rule], whole.length[0, rule]) == pytest.approx(by_hand(measured, rule, range(6)))


def test_the_distribution_is_that_of_a_slow_bootstrap():
    measured = made_up(25, seed=3)
    (found,) = resample({"task": measured}, 4000, seed=1)
    rng = random.Random(5)
    slow = []
    for _ in range(4000):
        chosen = [rng.randrange(25) for _ in range(25)]
        (a, b), (c, d) = by_hand(measured, 1, chosen), by_hand(measured, 0, chosen)
        slow.append((a - c, b / d))
    fast = np.stack([found.score[:, 1] - found.score[:, 0], found.length[:, 1] / found.length[:, 0]], axis=1)
    for column in (0, 1):
        spread = np.std(fast[:, column])
        expected = np.quantile(np.array(slow)[:, column], [0.025, 0.5, 0.975])
        assert np.quantile(fast[:, column], [0.025, 0.5, 0.975]) == pytest.approx(expected, abs=0.25 * spread)
        assert np.std(np.array(slow)[:, column]) == pytest.approx(spread, rel=0.1)


def test_rules_are_resampled_together():
    measured = made_up(30)
    twins = Measured(*(values[[0, 0]] for values in (measured.scores, measured.accepted, measured.cycles)))
    (found,) = resample({"task": twins}, 500, seed=0)
    assert (found.score[:, 0] == found.score[:, 1]).all()
    assert (found.length[:, 0] == found.length[:, 1]).all()
    assert found.score[:, 0].std() > 0


def test_tasks_are_resampled_apart_and_seeds_matter():
    tasks = {"one": made_up(30), "two": made_up(30)}
    a, b = resample(tasks, 300, seed=0)
    assert abs(np.corrcoef(a.score[:, 0], b.score[:, 0])[0, 1]) < 0.3
    again, other = resample(tasks, 300, seed=0)[0], resample(tasks, 300, seed=1)[0]
    assert (a.score == again.score).all()
    assert (a.score != other.score).any()
    turned = resample(dict(reversed(tasks.items())), 300, seed=0)
    assert (turned[1].score == a.score).all(), "the order in which tasks are given does not matter"


def test_chunks_make_the_wanted_number():
    assert resample({"task": made_up(4)}, 1500, seed=0)[0].score.shape == (1500, 3)


def test_the_interval_of_a_mean_is_the_normal_one():
    rng = np.random.default_rng(0)
    scores = rng.normal(size=(1, 400))
    (found,) = resample({"task": Measured(scores, np.ones((1, 400)), np.ones((1, 400)))}, 4000, seed=0)
    half = 1.96 * scores.std() / 20
    assert interval(found.score[:, 0]) == pytest.approx((scores.mean() - half, scores.mean() + half), abs=0.01)
    assert interval(np.arange(101.0), 0.5) == (25.0, 75.0)


def test_pools_leave_out_tasks_without_scores():
    tasks = [made_up(10, seed=1), made_up(10, seed=2), made_up(10, seed=3, scored=False)]
    found = [estimate(task) for task in tasks]
    pooled = Figures.pool(found)
    assert pooled.score == pytest.approx((found[0].score + found[1].score) / 2)
    assert pooled.length == pytest.approx((found[0].length + found[1].length) / 2)
    only = Figures.pool(found[2:])
    assert np.isnan(only.score).all()
    assert (only.length == found[2].length).all()
