"""Thresholds against brute force, curves against scikit-learn, and the risk bound against simulated prompts."""

import json

import pytest
import torch
from scipy.stats import beta

from hf_selfjudge.pipeline.calibrate import Calibration, calibrate
from hf_selfjudge.pipeline.settings import CalibrateSettings
from hf_selfjudge.pipeline.training.metrics import auc_interval, reliability
from hf_selfjudge.pipeline.training.risk import _counts, _sequence, control_risk, risk_bound

DELTA = 0.05


def rows(count: int = 400) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """A judge that is often right, with many ties."""
    labels = (torch.rand(count) > 0.6).to(torch.int8)
    probability = (torch.rand(count) * 0.7 + labels * 0.3).round(decimals=2)
    return probability, labels, torch.arange(count) // 8


def outcome(probability, labels, theta: float) -> dict[str, float]:
    """What a theta does, counted row by row."""
    pairs = list(zip(probability.tolist(), labels.tolist(), strict=True))
    good = sum(p > theta for p, y in pairs if y == 1)
    bad = sum(p > theta for p, y in pairs if y == 0)
    all_good = sum(y == 1 for _, y in pairs)
    all_bad = len(pairs) - all_good
    rejected = len(pairs) - good - bad
    return {
        "accepted": (good + bad) / len(pairs),
        "precision": good / (good + bad) if good + bad else None,
        "wrong": bad / (good + bad) if good + bad else None,
        "acceptable_accepted": good / all_good,
        "unacceptable_rejected": 1 - bad / all_bad,
        "f1": 2 * good / (2 * good + bad + all_good - good),
        "rejecting": (all_bad - bad) / max(rejected, 1),
    }


def test_thresholds_are_the_best_of_all_thetas():
    probability, labels, prompts = rows()
    found = calibrate(probability, labels, prompts, CalibrateSettings(recall=0.9))
    grid = [outcome(probability, labels, theta / 200) for theta in range(201)]
    best = {name: outcome(probability, labels, theta) for name, theta in found.thresholds.items()}
    assert best["f1"]["f1"] == pytest.approx(max(each["f1"] for each in grid))
    youden = [each["acceptable_accepted"] + each["unacceptable_rejected"] for each in grid]
    assert best["youden"]["acceptable_accepted"] + best["youden"]["unacceptable_rejected"] == pytest.approx(max(youden))
    assert best["recall"]["unacceptable_rejected"] >= 0.9
    assert best["recall"]["rejecting"] == pytest.approx(
        max(each["rejecting"] for each in grid if each["unacceptable_rejected"] >= 0.9)
    )


def test_points_are_what_their_thetas_do():
    probability, labels, prompts = rows()
    found = calibrate(probability, labels, prompts)
    assert [point["name"] for point in found.points] == list(found.thresholds)
    assert {"f1", "recall", "youden", "risk-1%", "risk-2%", "risk-5%", "risk-10%"} == set(found.thresholds)
    for point in found.points:
        expected = outcome(probability, labels, point["theta"])
        assert point["theta"] == found.thresholds[point["name"]]
        assert point["paper_theta"] == 1 - point["theta"]
        for name in ("accepted", "precision", "wrong", "acceptable_accepted", "unacceptable_rejected", "f1"):
            assert point[name] == (None if expected[name] is None else pytest.approx(expected[name], abs=1e-12)), name


def test_no_theta_stands_on_a_probability():
    """A probability that another device rounds differently must not change sides."""
    probability, labels, prompts = rows()
    found = calibrate(probability, labels, prompts)
    assert not (set(found.thresholds.values()) - {1.0}) & set(probability.tolist())


def test_curves_are_scikit_learns():
    from sklearn.metrics import precision_score, roc_auc_score, roc_curve

    probability, labels, prompts = rows(3000)
    probability = probability.clamp(min=0.01)  # nothing accepts a probability of 0
    found = calibrate(probability, labels, prompts)
    assert found.auc == pytest.approx(roc_auc_score(labels, probability))
    x, y, _ = roc_curve(labels, probability, drop_intermediate=False)
    exact = {(round(a, 9), round(b, 9)) for a, b in zip(x, y, strict=True)}
    points = list(zip(found.roc["unacceptable_accepted"], found.roc["acceptable_accepted"], strict=True))
    assert (points[0], points[-1]) == ((0.0, 0.0), (1.0, 1.0))
    assert {(round(a, 9), round(b, 9)) for a, b in points} <= exact
    assert 50 < len(points) <= 200
    curve = found.precision_recall
    for theta, precision in list(zip(curve["theta"], curve["precision"], strict=True))[::10]:
        assert precision == pytest.approx(precision_score(labels, probability > theta))


