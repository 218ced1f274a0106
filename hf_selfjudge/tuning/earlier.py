"""What a run found, kept beside its judge, so that a later run on other prompts can count it in."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from ..files import atomic_path
from .effects import Evidence
from .explorer import Decisions

FILE = "evidence.safetensors"
_ANSWERS = ("kept", "resemblance", "prompts")


def write(
    folder: Path, evidence: Evidence, conditions: Mapping[str, Any], counts: Mapping[str, Any], runs: Sequence[str]
) -> None:
    """Write a run's evidence.

    Args:
        folder: of the judge.
        evidence: what was found.
        conditions: what another run must have in common with this one, JSON values.
        counts: figures about the answers, JSON values.
        runs: marks of the runs whose answers these are.
    """
    from safetensors.torch import save_file

    tensors = {name: getattr(evidence, name) for name in _ANSWERS} | evidence.decisions.tensors
    known = {"conditions": json.dumps(conditions), "counts": json.dumps(counts), "runs": json.dumps(list(runs))}
    with atomic_path(folder / FILE) as path:
        save_file({name: column.contiguous() for name, column in tensors.items()}, path, metadata=known)


def read(folder: Path, conditions: Mapping[str, Any]) -> tuple[Evidence, dict[str, Any], list[str]]:
    """The evidence and the counts of an earlier run, and the marks of the runs in it.

    Raises:
        ValueError: if there is none, or if it was found under other conditions.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(folder / FILE, framework="pt") as file:
            known = file.metadata() or {}
            answers = {name: file.get_tensor(name) for name in _ANSWERS}
            decisions = Decisions.read(file.get_tensor)
        theirs, counts, runs = (json.loads(known[name]) for name in ("conditions", "counts", "runs"))
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
    return Evidence(**answers, decisions=decisions, share=float(mine["share"])), counts, runs


def check_apart(runs: Sequence[tuple[str, Sequence[str]]]) -> None:
    """Refuse folders that hold the same run's answers: each is counted once.

    Args:
        runs: folders, and the marks of the runs in each.
    """
    owner: dict[str, str] = {}
    for folder, marks in runs:
        for mark in marks:
            if mark in owner:
                raise ValueError(
                    f"{folder} and {owner[mark]} hold answers of the same run, which would count twice; name each run "
                    "once (a folder made by --with holds the other's answers too)."
                )
            owner[mark] = folder


def join(runs: Sequence[tuple[Evidence, Mapping[str, Any]]]) -> tuple[Evidence, dict[str, Any]]:
    """All answers of several runs, and the counts of all; prompts of different runs are different prompts."""
    prompts, tables, answers, asked = [], [], 0, 0
    for part, _ in runs:
        prompts.append(part.prompts + asked)
        tables.append(replace(part.decisions, sequences=part.decisions.sequences + answers))
        asked, answers = int(prompts[-1].max()) + 1, answers + len(part.kept)
    kept, resemblance = (torch.cat([getattr(part, name) for part, _ in runs]) for name in ("kept", "resemblance"))
    evidence = Evidence(kept, resemblance, torch.cat(prompts), Decisions.join(tables), runs[0][0].share)
    return evidence, _total([counts for _, counts in runs])


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
