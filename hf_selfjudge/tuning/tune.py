"""`selfjudge tune`: explore, vote, fit, and write the judge."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from ..checkers import get_checker
from ..config import ModelReference
from ..evaluation.grammar import parse_spec
from ..evaluation.judges import Judges, weights_hash
from ..evaluation.store import mark, model_fingerprint
from ..evaluation.workers import BenchSettings
from ..files import write_text
from ..pipeline.models import ModelSettings, Pair
from ..pipeline.prompts import load_prompts
from ..pipeline.records import Prompt
from ..pipeline.settings import PromptSettings
from .effects import Effects, Evidence, effect_table, fit
from .explorer import SCALARS, Decisions
from .judge import make_judge
from .rollouts import Explored, Part, Rollout, explore, plan, read
from .votes import vote


@dataclass(frozen=True)
class TuneSettings:
    """What is explored, and with what."""

    bench: BenchSettings
    judges: tuple[str, ...]
    """Folders of linear judges whose opinions the new one weighs."""
    prompts: PromptSettings
    rule: str = "floor:0.02+digits"
    """What is never accepted is not explored; the new judge belongs beside this rule."""
    rollouts: int = 4
    """Explored answers of each prompt."""
    share: float = 0.5
    """Of the rule's tokens, those accepted by lot."""
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0.0 < self.share < 1.0:
            raise ValueError(f"share is {self.share!r}, expected a share in (0, 1): chance must decide.")
        if self.rollouts < 2:
            raise ValueError(f"rollouts is {self.rollouts!r}, expected at least 2, so that answers can be compared.")


def tune(settings: TuneSettings, out: Path, progress: bool = True) -> dict[str, Any]:
    """Run (or finish) the exploration, and write the judge and `tune.json`; returns what the latter holds."""
    begun = time.perf_counter()
    bench = settings.bench
    names = ModelSettings(target=bench.target, draft=bench.draft)
    pair = Pair(names)
    judges = _linear_judges(settings.judges, pair.hidden_size)
    (point,) = parse_spec(settings.rule, bench.gamma).points({})
    prompts = load_prompts(settings.prompts, pair.tokenizer, pair.context, bench.max_new_tokens or 0).prompts
    _check_prompts(prompts)
    located = replace(bench, target=names.location("target"), draft=names.location("draft"))
    tokens = [prompt.tokens for prompt in prompts]
    decides = {name: getattr(bench, name) for name in ("gamma", "mode", "dtype", "batch_size", "max_new_tokens")}
    models = [model_fingerprint(names.location(role)) for role in ("target", "draft")]
    identity = [Judges().identity(point), *map(weights_hash, judges), settings.share, settings.seed]
    fingerprint = mark([decides, models, identity, tokens])
    explored = Explored(located, settings.rule, settings.judges, tokens, fingerprint)
    parts = plan(explored, settings.rollouts, settings.share, settings.seed, out / "rollouts")
    explore(explored, parts, progress)
    seconds = time.perf_counter() - begun
    found = {part: rollout for part in parts if (rollout := read(part, fingerprint)) is not None}
    evidence, counts = collect(prompts, found, settings.share)
    effects, table = fit(evidence)
    figures = {
        "settings": _described(settings),
        "seconds": {"exploring": round(seconds, 1), "all": round(time.perf_counter() - begun, 1)},
        **counts,
        "inputs": _inputs(effects, evidence, settings.judges),
        "effects": table,
        "prior": effects.prior,
    }
    judge, figures["price"] = make_judge(
        effects,
        judges,
        evidence.decisions.inputs,
        target=ModelReference(names.name("target")),
        draft=ModelReference(names.name("draft")),
        labels=_provenance(settings, prompts),
        metrics=_metrics(figures),
    )
    figures["thresholds"] = judge.config.thresholds
    judge.save_pretrained(out)
    write_text(out / "tune.json", json.dumps(figures, indent=1) + "\n")
    return figures


