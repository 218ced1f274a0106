"""Labels: tau, AutoJudge's verdicts and the statistics, against brute force."""

import dataclasses
import json

import pytest
import torch

from hf_selfjudge.pipeline.label import calibrate_tau, join, judge_outcomes, label
from hf_selfjudge.pipeline.records import Outcomes, Prompt, Response, Substitutions
from hf_selfjudge.pipeline.settings import LabelSettings

SPLITS = ("train", "train", "validation", "calibration")


def make_prompts(count: int = 8) -> list[Prompt]:
    return [
        Prompt(n, ("sums", "talks")[n % 2], SPLITS[n // 2 % 4], f"prompt {n}", [1, 2], ("math", None)[n % 2])
        for n in range(count)
    ]


def make_rows(count: int = 400, prompts: int = 8, seed: int = 0, lengths: tuple[int, ...] = (0, 20)) -> Substitutions:
    """Random substitutions, each position with up to two ranks."""
    generator = torch.Generator().manual_seed(seed)
    index = torch.arange(count)
    table = Substitutions(
        prompt_ids=index % prompts,
        positions=index // prompts // 2,
        target_tokens=torch.zeros(count, dtype=torch.long),
        draft_tokens=torch.randint(1, 99, (count,), generator=generator),
        ranks=index // prompts % 2,
        prefix=torch.randn(count, generator=generator),
        suffix_tokens=torch.full((count, len(lengths)), 3),
        likelihood=torch.randn(count, len(lengths), generator=generator),
        confidence=torch.randn(count, len(lengths), generator=generator),
        lengths=lengths,
    )
    return table.sorted()


def make_outcomes(rows: Substitutions, chosen: torch.Tensor, kept: torch.Tensor, **counts) -> Outcomes:
    picked = rows.select(chosen)
    one = torch.ones(len(picked), dtype=torch.long)
    columns = {"tried": one, "control_kept": 0 * one, "control_tried": 0 * one, **counts}
    keys = {name: getattr(picked, name) for name in ("prompt_ids", "positions", "draft_tokens", "ranks")}
    return Outcomes(**keys, kept=kept, **columns)


@pytest.fixture
def rows():
    return make_rows()


@pytest.fixture
def evidence(rows):
    """Outcomes of the prompts with a checker, more often kept the higher the score."""
    chosen = (rows.prompt_ids % 2 == 0).nonzero().squeeze(-1)
    score = rows.score(20)[chosen]
    generator = torch.Generator().manual_seed(1)
    kept = (score + torch.randn(len(score), generator=generator) > 0).long()
    return make_outcomes(rows, chosen, kept)


@pytest.mark.parametrize("reject", [0.5, 0.8, 0.9, 0.95, 0.99])
@pytest.mark.parametrize("count", [1, 2, 7, 10, 20, 101])
@pytest.mark.parametrize("ties", [False, True])
def test_tau_is_the_lowest_that_rejects_the_share(reject, count, ties):
    scores = torch.randn(count, generator=torch.Generator().manual_seed(count))
    scores = (scores * 2).round() if ties else scores
    tau = calibrate_tau(scores, reject)
    assert (scores <= tau).double().mean() >= reject
    lower = [value for value in scores.tolist() if value < tau]
    assert all((scores <= value).double().mean() < reject for value in lower)


def test_tau_rejects_exactly_the_wanted_share_of_distinct_scores():
    scores = torch.arange(100.0)
    assert int((scores > calibrate_tau(scores, 0.9)).sum()) == 10
    assert int((scores[:10] > calibrate_tau(scores[:10], 0.9)).sum()) == 1
    with pytest.raises(ValueError, match="share"):
        calibrate_tau(scores, 1.0)
    with pytest.raises(ValueError, match="tau"):
        calibrate_tau(scores[:0], 0.9)


@pytest.mark.parametrize("suffix", ["likelihood", "confidence"])
@pytest.mark.parametrize("reduction", ["sum", "mean"])
def test_a_given_tau_splits_the_wanted_score(rows, suffix, reduction):
    settings = LabelSettings(tau=0.25, suffix=suffix, reduction=reduction, length=0)
    found = label(make_prompts(), rows, None, settings)
    for row in range(0, len(rows), 17):
        score = float(rows.prefix[row] + getattr(rows, suffix)[row, 0])
        score = score / 4 if reduction == "mean" else score
        assert int(found.values[row]) == (score > 0.25)
    assert found.values.dtype == torch.int8
    assert (found.tau, found.statistics["tau_from"]) == (0.25, "given")


def test_tau_comes_from_training_substitutions_that_change_the_answer(rows, evidence):
    prompts = make_prompts()
    found = label(prompts, rows, evidence, LabelSettings(reject=0.8))
    score = dict(zip(keys(rows), rows.score(20).tolist(), strict=True))
    bad = [
        score[key]
        for key, kept in zip(keys(evidence), evidence.kept.tolist(), strict=True)
        if not kept and prompts[key[0]].split == "train"
    ]
    below = [tau for tau in sorted(bad) if sum(s <= tau for s in bad) >= 0.8 * len(bad)]
    assert found.tau == pytest.approx(below[0])
    assert found.statistics["tau_from"].startswith("autojudge")
    assert found.statistics["warnings"] == []
    assert torch.equal(found.values, (rows.score(20) > found.tau).to(torch.int8))


def keys(table) -> list[tuple[int, int, int]]:
    return list(zip(table.prompt_ids.tolist(), table.positions.tolist(), table.ranks.tolist(), strict=True))


def test_without_evidence_tau_leaves_the_documented_share_of_training_rows(rows):
    prompts = make_prompts()
    found = label(prompts, rows, None, LabelSettings(acceptable=0.3))
    train = torch.tensor([prompts[n].split == "train" for n in rows.prompt_ids.tolist()])
    share = found.values[train].double().mean()
    assert 0.3 - 1 / int(train.sum()) < share <= 0.3
    assert found.statistics["tau_from"].startswith("quantile")
    assert "no answer could be checked" in found.statistics["warnings"][0]


def test_few_or_no_changed_answers_are_warned_about(rows):
    chosen = torch.arange(60)
    few = make_outcomes(rows, chosen, (torch.arange(60) % 10 != 0).long())
    found = label(make_prompts(), rows, few, LabelSettings())
    assert "only 6" in found.statistics["warnings"][0]
    none = make_outcomes(rows, chosen, torch.ones(60, dtype=torch.long))
    found = label(make_prompts(), rows, none, LabelSettings())
    assert found.statistics["tau_from"].startswith("quantile")
    assert "60 decided" in found.statistics["warnings"][0]


def test_autojudge_labels_only_what_was_tried_and_hybrid_all(rows, evidence):
    prompts = make_prompts()
    where = {key: row for row, key in enumerate(keys(rows))}
    tried = {where[key]: kept for key, kept in zip(keys(evidence), evidence.kept.tolist(), strict=True)}
    strict = label(prompts, rows, evidence, LabelSettings(labels="autojudge"))
    mixed = label(prompts, rows, evidence, LabelSettings(labels="hybrid"))
    by_score = label(prompts, rows, evidence, LabelSettings(labels="score"))
    for row in range(len(rows)):
        assert int(strict.values[row]) == tried.get(row, -1)
        assert int(mixed.values[row]) == tried.get(row, int(by_score.values[row]))
    assert strict.tau == mixed.tau == by_score.tau


def test_autojudge_labels_need_evidence(rows):
    with pytest.raises(ValueError, match="None of 400 substitutions has a label"):
        label(make_prompts(), rows, None, LabelSettings(labels="autojudge"))


@pytest.mark.parametrize(
    ("kept", "tried", "control_kept", "control_tried", "verdict"),
    [
        (4, 4, 4, 4, 1),
        (3, 4, 4, 4, 1),
        (2, 4, 4, 4, 0),  # lost in half of the runs: margin 0.5
        (0, 4, 4, 4, 0),
        (0, 4, 2, 4, 0),
        (1, 4, 2, 4, 1),
        (0, 4, 1, 4, -1),  # unchanged text loses its own answer
        (4, 4, 0, 4, -1),
        (0, 0, 4, 4, -1),  # nobody could say
        (4, 4, 0, 0, -1),
        (2, 10, 7, 10, 0),  # 0.7 - 0.2 in floating point
    ],
)
def test_verdicts_with_a_control(kept, tried, control_kept, control_tried, verdict):
    counts = {
        name: torch.tensor([n])
        for name, n in (("tried", tried), ("control_kept", control_kept), ("control_tried", control_tried))
    }
    outcomes = make_outcomes(make_rows(1, 1), torch.tensor([0]), torch.tensor([kept]), **counts)
    assert judge_outcomes(outcomes, LabelSettings(repeats=4, margin=0.5)).tolist() == [verdict]


@pytest.mark.parametrize(("kept", "tried", "verdict"), [(1, 1, 1), (0, 1, 0), (0, 0, -1)])
def test_verdicts_of_greedy_completions(kept, tried, verdict):
    rows = make_rows(1, 1)
    outcomes = make_outcomes(rows, torch.tensor([0]), torch.tensor([kept]), tried=torch.tensor([tried]))
    assert judge_outcomes(outcomes, LabelSettings()).tolist() == [verdict]


def test_outcomes_find_their_rows_in_any_order(rows, evidence):
    shuffled = evidence.select(torch.randperm(len(evidence)))
    at = join(rows, shuffled)
    for column in ("prompt_ids", "positions", "ranks", "draft_tokens"):
        assert torch.equal(getattr(rows, column)[at], getattr(shuffled, column))
    settings = LabelSettings(labels="hybrid")
    one, other = (label(make_prompts(), rows, table, settings) for table in (evidence, shuffled))
    assert torch.equal(one.values, other.values)
    assert one.statistics == other.statistics


def test_outcomes_of_other_rows_are_refused(rows, evidence):
    cases = {
        "belong to no substitution": dataclasses.replace(evidence, positions=evidence.positions + 1000),
        "different draft tokens": dataclasses.replace(evidence, draft_tokens=evidence.draft_tokens + 1),
        "outcomes hold .* more than once": Outcomes.join([evidence, evidence]),
    }
    for message, table in cases.items():
        with pytest.raises(ValueError, match=message):
            label(make_prompts(), rows, table, LabelSettings())
    with pytest.raises(ValueError, match=r"substitutions hold .* more than once"):
        label(make_prompts(), Substitutions.join([rows, rows]), evidence, LabelSettings())


def test_unknown_prompts_lengths_and_broken_scores_are_refused(rows):
    with pytest.raises(ValueError, match="prompt 4"):
        label(make_prompts(4), rows, None, LabelSettings())
    with pytest.raises(ValueError, match="length 10 was not scored"):
        label(make_prompts(), rows, None, LabelSettings(length=10))
    broken = dataclasses.replace(rows, prefix=rows.prefix.masked_fill(torch.arange(400) < 3, float("nan")))
    with pytest.raises(ValueError, match="3 of 400 scores are not numbers"):
        label(make_prompts(), broken, None, LabelSettings())


def test_the_statistics_of_each_source(rows, evidence):
    from sklearn.metrics import roc_auc_score

    prompts = [*make_prompts(), Prompt(8, "sums", "train", "no mismatch", [1])]
    responses = [Response(n, [1], [5] * (n + 1)) for n in range(9)]
    found = label(prompts, rows, evidence, LabelSettings(), responses)
    figures = found.statistics["sources"]
    assert set(figures) == {"sums", "talks"}
    sums, talks = figures["sums"], figures["talks"]
    assert (sums["prompts"], talks["prompts"], found.statistics["all"]["prompts"]) == (5, 4, 9)
    assert (sums["response_tokens"], talks["response_tokens"]) == (1 + 3 + 5 + 7 + 9, 2 + 4 + 6 + 8)
    assert (sums["substitutions"], talks["substitutions"]) == (200, 200)
    mine = rows.prompt_ids % 2 == 0
    assert sums["acceptable"] == pytest.approx(float(found.values[mine].double().mean()))
    score = rows.score(20)[join(rows, evidence)]
    kept = evidence.kept.bool()
    assert (sums["autojudge_tried"], talks["autojudge_tried"]) == (200, 0)
    assert sums["flips"] == int((~kept).sum())
    assert sums["flip_rate"] == pytest.approx(float((~kept).double().mean()))
    assert sums["agreement"] == pytest.approx(float(((score > found.tau) == kept).double().mean()))
    assert sums["score_auc"] == pytest.approx(roc_auc_score(kept, score))
    assert sums["control_flip_rate"] is None
    assert talks["agreement"] is talks["score_auc"] is talks["flip_rate"] is None
    assert json.loads(json.dumps(found.statistics)) == found.statistics


def test_the_flip_rate_of_unchanged_text_is_told(rows):
    chosen = torch.arange(40)
    four = torch.full((40,), 4)
    outcomes = make_outcomes(rows, chosen, four // 2, tried=four, control_kept=four - 1, control_tried=four)
    found = label(make_prompts(), rows, outcomes, LabelSettings(repeats=4)).statistics["all"]
    assert (found["flip_rate"], found["control_flip_rate"], found["flips"]) == (0.5, 0.25, 0)


def test_no_rows_no_labels():
    found = label(make_prompts(), make_rows(0, 1), None, LabelSettings())
    assert len(found.values) == 0
    assert found.tau is None
