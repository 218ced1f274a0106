"""What a run found, kept beside its judge, so that a later run on other prompts can count it in."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch

from ..files import atomic_path
from .effects import Evidence
from .explorer import Decisions

FILE = "evidence.safetensors"
_ANSWERS = ("kept", "resemblance", "prompts")


class Run(NamedTuple):
    """What was found by one run, or by several that count together."""

    evidence: Evidence
    counts: dict[str, Any]
    """Figures about the answers, JSON values."""
    marks: list[str]
    """Of the runs whose answers these are."""
    asked: list[str]
    """Marks of the prompts, in the order of their numbers."""
    folder: Path


def write(run: Run, conditions: Mapping[str, Any]) -> None:
    """Write what was found into the run's folder; `conditions` (JSON values) are what another one must share."""
    from safetensors.torch import save_file

    tensors = {name: getattr(run.evidence, name) for name in _ANSWERS} | run.evidence.decisions.tensors
    told = {"conditions": conditions, "counts": run.counts, "runs": run.marks, "asked": run.asked}
    known = {name: json.dumps(value) for name, value in told.items()}
    folder = run.folder
    with atomic_path(folder / FILE) as path:
        save_file({name: column.contiguous() for name, column in tensors.items()}, path, metadata=known)


def read(folder: Path, conditions: Mapping[str, Any]) -> Run:
    """What an earlier run found.

    Raises:
        ValueError: if there is none, or if it was found under other conditions.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(folder / FILE, framework="pt") as file:
            known = file.metadata() or {}
            answers = {name: file.get_tensor(name) for name in _ANSWERS}
            decisions = Decisions.read(file.get_tensor)
        theirs, counts, runs, asked = (json.loads(known[name]) for name in ("conditions", "counts", "runs", "asked"))
    except (OSError, SafetensorError, ValueError, KeyError) as error:
        raise ValueError(
            f"{folder} holds no evidence ({FILE}) of an earlier `selfjudge tune`: {error}. Name such a run's --out."
        ) from None
    mine = json.loads(json.dumps(conditions))
    for name, value in mine.items():
        if theirs.get(name) != value:
            raise ValueError(
                f"{folder} was explored with {name} = {theirs.get(name)!r}, this run has {value!r}; only runs alike "
                f"in {', '.join(mine)} can be counted together."
            )
    return Run(Evidence(**answers, decisions=decisions, share=float(mine["share"])), counts, runs, asked, folder)


def check_apart(others: Sequence[Run], mark: str, asked: Sequence[str], out: Path) -> None:
    """Refuse folders that hold the same run's answers, or those of the run `mark` in `out`: each is counted once.

    Nor may runs share prompts: their answers would be on both sides of a fold.
    """
    owner: dict[str, Path] = {}
    for folder, marks in [*((run.folder, run.marks) for run in others), (out, [mark])]:
        for one in marks:
            if one in owner:
                raise ValueError(
                    f"{folder} and {owner[one]} hold answers of the same run, which would count twice; name each run "
                    "once (a folder made by --with holds the other's answers too)."
                )
            owner[one] = folder
    seen: dict[str, Path] = {}
    for folder, prompts in [*((run.folder, run.asked) for run in others), (out, asked)]:
        shared = [seen[prompt] for prompt in prompts if prompt in seen]
        if shared:
            raise ValueError(
                f"{len(shared)} prompts of {folder} are in {shared[0]} too and would count twice; leave them out (the "
                "earlier run counts its own)."
            )
        seen |= dict.fromkeys(prompts, folder)


def join(runs: Sequence[Run]) -> Run:
    """All answers of several runs, in the last one's folder; prompts of different runs are different prompts."""
    parts = [run.evidence for run in runs]
    prompts, tables, answers, asked = [], [], 0, 0
    for run, part in zip(runs, parts, strict=True):
        prompts.append(part.prompts + asked)
        tables.append(replace(part.decisions, sequences=part.decisions.sequences + answers))
        asked, answers = asked + len(run.asked), answers + len(part.kept)
    kept, resemblance = (torch.cat([getattr(part, name) for part in parts]) for name in ("kept", "resemblance"))
    evidence = Evidence(kept, resemblance, torch.cat(prompts), Decisions.join(tables), parts[0].share)
    marks = [mark for run in runs for mark in run.marks]
    known = [mark for run in runs for mark in run.asked]
    return Run(evidence, _total([run.counts for run in runs]), marks, known, runs[-1].folder)


def _total(counts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Figures about the answers of several runs together."""
    sources: Counter[str] = Counter()
    for one in counts:
        sources.update(one["sources"])
    found: dict[str, Any] = {"prompts": sum(sources.values()), "sources": dict(sources)}
    sums = ("answers", "decisions", "new_tokens", "voted", "exact_voted")
    found |= {name: sum(one[name] for one in counts) for name in sums}
    for name, by in (("resemblance", "answers"), ("kept", "voted"), ("exact_kept", "exact_voted")):
        known = [one for one in counts if one[by]]
        found[name] = sum(one[name] * one[by] for one in known) / found[by] if known else None
    return found
