"""The benchmarks of `eval_tasks` for `selfjudge compare`: lm_eval/TASK[=FILE][:COUNT], zero-shot, as chats.

lm_eval itself is not needed: the same YAML says where rows come from, and the same scorers score.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from . import EVAL_TASKS, scorers
from .data import documents as documents_of
from .data import spread
from .factual_consistency import check_model

Score = Callable[[Mapping[str, Any], Sequence[str]], dict[str, Any]]

SUMMARIES = ("rougeL", "rouge1", "rouge2")
SCORES: Mapping[str, tuple[Score, tuple[str, ...]]] = {
    "gsm8k": (scorers.score_gsm8k, ("exact_match",)),
    "math500": (scorers.score_math, ("exact_match",)),
    "mmlu_cot": (scorers.score_mmlu, ("acc",)),
    "cnn_dailymail_fc": (scorers.score_summary, ("fc", "fc_probability", *SUMMARIES)),
    "cnn_dailymail_rouge": (scorers.score_rouge, SUMMARIES),
    "humaneval": (scorers.score_code, ("pass_at_1",)),
    "livecodebench": (scorers.score_code, ("pass_at_1",)),
}
"""Scorer and figures of each task, the main score first."""
TASKS = tuple(SCORES)
BY_NLI = ("cnn_dailymail_fc",)
"""Tasks that an NLI model scores."""
SELECTION: Mapping[str, str] = {
    "gsm8k": "train",
    "mmlu_cot": "validation",
    "cnn_dailymail_fc": "validation",
    "cnn_dailymail_rouge": "validation",
}
"""Hub splits that points may be chosen on."""


@dataclass(frozen=True)
class Benchmark:
    """Documents of one task."""

    name: str
    source: str
    documents: Sequence[Mapping[str, Any]]
    max_new_tokens: int
    scorer: Score
    names: Sequence[str]
    """Figures, the main score first."""
    needs_model: bool = False
    chat: bool = True

    @property
    def prompts(self) -> list[str]:
        """The users' messages."""
        return [document["prompt"] for document in self.documents]

    @property
    def scoring(self) -> dict[str, Any]:
        """Which figures, by which model or version of the scorers, against which references."""
        references = json.dumps([document["reference"] for document in self.documents])
        models = sorted({document["nli_model"] for document in self.documents if "nli_model" in document})
        return {
            "figures": list(self.names),
            "references": hashlib.sha256(references.encode()).hexdigest()[:16],
            **({"nli_model": models[0]} if models and self.needs_model else {"scorers": scorers.version()}),
        }

    def check(self) -> None:
        """Refuse a scorer that is not here."""
        if "rougeL" in self.names:
            scorers.rouge("a", "a")
        if self.needs_model:
            check_model(self.documents[0]["nli_model"])

    def figures(self, answers: Sequence[tuple[int, str]]) -> list[dict[str, float]]:
        """The figures of answers to documents by their index; those of factual consistency are in [-1, 1]."""
        asked = [(self.documents[index], text) for index, text in answers]
        if self.needs_model:
            found: Sequence[Mapping[str, Any]] = scorers.score_summaries(asked)
        else:
            found = [self.scorer(document, [text]) for document, text in asked]
        return [{name: float(one[name]) for name in self.names} for one in found]


def load_task(name: str, count: int, split: str, seed: int, skip: int = 0, nli_model: str | None = None) -> Benchmark:
    """`count` documents of a task behind the first `skip` ones, in an order that the seed decides.

    Args:
        name: the task, with =FILE behind it if its rows come from a local file.
        count: how many.
        split: test, or train for rows that points are chosen on.
        seed: decides the order.
        skip: documents to leave out first.
        nli_model: what judges factual consistency; the default one if None.
    """
    task, _, file = name.partition("=")
    settings = _read_yaml(task)
    source = dict(settings["dataset_kwargs"]["source"])
    if split == "train":
        if file or task not in SELECTION:
            raise ValueError(
                f"lm_eval/{name} has no training rows to choose points on; use --select-on held-out (further rows of "
                "the same file or split), --select-on test, or --selection-tasks with a file of its own."
            )
        source["split"] = SELECTION[task]
    given = {"data_files": file or None, "nli_model": nli_model}
    found = documents_of(source, **{key: value for key, value in given.items() if value is not None})
    documents: list[dict[str, Any]] = [*found]
    if skip + count > len(documents):
        raise ValueError(
            f"lm_eval/{name} has {len(documents)} rows, and {skip + count} are asked for; give a smaller :COUNT."
        )
    random.Random(seed).shuffle(documents)
    if "spread" in source:
        documents = spread(documents, source["spread"])
    scorer, names = SCORES[task]
    longest = int(settings["generation_kwargs"]["max_gen_toks"])
    return Benchmark(
        f"lm_eval/{task}", f"lm_eval/{source['name']}", documents[skip : skip + count], longest, scorer, names,
        needs_model=task in BY_NLI,
    )  # fmt: skip


def model_folder(role: str) -> str:
    """There are no models here."""
    raise ValueError(f"lm_eval has tasks, but no {role}; give a folder, a Hub id, or playground.")


def _read_yaml(task: str) -> dict[str, Any]:
    """A task's YAML with its functions as names."""
    import yaml

    class Loader(yaml.SafeLoader):
        """Imports nothing."""

    Loader.add_constructor("!function", lambda loader, node: node.value)
    path = next(EVAL_TASKS.glob(f"*/{task}.yaml"))  # variants of a task share its folder
    found: dict[str, Any] = yaml.load(path.read_text(encoding="utf-8"), Loader)
    return found
