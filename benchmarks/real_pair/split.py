"""Rows to build and tune on: `split.py GSM8K_TRAIN MMLU_VALIDATION CNN_TEST OUT`.

All are jsonl files, gzipped or not. Written are gsm8k-build and gsm8k-selection (first and second half of the rows),
mmlu-build and mmlu-selection (every other row, since MMLU's are sorted by subject), and cnn-build (the articles that
compare.sh does not test), as .jsonl.gz.
"""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path

from hf_selfjudge.evaluation.providers import TaskRequest

TESTED = 410
"""CNN/DailyMail rows that compare.sh asks for."""


def main(gsm8k: str, mmlu: str, cnn: str, out: str) -> None:
    """Write the five files."""
    problems, questions = _lines(Path(gsm8k)), _lines(Path(mmlu))
    tested = "\0".join(TaskRequest("lm_eval", f"cnn_dailymail_rouge={cnn}", TESTED).load().prompts)
    half = (len(problems) + 1) // 2
    parts = {
        "gsm8k-build": problems[:half],
        "gsm8k-selection": problems[half:],
        "mmlu-build": questions[::2],
        "mmlu-selection": questions[1::2],
        "cnn-build": [line for line in _lines(Path(cnn)) if json.loads(line)["article"].strip() not in tested],
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
    if len(sys.argv) != 5:
        sys.exit(__doc__)
    main(*sys.argv[1:])
