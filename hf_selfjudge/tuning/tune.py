"""`selfjudge tune`: explore, vote, fit, and write the judge."""

from __future__ import annotations

import json
import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from ..checkers import get_checker
from ..config import ModelReference
from ..evaluation.grammar import Point, parse_spec
from ..evaluation.judges import Judges, weights_hash
from ..evaluation.plan import check_bench
from ..evaluation.store import mark, model_fingerprint
from ..evaluation.workers import BenchSettings
from ..files import locked, write_text
from ..pipeline.models import ModelSettings, Pair
from ..pipeline.prompts import load_prompts
from ..pipeline.records import Prompt
from ..pipeline.results import refuse_other_model
from ..pipeline.settings import PromptSettings
from . import earlier
from .effects import FEWEST, FOLDS, Effects, Evidence, effect_table, fit
from .explorer import SCALARS, Decisions
from .judge import make_judge
from .resemblance import resemblance
from .rollouts import DEFAULT_LENGTH, Explored, Part, Rollout, explore, plan, read
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
    earlier: tuple[str, ...] = ()
    """Folders of runs on other prompts, alike in all else, whose answers count as well."""

    def __post_init__(self) -> None:
        if not 0.0 < self.share < 1.0:
            raise ValueError(f"share is {self.share!r}, expected a share in (0, 1): chance must decide.")
        if self.rollouts < 3:
            raise ValueError(f"rollouts is {self.rollouts!r}, expected at least 3: answers are judged by the others.")


def tune(settings: TuneSettings, out: Path, progress: bool = True) -> dict[str, Any]:
    """Run (or finish) the exploration, and write the judge and `tune.json`; returns what the latter holds."""
    begun = time.perf_counter()
    bench = settings.bench
    check_bench(bench)
    point = _one_point(settings.rule, bench.gamma)
    if out.resolve() in [Path(folder).resolve() for folder in settings.earlier]:
        raise ValueError(f"--with names the run's own folder {out}, whose answers count anyway; leave it out.")
    if out.resolve() in [Path(folder).resolve() for folder in settings.judges]:
        raise ValueError(f"--out {out} is the folder of a judge in --judges, which the new one would replace.")
    refuse_other_model(out)
    if (out / "config.json").exists() and not (out / "tune.json").exists():
        raise ValueError(f"{out} holds a judge that `selfjudge tune` did not make; give another --out.")
    longest = bench.max_new_tokens or DEFAULT_LENGTH
    names = ModelSettings(target=bench.target, draft=bench.draft)
    pair = Pair(names)
    known = Judges()
    rule = known.identity(point)
    judges = _linear_judges(settings.judges, known)
    known.check_sizes(pair.hidden_size)
    prompts = load_prompts(settings.prompts, pair.tokenizer, pair.context, longest).prompts
    located = replace(bench, target=names.location("target"), draft=names.location("draft"))
    tokens = [prompt.tokens for prompt in prompts]
    decides = {name: getattr(bench, name) for name in ("gamma", "mode", "dtype", "batch_size", "max_new_tokens")}
    models = [model_fingerprint(names.location(role)) for role in ("target", "draft")]
    hashes = [*map(weights_hash, judges)]
    fingerprint = mark([decides, models, [rule, *hashes, settings.share, settings.seed], tokens])
    conditions = {
        **{name: getattr(bench, name) for name in ("gamma", "mode", "dtype", "max_new_tokens")},
        "models": models,
        "judges": hashes,
        "rule": rule,
        "share": settings.share,
    }
    others = [earlier.read(Path(folder), conditions) for folder in settings.earlier]
    marks = [*map(mark, tokens)]
    earlier.check_apart(others, fingerprint, marks, out)
    _check_enough(len(prompts), settings.rollouts, sum(run.counts["answers"] for run in others))
    explored = Explored(located, settings.rule, settings.judges, tokens, longest, fingerprint)
    parts = plan(explored, settings.rollouts, settings.share, settings.seed, out / "rollouts" / fingerprint)
    with locked(out / "rollouts" / "lock"):
        explore(explored, parts, progress)
    seconds = time.perf_counter() - begun
    found = {part: _read(part, fingerprint) for part in parts}
    mine = earlier.Run(*collect(prompts, found, settings.share, _encoder(pair.tokenizer)), [fingerprint], marks, out)
    evidence, counts, *_ = run = earlier.join([*others, mine])
    effects, table = fit(evidence)
    earlier.write(run, conditions)
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
        pair.hidden_size,
        target=ModelReference(names.name("target")),
        draft=ModelReference(names.name("draft")),
        labels=_provenance(settings, counts["sources"]),
        metrics=_metrics(figures),
    )
    figures["thresholds"] = judge.config.thresholds
    judge.save_pretrained(out)
    write_text(out / "tune.json", json.dumps(figures, indent=1) + "\n")
    return figures


def _read(part: Part, fingerprint: str) -> Rollout:
    rollout = read(part, fingerprint)
    if rollout is None:
        raise ValueError(f"{part.path} was there and is gone, or was overwritten; run the same command again.")
    return rollout


def _one_point(rule: str, gamma: int) -> Point:
    spec = parse_spec(rule, gamma)
    points = [] if spec.swept_judges else spec.points({})
    if len(points) != 1:
        raise ValueError(f"rule is {rule!r}, expected one rule: no sweep, no list of values.")
    return points[0]


