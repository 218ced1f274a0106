"""What tells a model in a local folder from every other: for results that must not be taken for another model's."""

from __future__ import annotations

import hashlib
from pathlib import Path

SMALL = ("*.json", "*.jinja", "*.txt", "*.model")
"""Files compared by content."""
WEIGHTS = ("*.safetensors", "*.bin", "*.pt", "*.gguf")
"""Files compared by size and samples."""
_SAMPLES, _SAMPLE_BYTES = 1024, 4096


def folder_fingerprint(folder: Path) -> str:
    """Identifies a model: the content of its small files, names, sizes and samples of its weights.

    Training changes long stretches of weights, so samples spread over a file tell two checkpoints apart in no time,
    also where only some layers were trained.
    """
    found = hashlib.sha256()
    for path in _files(folder, SMALL):
        found.update(f"{path.name}\0".encode() + hashlib.sha256(path.read_bytes()).digest())
    for path in _files(folder, WEIGHTS):
        size = path.stat().st_size
        found.update(f"{path.name}\0{size}\0".encode())
        step = max(_SAMPLE_BYTES, size // _SAMPLES)  # a small file is read whole
        with path.open("rb") as file:
            for start in range(0, size, step):
                file.seek(start)
                found.update(file.read(_SAMPLE_BYTES))
    return f"files {found.hexdigest()[:16]}"


def has_weights(folder: Path) -> bool:
    """Whether a model's weights lie in this folder."""
    return bool(_files(folder, WEIGHTS))


def _files(folder: Path, patterns: tuple[str, ...]) -> list[Path]:
    return [path for pattern in patterns for path in sorted(folder.glob(pattern))]
