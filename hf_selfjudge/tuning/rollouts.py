"""Answers by a rule that accepts at random, in parts: each is a file, and those that are there are not done again."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ..devices import usable_device
from ..evaluation.processes import made_here, worker_processes
from ..evaluation.workers import BenchSettings
from ..files import atomic_path
from .explorer import Decisions, Explorer

BATCHES = 4
"""Of a part on a GPU, where answers that are done make room for others."""
DEFAULT_LENGTH = 512
"""Longest answer where the settings name none."""


@dataclass(frozen=True)
class Part:
    """Some prompts, answered once: exactly (`share` 0), or with decisions by lot."""

    number: int
    """Which rollout; 0 is exact decoding."""
    prompts: tuple[int, ...]
    """Which prompts, the longest first."""
    path: Path
    seed: int
    share: float


@dataclass(frozen=True)
class Rollout:
    """What a part found."""

    texts: list[str]
    """The answers, in the order of the part's prompts."""
    new_tokens: list[int]
    decisions: Decisions


@dataclass(frozen=True)
class Explored:
    """What the worker processes need to know."""

    bench: BenchSettings
    rule: str
    """In the grammar of `selfjudge compare`."""
    judges: tuple[str, ...]
    prompts: Sequence[list[int]]
    longest: int
    """Most tokens of an answer."""
    fingerprint: str
    """Of everything that decides a part's content."""


def plan(explored: Explored, rollouts: int, share: float, seed: int, folder: Path) -> list[Part]:
    """The parts: every prompt once exactly, and `rollouts` times by lot."""
    order = sorted(range(len(explored.prompts)), key=lambda index: -len(explored.prompts[index]))
    size = explored.bench.batch_size * (BATCHES if explored.bench.device.startswith("cuda") else 1)
    starts = range(0, len(order), size)
    return [
        Part(
            number,
            tuple(order[start : start + size]),
            folder / f"rollout{number}-{start // size:04}.safetensors",
            (seed * 1_000_003 + number) * 1_000_003 + start,
            share if number else 0.0,
        )
        for number in range(rollouts + 1)
        for start in starts
    ]


def explore(explored: Explored, parts: Sequence[Part], progress: bool = True) -> None:
    """Compute the parts that are not there, in as many processes as the settings say."""
    from tqdm import tqdm

    due = [part for part in parts if read(part, explored.fingerprint) is None]
    total = sum(len(part.prompts) for part in due)
    with tqdm(total=total, unit="answer", desc="exploring", disable=not progress or not due) as bar:
        if due:
            usable_device(explored.bench.device)
        if due and explored.bench.workers == 1:
            worker = Worker(explored)
            for part in due:
                bar.update(worker.run(part))
        elif due:
            _explore_apart(explored, due, bar.update)


def _explore_apart(explored: Explored, due: Sequence[Part], advance: Callable[[int], Any]) -> None:
    from concurrent.futures import as_completed

    advice = "fewer --workers (another --batch-size begins anew)"
    with worker_processes(explored.bench.workers, advice, _load_worker, explored) as executor:
        for done in as_completed([executor.submit(_run, part) for part in due]):
            advance(done.result())


class Worker:
    """A loaded pair that answers parts."""

    def __init__(self, explored: Explored) -> None:
        from ..evaluation.grammar import parse_spec
        from ..evaluation.judges import Judges
        from ..evaluation.workers import Bench

        self._explored = explored
        self._bench = Bench(explored.bench, {})
        judges = Judges()
        (point,) = parse_spec(explored.rule, explored.bench.gamma).points({})
        self._rule = judges.rule(point, self._bench.pair[2])  # reads the vocabulary: once is enough
        self._judges = [judges[folder] for folder in explored.judges]

    def run(self, part: Part) -> int:
        """Answer one part and write it; returns how many answers it has."""
        explorer = Explorer(self._rule, self._judges, part.share, part.seed)
        prompts = [self._explored.prompts[index] for index in part.prompts]
        try:
            answers = self._bench.answer(prompts, explorer, self._explored.longest, begin=explorer.begin)
        except torch.OutOfMemoryError:
            raise ValueError(
                f"Not even one answer fits into the device's memory, with {self._explored.bench.workers} processes; "
                "what is finished is kept for the same prompts. Give fewer --workers, or --max-prompt-tokens."
            ) from None
        write(part, self._explored.fingerprint, Rollout(answers.texts, answers.new_tokens, explorer.decisions()))
        return len(answers)


def _load_worker(explored: Explored) -> Worker:
    from transformers.utils import logging

    torch.set_num_threads(1)  # the processes are the parallelism
    logging.disable_progress_bar()
    return Worker(explored)


def _run(part: Part) -> int:
    worker: Worker = made_here()
    return worker.run(part)


def _identity(part: Part) -> str:
    """Which answers a part has: how prompts are divided depends on the device."""
    return json.dumps([part.prompts, part.seed, part.share])


def write(part: Part, fingerprint: str, rollout: Rollout) -> None:
    """Write a part's file."""
    from safetensors.torch import save_file

    tensors = {name: column.contiguous() for name, column in rollout.decisions.tensors.items()}
    # a lone surrogate, half of a character that was cut off, has no place in a file
    texts = [text.encode(errors="replace").decode() for text in rollout.texts]
    known = {"fingerprint": fingerprint, "texts": json.dumps(texts), "new_tokens": json.dumps(rollout.new_tokens)}
    known["part"] = _identity(part)
    with atomic_path(part.path) as path:
        save_file(tensors, path, metadata=known)


def read(part: Part, fingerprint: str) -> Rollout | None:
    """A part's content; None where there is none of this fingerprint in good order."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(part.path, framework="pt") as file:
            known = file.metadata() or {}
            if known.get("fingerprint") != fingerprint or known.get("part") != _identity(part):
                return None
            decisions = Decisions.read(file.get_tensor)
        rollout = Rollout(json.loads(known["texts"]), json.loads(known["new_tokens"]), decisions)
    except (OSError, SafetensorError, ValueError, KeyError):
        return None
    return rollout if len(rollout.texts) == len(part.prompts) else None
