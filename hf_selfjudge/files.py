"""Atomic file writes (a reader sees the old file or the new one, never half of it, whenever a writer dies), a lock."""

from __future__ import annotations

import math
import os
import re
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_TEMPORARY = re.compile(r"\.(.+)\.[a-z0-9_]{8}")


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`; when the body succeeds it is flushed to disk and takes `path`'s place."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        temporary.chmod(0o644)
        temporary.replace(path)
        _flush_folder(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically."""
    write_bytes(path, text.encode("utf-8"))


def write_bytes(path: Path, data: bytes) -> None:
    """Write a file atomically."""
    with atomic_path(path) as temporary:
        temporary.write_bytes(data)


def without_nan(value: Any) -> Any:
    """A JSON value with null for what JSON has no word for: NaN and infinities."""
    if isinstance(value, dict):
        return {key: without_nan(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [without_nan(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def remove_leftovers(folder: Path, names: tuple[str, ...] | None = None) -> None:
    """Delete the temporary files that killed writers left in `folder`; with `names`, only those of these files."""
    for path in folder.glob(".*"):
        found = _TEMPORARY.fullmatch(path.name)
        if found and path.is_file() and (names is None or found[1] in names):
            path.unlink(missing_ok=True)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the file `path` as a lock on its folder's folder; the system takes it from a dead process."""
    try:
        import fcntl
    except ImportError:  # Windows: two builds in one folder are on their own there
        yield
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+", encoding="utf-8") as file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            file.seek(0)
            raise ValueError(
                f"{path.parent.parent} is in use by another run ({file.read().strip() or 'unknown process'}). Wait "
                "for it or give another --out."
            ) from None
        file.truncate(0)
        file.write(f"process {os.getpid()} on {socket.gethostname()}\n")
        file.flush()
        try:
            yield
        finally:
            file.truncate(0)


def _flush_folder(folder: Path) -> None:
    """Make a rename survive a power cut, where the system can."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError:  # Windows has no handles of folders
        return
    try:
        os.fsync(handle)
    except OSError:  # nor do some network file systems flush them
        pass
    finally:
        os.close(handle)
