"""Stage 5: which substitutions are acceptable.

By score: acceptable if s > tau. By AutoJudge: acceptable if the target's answer survives (`Outcomes`). tau is given, or
calibrated on substitutions of the training split that AutoJudge found unacceptable: the quantile of their scores that
rejects the wanted share of them. Without such evidence it is the quantile that leaves a fixed share of all training
substitutions acceptable.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .records import Outcomes, Prompt, Response, Substitutions
from .settings import LabelSettings
from .training.metrics import auc

ACCEPTABLE, UNACCEPTABLE, UNDECIDED = 1, 0, -1
FEWEST_UNACCEPTABLE = 20
"""With fewer substitutions to calibrate tau on, the statistics say so."""


@dataclass(frozen=True)
class Labels:
    """The label of every substitution, and how they came about."""

    values: Tensor  # (rows,) int8: 1 acceptable, 0 not, -1 undecided
    tau: float | None
    """The score above which a substitution counts as acceptable; None if there is no score to set it by."""
    statistics: dict[str, Any]
    """JSON values: `tau`, `tau_from`, `warnings`, and the figures of every source and of all together."""


def label(
    prompts: Sequence[Prompt],
    substitutions: Substitutions,
    outcomes: Outcomes | None,
    settings: LabelSettings,
    responses: Sequence[Response] = (),
) -> Labels:
    """Label all substitutions.

    Args:
        prompts: those that the rows belong to.
        substitutions: scored ones.
        outcomes: AutoJudge's evidence on some of them, if there is any.
        settings: which labels, and how tau is found.
        responses: the answers that were mined, if the statistics are to count their tokens.
    """
    scores = substitutions.score(settings.length, settings.suffix, settings.reduction).double().cpu()  # (rows,)
    if bool(scores.isnan().any()):
        raise ValueError(
            f"{int(scores.isnan().sum())} of {len(scores)} scores are not numbers; expected none. The target computes "
            "NaN on these texts: try another dtype or attention."
        )
    owners = _owners(prompts, substitutions)
    verdicts = torch.full((len(scores),), UNDECIDED, dtype=torch.int8)
    rows = torch.empty(0, dtype=torch.long)
    if outcomes is not None:
        rows = join(substitutions, outcomes)
        verdicts[rows] = judge_outcomes(outcomes, settings)
    train = torch.tensor([prompt.split == "train" for prompt in owners], dtype=torch.bool)
    tau, how, warnings = _find_tau(scores, verdicts, train, settings)
    by_score = torch.full_like(verdicts, UNDECIDED) if tau is None else (scores > tau).to(torch.int8)
    if settings.labels == "score":
        values = by_score
    elif settings.labels == "autojudge":
        values = verdicts
    else:
        values = torch.where(verdicts == UNDECIDED, by_score, verdicts)
    if len(values) and bool((values == UNDECIDED).all()):
        raise ValueError(
            f"None of {len(values)} substitutions has a label: AutoJudge decided on none. Give prompts with a "
            "checker that the target can answer, open_tasks=autojudge+, or labels=score."
        )
    columns = {"score": scores, "by_score": by_score, "verdict": verdicts, "value": values}
    figures = _Figures(owners, columns, rows, outcomes).all()
    _count_prompts(figures, prompts, responses)
    statistics = {"tau": tau, "tau_from": how, "labels": settings.labels, "warnings": warnings, **figures}
    statistics["kept_by_score"] = _kept_by_score(scores, verdicts)
    statistics["rankings"] = _rankings(substitutions, verdicts)
    return Labels(values, tau, statistics)


def judge_outcomes(outcomes: Outcomes, settings: LabelSettings) -> Tensor:
    """AutoJudge's verdicts: 1 acceptable, 0 not, -1 undecided. (rows,) int8

    Without repeats every completion must keep the answer. With repeats the answer must survive almost as often as in
    unchanged text; where that itself keeps it in less than half of the completions, chance decides, so nobody does.
    """
    undecided = outcomes.tried == 0
    changed = outcomes.kept < outcomes.tried
    if settings.repeats:
        share = outcomes.kept.double() / outcomes.tried.clamp(min=1)
        control = outcomes.control_kept.double() / outcomes.control_tried.clamp(min=1)  # 0 if nobody could say
        undecided = undecided | (control < 0.5)
        changed = control - share >= settings.margin - 1e-9  # 0.7 - 0.2 is a little less than 0.5 in floating point
    verdicts = (~changed).to(torch.int8)
    verdicts[undecided] = UNDECIDED
    return verdicts


def calibrate_tau(scores: Tensor, reject: float) -> float:
    """The lowest score such that at least the share `reject` of these is not above it. (rows,)"""
    if not 0.0 < reject < 1.0:
        raise ValueError(f"reject is {reject!r}, expected a share in (0, 1).")
    if len(scores) == 0:
        raise ValueError("No substitution to calibrate tau on: give more prompts, or a tau.")
    # a score of the list, not one between two: interpolation would let a part of the share through
    rejected = math.ceil(reject * len(scores) - 1e-9)
    return float(scores.double().sort().values[rejected - 1])


def join(substitutions: Substitutions, outcomes: Outcomes) -> Tensor:
    """The row of each outcome among the substitutions. (outcomes,)

    Raises:
        ValueError: if a row is there twice, or an outcome belongs to no substitution or to another token.
    """
    keys = ("prompt_ids", "positions", "ranks")
    ours, theirs = (
        list(zip(*(table.columns[key].tolist() for key in keys), strict=True)) for table in (substitutions, outcomes)
    )
    place = {key: row for row, key in enumerate(ours)}
    for name, found in (("substitutions", ours), ("outcomes", theirs)):
        if len(set(found)) != len(found):
            twice = next(key for key in found if found.count(key) > 1)
            raise ValueError(f"The {name} hold (prompt, position, rank) {twice} more than once; expected each once.")
    lost = [key for key in theirs if key not in place]
    if lost:
        raise ValueError(
            f"{len(lost)} outcomes, such as (prompt, position, rank) {lost[0]}, belong to no substitution; expected "
            "those of the same mismatches. Make both from one run of mine."
        )
    rows = torch.tensor([place[key] for key in theirs], dtype=torch.long)
    other = substitutions.draft_tokens[rows] != outcomes.draft_tokens
    if bool(other.any()):
        key = theirs[int(other.nonzero()[0])]
        raise ValueError(
            f"Outcome and substitution of (prompt, position, rank) {key} have different draft tokens; expected "
            "the same. Make both from one run of mine."
        )
    return rows


def _owners(prompts: Sequence[Prompt], substitutions: Substitutions) -> list[Prompt]:
    """The prompt of every row."""
    known = {prompt.prompt_id: prompt for prompt in prompts}
    missing = sorted(set(substitutions.prompt_ids.tolist()) - known.keys())
    if missing:
        raise ValueError(
            f"Substitutions of prompt {missing[0]} are there, but the prompt is not among the {len(known)}."
        )
    return [known[prompt_id] for prompt_id in substitutions.prompt_ids.tolist()]


def _find_tau(
    scores: Tensor, verdicts: Tensor, train: Tensor, settings: LabelSettings
) -> tuple[float | None, str, list[str]]:
    """tau, where it comes from, and what to know about it."""
    warnings: list[str] = []
    if settings.tau is not None:
        return settings.tau, "given", warnings
    bad = scores[train & (verdicts == UNACCEPTABLE)]
    tried = int((train & (verdicts != UNDECIDED)).sum())
    if len(bad):
        if len(bad) < FEWEST_UNACCEPTABLE:
            warnings.append(
                f"tau comes from only {len(bad)} substitutions that change an answer (of {tried} decided); give more "
                "prompts with a checker."
            )
        return calibrate_tau(bad, settings.reject), f"autojudge: rejects {settings.reject:.0%} of {len(bad)}", warnings
    if settings.labels != "autojudge":
        found = f"no one of {tried} decided substitutions changes an answer" if tried else "no answer could be checked"
        warnings.append(f"tau leaves the share {settings.acceptable} acceptable, because {found}.")
    if not bool(train.any()):
        return None, "none", warnings
    tau = calibrate_tau(scores[train], 1.0 - settings.acceptable)
    return tau, f"quantile: leaves {settings.acceptable:.0%} acceptable", warnings


@dataclass(frozen=True)
class _Figures:
    """What the labels look like, per source and in all."""

    owners: list[Prompt]  # of each row
    columns: dict[str, Tensor]  # score, by_score, verdict, value: (rows,)
    rows: Tensor  # the rows of the outcomes
    outcomes: Outcomes | None

    def all(self) -> dict[str, Any]:
        """The figures of every source and of all together."""
        names = list(dict.fromkeys(prompt.source for prompt in self.owners))
        places = {name: at for at, name in enumerate(names)}
        source = torch.tensor([places[prompt.source] for prompt in self.owners], dtype=torch.long)
        sources = {name: self._of(source == at) for name, at in places.items()}
        return {"sources": sources, "all": self._of(source >= 0)}

    def _of(self, chosen: Tensor) -> dict[str, Any]:
        """The figures of some rows."""
        value, verdict = self.columns["value"][chosen], self.columns["verdict"][chosen]
        by_score, score = self.columns["by_score"][chosen], self.columns["score"][chosen]
        decided = verdict != UNDECIDED
        both = decided & (by_score != UNDECIDED)
        ranking = auc(score[decided], verdict[decided] == ACCEPTABLE) if bool(decided.any()) else math.nan
        labelled = value != UNDECIDED
        return {
            "prompts": 0,  # counted below, where those without substitutions are known
            "response_tokens": None,
            "substitutions": len(value),
            "acceptable": _share(value[labelled] == ACCEPTABLE),
            "undecided": int((~labelled).sum()),
            "acceptable_by_score": _share(by_score[by_score != UNDECIDED] == ACCEPTABLE),
            **self._autojudge(chosen),
            "autojudge_acceptable": _share(verdict[decided] == ACCEPTABLE),
            "agreement": _share(by_score[both] == verdict[both]),
            "score_auc": None if math.isnan(ranking) else ranking,
        }

    def _autojudge(self, chosen: Tensor) -> dict[str, Any]:
        """Counts of the completions."""
        if self.outcomes is None:
            return {
                "autojudge_tried": 0,
                "autojudge_undecided": 0,
                "flips": 0,
                "flip_rate": None,
                "control_flip_rate": None,
            }
        found = self.outcomes.select(chosen[self.rows])
        verdict = self.columns["verdict"][self.rows][chosen[self.rows]]
        tried, kept = int(found.tried.sum()), int(found.kept.sum())
        control, control_kept = int(found.control_tried.sum()), int(found.control_kept.sum())
        return {
            "autojudge_tried": len(found),
            "autojudge_undecided": int((verdict == UNDECIDED).sum()),
            "flips": int((verdict == UNACCEPTABLE).sum()),
            "flip_rate": (tried - kept) / tried if tried else None,
            "control_flip_rate": (control - control_kept) / control if control else None,
        }


def _kept_by_score(scores: Tensor, verdicts: Tensor, parts: int = 5) -> list[dict[str, float]]:
    """The share of answers kept, by AutoJudge, from the lowest fifth of the scores to the highest."""
    decided = verdicts != UNDECIDED
    if int(decided.sum()) < parts:
        return []
    order = scores[decided].argsort(stable=True)
    kept, ranked = (verdicts[decided] == ACCEPTABLE)[order], scores[decided][order]
    found = zip(ranked.tensor_split(parts), kept.tensor_split(parts), strict=True)
    return [{"from": float(s[0]), "to": float(s[-1]), "kept": float(k.double().mean())} for s, k in found]


def _rankings(substitutions: Substitutions, verdicts: Tensor) -> list[dict[str, Any]]:
    """How well every score that could be used ranks kept answers above changed ones: AUC against AutoJudge."""
    decided = verdicts != UNDECIDED
    kept = verdicts[decided] == ACCEPTABLE
    if not bool(kept.any()) or bool(kept.all()):
        return []
    names = ("length", "suffix", "reduction")
    return [
        {**dict(zip(names, variant, strict=True)), "auc": auc(substitutions.score(*variant)[decided].double(), kept)}
        for variant in substitutions.variants
    ]


def _count_prompts(figures: dict[str, Any], prompts: Sequence[Prompt], responses: Sequence[Response]) -> None:
    """Put the numbers of prompts and of their responses' tokens into the figures."""
    sources = {prompt.prompt_id: prompt.source for prompt in prompts}
    for name, entry in [*figures["sources"].items(), (None, figures["all"])]:
        entry["prompts"] = sum(name in (None, source) for source in sources.values())
        if responses:
            tokens = [len(r.answer) for r in responses if name in (None, sources.get(r.prompt_id))]
            entry["response_tokens"] = sum(tokens)


def _share(mask: Tensor) -> float | None:
    return float(mask.double().mean()) if len(mask) else None
