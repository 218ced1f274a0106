"""The benchmarks of `eval_tasks` for `selfjudge compare`: lm_eval/TASK[=FILE][:COUNT], zero-shot, as chats.

lm_eval itself is not needed: the same YAML says where rows come from, and the same scorers score.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from . import EVAL_TASKS, scorers
from .data import SPLIT, load

Score = Callable[[Mapping[str, Any], Sequence[str]], dict[str, Any]]

SCORES: Mapping[str, tuple[Score, str]] = {
    "gsm8k": (scorers.score_gsm8k, "exact_match"),
    "math500": (scorers.score_math, "exact_match"),
    "mmlu_cot": (scorers.score_mmlu, "acc"),
    "cnn_dailymail_fc": (scorers.score_summary, "fc"),
    "livecodebench": (scorers.score_code, "pass_at_1"),
}
"""Scorer and main score of each task."""
TASKS = tuple(SCORES)
SELECTION: Mapping[str, str] = {"gsm8k": "train", "mmlu_cot": "validation", "cnn_dailymail_fc": "validation"}
"""Hub splits that points may be chosen on."""


@dataclass(frozen=True)
class Benchmark:
    """Documents of one task."""

    name: str
    documents: Sequence[Mapping[str, Any]]
    max_new_tokens: int
    scorer: Score
    main: str
    chat: bool = True

    @property
    def prompts(self) -> list[str]:
        """The users' messages."""
        return [document["prompt"] for document in self.documents]

    def score(self, index: int, text: str) -> float | None:
        """The task's main score of an answer; that of cnn_dailymail_fc is in [-1, 1]."""
        return float(self.scorer(self.documents[index], [text])[self.main])


def load_task(name: str, count: int, split: str, seed: int, skip: int = 0) -> Benchmark:
    """`count` documents of a task behind the first `skip` ones, in an order that the seed decides.

    Args:
        name: the task, with =FILE behind it if its rows come from a local file.
        count: how many.
        split: test, or train for rows that points are chosen on.
        seed: decides the order.
        skip: documents to leave out first.
    """
    task, _, file = name.partition("=")
    settings = _read_yaml(task)
    source = dict(settings["dataset_kwargs"]["source"])
    if split == "train":
        if file or task not in SELECTION:
            raise ValueError(
                f"lm_eval/{name} has no training rows to choose points on; use --select-on held-out (further rows of "
                "the same file or split) or --select-on test."
            )
        source["split"] = SELECTION[task]
    documents = list(load(source, **({"data_files": file} if file else {}))[SPLIT])
    if skip + count > len(documents):
        raise ValueError(
            f"lm_eval/{name} has {len(documents)} rows, and {skip + count} are asked for; give a smaller :COUNT."
        )
    random.Random(seed).shuffle(documents)
    scorer, main = SCORES[task]
    longest = int(settings["generation_kwargs"]["max_gen_toks"])
    return Benchmark(f"lm_eval/{name}", documents[skip : skip + count], longest, scorer, main)


def model_folder(role: str) -> str:
    """There are no models here."""
    raise ValueError(f"lm_eval has tasks, but no {role}; give a folder, a Hub id, or playground.")


def _read_yaml(task: str) -> dict[str, Any]:
    """A task's YAML with its functions as names."""
    import yaml

    class Loader(yaml.SafeLoader):
        """Imports nothing."""

    Loader.add_constructor("!function", lambda loader, node: node.value)
    found: dict[str, Any] = yaml.load((EVAL_TASKS / task / f"{task}.yaml").read_text(encoding="utf-8"), Loader)
    return found
