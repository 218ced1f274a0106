"""Rows to build on and rows to choose points on: `split.py GSM8K_TRAIN MMLU_VALIDATION OUT`.

Both are jsonl files, gzipped or not. Written are gsm8k-build and gsm8k-selection (first and second half of the rows),
mmlu-build and mmlu-selection (every other row, since MMLU's are sorted by subject), as .jsonl.gz.
"""

from __future__ import annotations

import gzip
import sys
from pathlib import Path


def main(gsm8k: str, mmlu: str, out: str) -> None:
    """Write the four files."""
    problems, questions = _lines(Path(gsm8k)), _lines(Path(mmlu))
    half = (len(problems) + 1) // 2
    parts = {
        "gsm8k-build": problems[:half],
        "gsm8k-selection": problems[half:],
        "mmlu-build": questions[::2],
        "mmlu-selection": questions[1::2],
    }
    Path(out).mkdir(parents=True, exist_ok=True)
    for name, lines in parts.items():
        text = "".join(f"{line}\n" for line in lines).encode()
        (Path(out) / f"{name}.jsonl.gz").write_bytes(gzip.compress(text, mtime=0))


def _lines(path: Path) -> list[str]:
    data = path.read_bytes()
    text = gzip.decompress(data) if path.suffix == ".gz" else data
    return [line for line in text.decode().split("\n") if line.strip()]  # rows may hold other line separators


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    main(*sys.argv[1:])
