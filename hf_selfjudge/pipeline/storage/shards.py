"""What a build keeps on disk: shards with a note beside each, and tables and lists as bytes.

A shard is finished if its note is there, the file is the one the note tells of, and it was made with the present
settings from the present inputs; anything else is made again. Knows nothing of models or of what the stages compute.
"""

from __future__ import annotations

import errno
import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from ...files import remove_leftovers, without_nan, write_bytes
from ..records import Prompt, Response, Table

AnyTable = TypeVar("AnyTable", bound=Table)

_OTHERS = "others"  # one key only: safetensors writes several in any order, and equal tables must be equal bytes


@dataclass(frozen=True)
class Note:
    """What is written about a shard once the shard itself is on disk."""

    sha256: str
    """Of the shard's file."""
    rows: int
    seconds: float
    """Computing and writing it took."""
    process: int
    """Rank of the process that made it."""
    made_with: str
    """Digest of the stage's settings and models."""
    inputs: dict[str, str] = field(default_factory=dict)
    """Digests of what it was made from, by name."""
    info: dict[str, Any] = field(default_factory=dict)
    """What the stage has to say about it; JSON."""


@dataclass(frozen=True)
class Piece:
    """A computed shard on its way to disk."""

    data: bytes
    rows: int
    info: dict[str, Any] = field(default_factory=dict)


class Shards:
    """The shards of one stage: `00000.safetensors`, `00001.safetensors`, ... and the notes `00000.json`, ..."""

    def __init__(self, folder: Path, suffix: str) -> None:
        self.folder = folder
        self.suffix = suffix

    def path(self, index: int) -> Path:
        """A shard's file."""
        return self.folder / f"{index:05d}.{self.suffix}"

    def note_path(self, index: int) -> Path:
        """A shard's note."""
        return self.folder / f"{index:05d}.note.json"

    def note(self, index: int) -> Note | None:
        """What is known about a shard; None if it was never finished."""
        try:
            return Note(**json.loads(self.note_path(index).read_text(encoding="utf-8")))
        except (FileNotFoundError, ValueError, TypeError):
            return None

    def notes(self) -> list[Note]:
        """The notes of all shards there are."""
        found = [self.note(int(path.name[:5])) for path in sorted(self.folder.glob("[0-9]*.note.json"))]
        return [note for note in found if note is not None]

    def problem(self, index: int, made_with: str, inputs: dict[str, str]) -> str | None:
        """Why a shard must be made (again); None if it is finished."""
        note = self.note(index)
        if note is None:
            return "missing"
        if note.made_with != made_with:
            return "made with other settings"
        if note.inputs != inputs:
            return "made from other inputs"
        if not self.path(index).is_file():
            return "missing"
        return None if digest_file(self.path(index)) == note.sha256 else "corrupted"

    def write(
        self, index: int, piece: Piece, made_with: str, inputs: dict[str, str], seconds: float = 0.0, process: int = 0
    ) -> None:
        """Write a shard, then its note; the old note goes first, so that it never tells of the new shard."""
        self.note_path(index).unlink(missing_ok=True)
        write_file(self.path(index), piece.data)
        info = without_nan(piece.info)
        note = Note(digest(piece.data), piece.rows, round(seconds, 3), process, made_with, inputs, info)
        write_file(self.note_path(index), to_json(asdict(note)))

    def drop(self) -> None:
        """Delete everything of this stage, notes first: what is left after a kill is unfinished, not wrong."""
        self.clean()
        for path in [*sorted(self.folder.glob("*.note.json")), *sorted(self.folder.glob("[0-9]*"))]:
            path.unlink(missing_ok=True)

    def clean(self) -> None:
        """Delete what killed writers left."""
        if self.folder.is_dir():
            remove_leftovers(self.folder)


# -- bytes ----------------------------------------------------------------------------------------------------------


def digest(data: bytes) -> str:
    """The sha256 of some bytes."""
    return hashlib.sha256(data).hexdigest()


def digest_file(path: Path) -> str:
    """The sha256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def digest_json(value: Any) -> str:
    """The sha256 of a JSON value."""
    return digest(json.dumps(value, sort_keys=True).encode())


def to_json(value: Any) -> bytes:
    """A JSON file."""
    return (json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode()


def write_file(path: Path, data: bytes) -> None:
    """Write a file of a build atomically; a full disk is told in one sentence with what to do."""
    try:
        write_bytes(path, data)
    except OSError as error:
        advice = "Make room" if error.errno in (errno.ENOSPC, errno.EDQUOT) else "See that it can be written"
        raise OSError(
            f"Cannot write {path} ({len(data)} bytes): {error.strerror or error}. {advice} and run the same command "
            "again: it goes on from here, what is finished is kept."
        ) from error


def table_bytes(table: Table | None) -> bytes:
    """A table as safetensors; None is a table without rows, whose columns nobody needs."""
    columns = {} if table is None else {name: c.detach().cpu().contiguous() for name, c in table.columns.items()}
    others = {} if table is None else table._others()
    return save(columns, metadata={_OTHERS: json.dumps(others, sort_keys=True)})


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors of a safetensors file, and its other fields."""
    try:
        with safe_open(path, framework="pt") as file:
            others = json.loads((file.metadata() or {}).get(_OTHERS, "{}"))
            return {name: file.get_tensor(name) for name in file.keys()}, others  # noqa: SIM118
    except SafetensorError as error:
        raise ValueError(f"{path} is not a readable safetensors file ({error}). Run its stage again.") from None


def read_table(kind: type[AnyTable], paths: Sequence[Path]) -> AnyTable | None:
    """The rows of several shards as one sorted table; None if there is no row in any."""
    parts = []
    for path in paths:
        columns, others = read_tensors(path)
        if columns and len(next(iter(columns.values()))) > 0:
            kept = {name: tuple(value) if isinstance(value, list) else value for name, value in others.items()}
            parts.append(kind.from_columns(columns, **kept))
    return kind.join(parts) if parts else None


def prompt_lines(prompts: Sequence[Prompt]) -> bytes:
    """Prompts as jsonl."""
    return _lines([asdict(prompt) for prompt in prompts])


def read_prompts(path: Path) -> list[Prompt]:
    """Prompts from jsonl."""
    return [Prompt(**json.loads(line)) for line in path.read_text(encoding="utf-8").split("\n") if line]


def response_lines(responses: Sequence[Response], texts: Sequence[str]) -> bytes:
    """Responses as jsonl; `texts` are the answers for people."""
    return _lines([{**asdict(r), "text": text} for r, text in zip(responses, texts, strict=True)])


def read_responses(path: Path) -> list[Response]:
    """Responses from jsonl."""
    found = [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]
    return [Response(line["prompt_id"], line["prompt"], line["answer"]) for line in found]


def _lines(rows: Sequence[dict[str, Any]]) -> bytes:
    text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    return text.encode("utf-8", "backslashreplace")  # half a surrogate pair becomes its JSON escape