def test_reliability_is_counted_per_bin():
    probability, labels, _ = rows()
    found = reliability(probability, labels == 1, bins=10)
    gap = 0.0
    for each in found["bins"]:
        inside = [
            (p, y)
            for p, y in zip(probability.tolist(), labels.tolist(), strict=True)
            if each["from"] <= p < each["to"] or (p == 1 == each["to"])
        ]
        assert each["rows"] == len(inside)
        assert each["predicted"] == pytest.approx(sum(p for p, _ in inside) / len(inside))
        assert each["observed"] == pytest.approx(sum(y for _, y in inside) / len(inside))
        gap += len(inside) / len(labels) * abs(each["predicted"] - each["observed"])
    assert sum(each["rows"] for each in found["bins"]) == len(labels)
    assert found["ece"] == pytest.approx(gap)
    assert found["brier"] == pytest.approx(float(((probability - labels) ** 2).mean()), abs=1e-6)


def test_the_interval_of_auc_draws_prompts():
    """Copies of a row within its prompt add nothing: the interval must stay as wide."""
    probability, labels, _ = rows(200)
    alone = auc_interval(probability, labels == 1, torch.arange(200))
    copied = auc_interval(
        probability.repeat_interleave(5), labels.repeat_interleave(5) == 1, torch.arange(200).repeat_interleave(5)
    )
    assert copied == pytest.approx(alone)
    as_if_independent = auc_interval(
        probability.repeat_interleave(5), labels.repeat_interleave(5) == 1, torch.arange(1000)
    )
    assert as_if_independent[1] - as_if_independent[0] < 0.7 * (alone[1] - alone[0])


def test_a_calibration_survives_json():
    probability, labels, prompts = rows()
    found = calibrate(probability, labels, prompts)
    assert Calibration.from_dict(json.loads(json.dumps(found.to_dict(), allow_nan=False))) == found
    assert found.metrics["auc"] == found.auc


def test_undecided_rows_are_left_out_and_bad_input_is_refused():
    probability, labels, prompts = rows()
    undecided = torch.rand(400) < 0.2
    found = calibrate(probability, torch.where(undecided, -1, labels), prompts)
    assert found == calibrate(probability[~undecided], labels[~undecided], prompts[~undecided])
    with pytest.raises(ValueError, match="both classes"):
        calibrate(probability, torch.ones_like(labels), prompts)
    with pytest.raises(ValueError, match="0 decided"):
        calibrate(probability, -torch.ones_like(labels), prompts)
    with pytest.raises(ValueError, match="399 labels"):
        calibrate(probability, labels[1:], prompts)
    with pytest.raises(ValueError, match="NaN or outside"):
        calibrate(probability + 1, labels, prompts)
    with pytest.raises(ValueError, match="'risk-3%', expected one of f1"):
        calibrate(probability, labels, prompts, CalibrateSettings(default_threshold="risk-3%"))


# -- risk -------------------------------------------------------------------------------------------------------------


def naive_bound(accepted, wrong, delta):
    """Clopper-Pearson as if all tokens were independent."""
    count, errors = accepted.sum(-1).double(), wrong.sum(-1).double()
    bound = beta.ppf(1 - delta, errors + 1, (count - errors).clamp(min=1e-9))
    return torch.where(errors < count, torch.as_tensor(bound), 1.0)


def test_the_bound_is_clopper_pearsons_when_prompts_are_all_or_nothing():
    for prompts, errors, size in ((200, 0, 1), (200, 7, 1), (200, 7, 9), (60, 3, 4)):
        accepted = torch.full((prompts,), float(size))
        wrong = accepted * (torch.arange(prompts) < errors)
        expected = beta.ppf(1 - DELTA, errors + 1, prompts - errors)
        assert float(risk_bound(accepted, wrong, DELTA)) == pytest.approx(expected, rel=1e-6)


def test_spread_errors_are_worth_more_than_clustered_ones():
    accepted = torch.full((200,), 10.0)
    spread, clustered = torch.zeros(200), torch.zeros(200)
    spread[:80], clustered[:8] = 1.0, 10.0
    share = 80 / 2000
    assert share < risk_bound(accepted, spread, DELTA) < 0.06 < risk_bound(accepted, clustered, DELTA) < 0.08
    assert risk_bound(torch.zeros(5), torch.zeros(5), DELTA) == 1.0
    assert risk_bound(torch.ones(5), torch.ones(5), DELTA) == 1.0


