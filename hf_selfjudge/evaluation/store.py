"""Results on disk: one file per rule and task, found again by a fingerprint of everything that it depends on."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from ..files import write_text
from .decode import Outcome
from .providers import Task, TaskRequest

FORMAT = 1
_HASHED = (".json", ".jinja", ".safetensors", ".bin", ".model")
_WHOLE = 256 << 20
"""Larger files are told apart by size, beginning and end."""
_END = 1 << 20


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
    found = hashlib.sha256()
    for path in sorted(Path(folder).iterdir()):
        if path.suffix in _HASHED:
            found.update(f"{path.name}:{path.stat().st_size}:".encode())
            found.update(_content(path))
    return found.hexdigest()[:16]


def task_fingerprint(request: TaskRequest, task: Task) -> dict[str, Any]:
    """What was asked for, and a hash of the prompts that it gave."""
    text = json.dumps([list(task.prompts), task.chat])
    prompts = hashlib.sha256(text.encode()).hexdigest()[:16]
    return {**asdict(request), "prompts": prompts, "max_new_tokens": task.max_new_tokens}


def result_path(out: Path, folder: str, task: str, spec: str, fingerprint: dict[str, Any]) -> Path:
    """The file of one result: readable, and different for every fingerprint."""
    readable = re.sub(r"[^\w.@+-]+", "-", spec)[-60:].strip("-")
    mark = hashlib.sha256(json.dumps(fingerprint, sort_keys=True).encode()).hexdigest()[:12]
    return out / "results" / folder / task.replace("/", "-") / f"{readable}-{mark}.json"


def write_result(path: Path, fingerprint: dict[str, Any], outcome: Outcome) -> None:
    """Write one result."""
    write_text(path, json.dumps({"fingerprint": fingerprint, **asdict(outcome)}) + "\n")


def read_result(path: Path, fingerprint: dict[str, Any]) -> Outcome | None:
    """One result, or None where there is none of this fingerprint in good order."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        if found.pop("fingerprint") != fingerprint:
            return None
        outcome = Outcome(**found)
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None
    columns = [getattr(outcome, known.name) for known in fields(Outcome)]
    lengths = {len(column) for column in columns if isinstance(column, list)}
    return outcome if lengths == {fingerprint["task"]["count"]} else None


def _content(path: Path) -> bytes:
    with path.open("rb") as file:
        if path.stat().st_size <= _WHOLE:
            return hashlib.file_digest(file, "sha256").digest()
        begin = file.read(_END)
        file.seek(-_END, 2)
        return hashlib.sha256(begin + file.read(_END)).digest()
