"""Results on disk: one file of answers per rule and task, and one of scores beside it for every way of scoring.

Answers are found again by a fingerprint of what was asked for: models, rule, decoding and prompts. Device and versions
are written down beside them (`provenance`), so that a machine without either can score and report.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import re
import zlib
from collections.abc import Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from ..files import write_bytes, write_text
from ..fingerprint import folder_fingerprint, has_weights
from .decode import Answers
from .providers import Task

FORMAT = 2


def mark(value: Any) -> str:
    """A short hash of JSON values."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:12]


def model_fingerprint(folder: str) -> str:
    """A hash of a local model's files; of a Hub model, its id and the commit that is used."""
    if not Path(folder).is_dir():
        from huggingface_hub import hf_hub_download

        try:
            config = hf_hub_download(folder, "config.json")
        except (OSError, ValueError) as error:
            raise FileNotFoundError(f"{folder} is neither a folder nor a model on the Hub: {error}") from None
        return f"{folder}@{Path(config).parent.name}"
    if not (Path(folder) / "config.json").is_file():
        raise FileNotFoundError(f"{folder} has no config.json; expected a folder written by save_pretrained.")
    return folder_fingerprint(Path(folder))


class ModelRecords:
    """Fingerprints of the models that a folder's answers came from, by role and name as the user wrote it."""

    def __init__(self, out: Path) -> None:
        self._path = out / "models.json"
        try:
            self._known: dict[str, str] = json.loads(self._path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            self._known = {}

    def fingerprint(self, role: str, name: str, folder: str) -> tuple[str, bool]:
        """A model's fingerprint, and whether it was computed from the model itself just now.

        Without its weights here, the one that was written down when answers were decoded.
        """
        known = self._known.get(f"{role} {name}")
        if known is not None and not has_weights(Path(folder)):
            return known, False
        found = model_fingerprint(folder)
        if found != known:
            self._known[f"{role} {name}"] = found
            write_text(self._path, json.dumps(self._known, indent=1) + "\n")
        return found, True


def task_fingerprint(task: Task, max_new_tokens: int | None) -> dict[str, Any]:
    """What decides the answers to a task: prompts and longest answer, wherever the prompts came from."""
    return {
        "source": task.source,
        "count": len(task.prompts),
        "prompts": mark([list(task.prompts), task.chat]),
        "max_new_tokens": max_new_tokens or task.max_new_tokens,
    }


def answers_path(out: Path, folder: str, fingerprint: dict[str, Any]) -> Path:
    """The file of one rule's answers to one task: readable, and different for every fingerprint."""
    rule, source = (_readable(text) for text in (fingerprint["rule"], fingerprint["task"]["source"]))
    return out / "results" / folder / source / f"{rule}-{mark(fingerprint)}.json.gz"


def scores_path(answers: Path, scoring: dict[str, Any]) -> Path:
    """The file of the answers' scores, beside them."""
    return answers.with_name(f"{answers.name.removesuffix('.json.gz')}.scores-{mark(scoring)}.json")


def write_answers(path: Path, fingerprint: dict[str, Any], answers: Answers) -> None:
    """Write one rule's answers to one task."""
    text = json.dumps({"fingerprint": fingerprint, **asdict(answers)}, ensure_ascii=False)
    # a lone surrogate, half of a character that was cut off, has no place in a file
    write_bytes(path, gzip.compress(text.encode(errors="replace"), mtime=0))


def read_answers(path: Path, fingerprint: dict[str, Any]) -> Answers | None:
    """One rule's answers, or None where there are none of this fingerprint in good order."""
    try:
        found = json.loads(gzip.decompress(path.read_bytes()))
        if found.pop("fingerprint") != fingerprint:
            return None
        answers = Answers(**found)
    except (OSError, EOFError, zlib.error, ValueError, TypeError, KeyError, AttributeError):
        return None
    columns = [getattr(answers, known.name) for known in fields(Answers)]
    lengths = {len(column) for column in columns if isinstance(column, list)}
    return answers if lengths == {fingerprint["task"]["count"]} else None


def write_scores(path: Path, answers: Answers, scoring: dict[str, Any], figures: Sequence[dict[str, float]]) -> None:
    """Write the figures of one rule's answers to one task."""
    names = list(dict.fromkeys(name for one in figures for name in one))
    columns = {name: [one.get(name) for one in figures] for name in names}
    document = {"answers": answers.checksum, "items": len(figures), "scoring": scoring, "figures": columns}
    write_text(path, json.dumps(document) + "\n")


def read_scores(path: Path, answers: Answers, scoring: dict[str, Any]) -> list[dict[str, float]] | None:
    """The figures of these very answers, or None where there are none in good order."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        if (found["answers"], found["items"], found["scoring"]) != (answers.checksum, len(answers), scoring):
            return None
        columns = found["figures"].items()
        if {len(values) for _, values in columns} - {len(answers)}:
            return None
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None
    return [{name: values[at] for name, values in columns if values[at] is not None} for at in range(len(answers))]


def _readable(text: str) -> str:
    return re.sub(r"[^\w.@+-]+", "-", text)[-60:].strip("-")