@pytest.mark.parametrize("correlation", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("sizes", ["equal", "unequal"])
def test_the_bound_holds_whatever_the_clustering(correlation, sizes):
    """Beta-binomial errors with a true share of 5 %; bounds may lie below it in 5 % of the trials."""
    import numpy as np

    generator, share, trials = np.random.default_rng(0), 0.05, 400
    ours = naive = 0
    for _ in range(trials):
        count = np.full(200, 8) if sizes == "equal" else generator.geometric(0.12, 200)
        spread = 1 / max(correlation, 1e-9) - 1
        chance = (generator.random(200) < share) if correlation == 1 else generator.beta(
            share * spread, (1 - share) * spread, 200
        )  # fmt: skip
        accepted, wrong = torch.tensor(count), torch.tensor(generator.binomial(count, chance))
        ours += risk_bound(accepted, wrong, DELTA) < share
        naive += naive_bound(accepted, wrong, DELTA) < share
    allowed = trials * DELTA + 3 * (trials * DELTA * (1 - DELTA)) ** 0.5
    assert ours <= allowed
    if correlation:
        assert naive > 1.5 * allowed


def population(kind: str, prompts: int, generator: torch.Generator):
    """Mismatches of prompts in which a judge is right about a token or, prompt by prompt, about none."""
    sizes = 1 + torch.poisson(torch.full((prompts,), 24.0), generator=generator).long()
    owner = torch.arange(prompts).repeat_interleave(sizes)
    logits = 2 * torch.randn(len(owner), generator=generator)
    if kind == "hopeless prompts":
        offset = torch.where(torch.rand(prompts, generator=generator) < 0.045, -30.0, 2.0)
    else:
        offset = 2.5 * torch.randn(prompts, generator=generator)
    chance = torch.sigmoid(1.5 * logits + 1.5 + offset[owner])
    return torch.sigmoid(logits), torch.rand(len(owner), generator=generator) < chance, owner


@pytest.mark.parametrize(("kind", "risk"), [("hopeless prompts", 0.12), ("uneven prompts", 0.1)])
def test_controlled_risk_is_kept_on_new_prompts(monkeypatch, kind, risk):
    """Thresholds of many calibration sets, each measured on the same large set of new prompts."""
    generator = torch.Generator().manual_seed(1)
    probability, labels, _ = population(kind, 20_000, generator)
    levels, order = probability.sort()
    wrong_above = (~labels)[order].double().flip(0).cumsum(0).flip(0)

    def true_risk(theta: float) -> float:
        first = int(torch.searchsorted(levels, torch.tensor(theta), right=True))
        return float(wrong_above[first]) / (len(levels) - first) if first < len(levels) else 0.0

    def broken(trials: int) -> tuple[int, int]:
        draws = torch.Generator().manual_seed(2)
        bad = useful = 0
        for _ in range(trials):
            found, truth, owner = population(kind, 200, draws)
            theta, _ = control_risk(found, truth, owner, found.unique(), risk, DELTA)
            bad += true_risk(theta) > risk
            useful += theta < 1.0
        return bad, useful

    trials = 80
    allowed = trials * DELTA + 3 * (trials * DELTA * (1 - DELTA)) ** 0.5
    ours, useful = broken(trials)
    assert ours <= allowed
    assert useful > 0.3 * trials  # not by accepting nothing
    monkeypatch.setattr("hf_selfjudge.pipeline.training.risk.risk_bound", naive_bound)
    assert broken(trials)[0] > allowed


def test_a_risk_that_cannot_be_shown_accepts_nothing():
    probability, labels, prompts = rows(400)  # 50 prompts
    found = calibrate(probability, labels, prompts, CalibrateSettings(risks=(0.01, 0.05)))
    assert found.thresholds["risk-1%"] == found.thresholds["risk-5%"] == 1.0
    assert "50 prompts could not show less than" in found.notes[0]
    assert found.points[-1]["accepted"] == 0.0
    assert found.points[-1]["bound"] is None


def test_the_bound_of_a_controlled_risk_is_below_it():
    labels = torch.rand(4000) > 0.5
    probability = torch.where(labels, 0.9, 0.1) + 0.05 * torch.rand(4000)
    found = calibrate(
        probability, labels.to(torch.int8), torch.arange(4000) // 10, CalibrateSettings(risks=(0.02, 0.3))
    )
    points = {point["name"]: point for point in found.points}
    for name, risk in (("risk-2%", 0.02), ("risk-30%", 0.3)):
        assert points[name]["bound"] <= risk
        assert points[name]["accepted"] > 0.95 * float(labels.float().mean())
    assert points["risk-30%"]["accepted"] > points["risk-2%"]["accepted"]  # the most permissive one


def test_counts_and_sequence_are_what_they_say():
    probability, labels, prompts = rows(120)
    thetas = torch.cat([torch.zeros(1), probability.unique(), torch.ones(1)]).unique()
    tested = _sequence(probability, thetas)
    assert torch.equal(tested, tested.sort(descending=True).values)
    shares = [float((probability > theta).double().mean()) for theta in tested]
    assert shares[-1] == float((probability > 0).double().mean())
    assert set(tested.tolist()) <= set(thetas.tolist())
    accepted, wrong = _counts(probability, labels == 1, prompts, tested)
    for step, theta in enumerate(tested.tolist()):
        for prompt in range(15):
            own = [(p, y) for p, y, q in zip(probability.tolist(), labels.tolist(), prompts.tolist(), strict=True)
                   if q == prompt and p > theta]  # fmt: skip
            assert accepted[step, prompt] == len(own)
            assert wrong[step, prompt] == sum(y == 0 for _, y in own)