def _check_enough(prompts: int, rollouts: int, others: int) -> None:
    """Refuse, before exploring, what would leave too little to fit on."""
    answers = prompts * rollouts
    held_out = -(-prompts // FOLDS) * rollouts  # of the largest fold
    if answers - held_out + others * (FOLDS - 1) // FOLDS < FEWEST:
        raise ValueError(
            f"{prompts} prompts with {rollouts} rollouts make {answers} answers, a fifth of them held out; expected at "
            f"least {FEWEST} others. Give more prompts."
        )


def collect(
    prompts: Sequence[Prompt], found: dict[Part, Rollout], share: float, encode: Callable[[str], list[int]]
) -> tuple[Evidence, dict[str, Any]]:
    """What became of the explored answers, and figures about them.

    Args:
        prompts: those that were answered.
        found: the answers.
        share: of the decisions, those that were taken.
        encode: turns a text into tokens.
    """
    texts = {
        (index, part.number): text
        for part, rollout in found.items()
        for index, text in zip(part.prompts, rollout.texts, strict=True)
    }
    numbers = sorted({number for _, number in texts})
    votes = {index: _votes(prompt, [texts[index, n] for n in numbers]) for index, prompt in enumerate(prompts)}
    keys: list[tuple[int, int]] = []
    tables: list[Decisions] = []
    for part, rollout in found.items():
        if part.number:
            decisions = rollout.decisions
            tables.append(replace(decisions, sequences=decisions.sequences + len(keys)))
            keys += [(index, part.number) for index in part.prompts]
    tokens = {key: encode(text) for key, text in texts.items()}
    kept = torch.tensor([_number(votes[index][numbers.index(number)]) for index, number in keys])
    alike = resemblance([tokens[key] for key in keys], [tokens[index, 0] for index, _ in keys])
    evidence = Evidence(kept, alike, torch.tensor([index for index, _ in keys]), Decisions.join(tables), share)
    counts = {
        "prompts": len(prompts),
        "sources": dict(Counter(prompt.source for prompt in prompts)),
        "answers": len(keys),
        "decisions": len(evidence.decisions),
        "new_tokens": sum(sum(rollout.new_tokens) for rollout in found.values()),
        "resemblance": float(alike.mean()),
        "voted": int((~kept.isnan()).sum()),
        "kept": _mean([vote for vote in kept.tolist() if not math.isnan(vote)]),
        "exact_voted": sum(found[0] is not None for found in votes.values()),
        "exact_kept": _mean([float(found[0]) for found in votes.values() if found[0] is not None]),
    }
    return evidence, counts


def _votes(prompt: Prompt, texts: Sequence[str]) -> list[bool | None]:
    """Whether each answer is what most of the prompt's other answers say; None where nobody can tell."""
    if prompt.checker is None:
        return [None] * len(texts)
    checker = get_checker(prompt.checker)
    return vote([checker.outcome(text, prompt.reference) for text in texts], checker)


def _number(voted: bool | None) -> float:
    return math.nan if voted is None else float(voted)


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _encoder(tokenizer: Any) -> Callable[[str], list[int]]:
    return lambda text: list(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])


def _linear_judges(folders: Sequence[str], judges: Judges) -> list[Any]:
    for folder in folders:
        config = judges[folder].config
        if config.hidden_units:
            raise ValueError(
                f"The judge {folder} has hidden layers; only linear judges can be weighed: fit a logistic."
            )
    return [judges[folder] for folder in folders]


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
        "with": list(settings.earlier),
        "rule": settings.rule,
        "rollouts": settings.rollouts,
        "share": settings.share,
        "seed": settings.seed,
    }


def _provenance(settings: TuneSettings, sources: dict[str, int]) -> dict[str, Any]:
    """What the judge's config says of how it came about."""
    kept = ("gamma", "dtype", "max_new_tokens", "rule", "rollouts", "share")
    return {
        "labels": "outcomes in the decoding loop",
        "judges": ", ".join(Path(folder).name for folder in settings.judges),
        "prompts": ", ".join(f"{source} {count}" for source, count in sources.items()),
        **{name: value for name, value in _described(settings).items() if name in kept},
    }


def _metrics(figures: dict[str, Any]) -> dict[str, Any]:
    """What the judge's config says of how good it is."""
    found = {"answers": figures["answers"], "decisions": figures["decisions"]}
    for name, words in (("resemblance", "resemblance to exact decoding"), ("kept", "kept answers")):
        parts = [part for part in figures["effects"] if part[name] is not None]
        if parts:
            values = ", ".join(f"{part[name]:+.1f} ± {part[f'{name}_error']:.1f}" for part in parts)
            found[f"points of {words} that accepting changes, from the costliest fifth to the cheapest"] = values
    return found


def _inputs(effects: Effects, evidence: Evidence, judges: Sequence[str]) -> list[dict[str, Any]]:
    """Of each input: what a spread of it changes in outcome and tokens, and the effect along it, fifth by fifth."""
    names = [*(f"judge:{Path(folder).name}" for folder in judges), *SCALARS, "(all)"]
    found = []
    for at, name in enumerate(names):
        entry: dict[str, Any] = {"input": name, "cost": float(effects.cost[at]), "gain": float(effects.gain[at])}
        if at < evidence.decisions.inputs.shape[1]:
            entry["effects"] = effect_table(evidence.decisions.inputs[:, at].double(), evidence)
        found.append(entry)
    return found