def collect(prompts: Sequence[Prompt], found: dict[Part, Rollout], share: float) -> tuple[Evidence, dict[str, Any]]:
    """The explored answers whose prompts' other answers agree, and figures about them all."""
    outcomes = _outcomes(prompts, found)
    numbers = sorted({part.number for part in found})
    votes = {
        index: dict(zip(numbers, vote([outcomes[index, n] for n in numbers], _checker(prompts[index])), strict=True))
        for index in range(len(prompts))
    }
    rows: list[tuple[bool, float, int]] = []
    tables: list[Decisions] = []
    for part, rollout in found.items():
        if not part.number:
            continue
        place = torch.full((len(part.prompts),), -1)
        for at, index in enumerate(part.prompts):
            voted = votes[index][part.number]
            if voted is not None:
                place[at] = len(rows)
                rows.append((*voted, index))
        decisions = rollout.decisions
        used = place[decisions.sequences] >= 0
        tables.append(
            Decisions(
                place[decisions.sequences[used]], decisions.taken[used], decisions.gains[used], decisions.inputs[used]
            )
        )
    if not rows:
        raise ValueError(
            f"No two answers to any of {len(prompts)} prompts agree; expected some. Give prompts that the target can "
            "answer, or more max_new_tokens if the answers are cut off."
        )
    kept, others, owners = (torch.tensor(column) for column in zip(*rows, strict=True))
    evidence = Evidence(kept, others, owners, Decisions.join(tables), share)
    exact = [voted[0] for index in votes if (voted := votes[index][0]) is not None]
    counts = {
        "prompts": len(prompts),
        "answers": len(rows),
        "decisions": len(evidence.decisions),
        "new_tokens": sum(sum(rollout.new_tokens) for rollout in found.values()),
        "kept": float(kept.double().mean()),
        "exact_kept": sum(exact) / len(exact) if exact else None,
    }
    return evidence, counts


def _outcomes(prompts: Sequence[Prompt], found: dict[Part, Rollout]) -> dict[tuple[int, int], Any]:
    """What every answer comes to, by prompt and rollout."""
    return {
        (index, part.number): _checker(prompts[index]).outcome(text, prompts[index].reference)
        for part, rollout in found.items()
        for index, text in zip(part.prompts, rollout.texts, strict=True)
    }


def _checker(prompt: Prompt) -> Any:
    return get_checker(prompt.checker or "")


def _linear_judges(folders: Sequence[str], hidden_size: int) -> list[Any]:
    judges = Judges()
    for folder in folders:
        config = judges[folder].config
        if config.hidden_units:
            raise ValueError(
                f"The judge {folder} has hidden layers; only linear judges can be weighed: fit a logistic."
            )
        if config.hidden_size != hidden_size:
            raise ValueError(
                f"The judge {folder} reads states of {config.hidden_size} numbers, not {hidden_size}; "
                "give judges of this pair."
            )
    return [judges[folder] for folder in folders]


def _check_prompts(prompts: Sequence[Prompt]) -> None:
    bare = sorted({prompt.source for prompt in prompts if prompt.checker is None})
    if bare:
        raise ValueError(
            f"The prompts of {', '.join(bare)} have no checker, so that nobody can say whether two answers are the "
            "same; give prompts with one, such as gsm8k, mmlu or a file with ?checker=math."
        )


def _described(settings: TuneSettings) -> dict[str, Any]:
    bench = settings.bench
    return {
        "target": bench.target,
        "draft": bench.draft,
        "dtype": bench.dtype,
        "gamma": bench.gamma,
        "max_new_tokens": bench.max_new_tokens,
        "judges": list(settings.judges),
        "prompts": list(settings.prompts.prompts),
        "rule": settings.rule,
        "rollouts": settings.rollouts,
        "share": settings.share,
        "seed": settings.seed,
    }


def _provenance(settings: TuneSettings, prompts: Sequence[Prompt]) -> dict[str, Any]:
    """What the judge's config says of how it came about."""
    counts = Counter(prompt.source for prompt in prompts)
    kept = ("gamma", "dtype", "max_new_tokens", "rule", "rollouts", "share")
    return {
        "labels": "outcomes in the decoding loop",
        "judges": ", ".join(Path(folder).name for folder in settings.judges),
        "prompts": ", ".join(f"{source} {count}" for source, count in counts.items()),
        **{name: value for name, value in _described(settings).items() if name in kept},
    }


def _metrics(figures: dict[str, Any]) -> dict[str, Any]:
    """What the judge's config says of how good it is."""
    effects = figures["effects"]
    return {
        "answers": figures["answers"],
        "decisions": figures["decisions"],
        "points that accepting changes, from the fifth with the highest predicted cost to the lowest": ", ".join(
            f"{part['points']:+.1f}" for part in effects
        ),
        "standard error of each": round(max(part["standard_error"] for part in effects), 2),
    }


def _inputs(effects: Effects, evidence: Evidence, judges: Sequence[str]) -> list[dict[str, Any]]:
    """Of each input: what a spread of it changes in log-odds and tokens, and the effect along it, fifth by fifth."""
    names = [*(f"judge:{Path(folder).name}" for folder in judges), *SCALARS, "(all)"]
    found = []
    for at, name in enumerate(names):
        entry: dict[str, Any] = {"input": name, "cost": float(effects.cost[at]), "gain": float(effects.gain[at])}
        if at < evidence.decisions.inputs.shape[1]:
            entry["effects"] = effect_table(evidence.decisions.inputs[:, at].double(), evidence)
        found.append(entry)
    return found
