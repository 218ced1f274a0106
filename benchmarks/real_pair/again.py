"""How far exact decoding is from itself in other runs: `python benchmarks/real_pair/again.py OUT OTHER ... FILE.json`.

OUT and OTHER are `--out` folders of `selfjudge compare` on the same tasks, in other batches or blocks. The answers
of `exact` in OTHER are set beside those in OUT: nothing is relaxed in either, what differs is rounding.
"""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path
from typing import Any

Run = dict[str, dict[str, Any]]
"""The answers to each task by what was asked: `texts`, `gamma`, `batch_size`, and which are right."""


def main() -> None:
    """Read the folders and write the file."""
    first, *others, out = map(Path, sys.argv[1:])
    base = _run(first)
    found = [_beside(base, _run(folder)) for folder in others]
    out.write_text(json.dumps({"base": _told(base), "runs": found}, indent=1) + "\n", encoding="utf-8")


def _run(out: Path) -> Run:
    """Exact decoding's answers in a folder."""
    found: Run = {}
    for path in sorted((out / "results" / "test").glob("*/exact-*.json.gz")):
        document = json.loads(gzip.decompress(path.read_bytes()))
        asked = document["fingerprint"]
        found[json.dumps(asked["task"], sort_keys=True)] = {
            "texts": document["texts"],
            "gamma": asked["gamma"],
            "batch_size": document["made_with"]["batch_size"],
            "right": _right(path),
        }
    return found


def _right(answers: Path) -> dict[str, list[float]]:
    """Each answer's score where all scores are 0 or 1, by the way they were scored, the newest last."""
    found = {}
    kept = answers.parent.glob(f"{answers.name.removesuffix('.json.gz')}.scores-*.json")
    for path in sorted(kept, key=lambda path: path.stat().st_mtime):
        scores = next(iter(json.loads(path.read_text(encoding="utf-8"))["figures"].values()))
        if set(scores) <= {0.0, 1.0}:
            found[path.name.rsplit("-", 1)[1]] = scores
    return found


def _beside(base: Run, other: Run) -> dict[str, Any]:
    """What is different in another run, over the tasks that both have."""
    counts = dict.fromkeys(("answers", "same", "right_or_wrong", "lost", "gained"), 0)
    for task in base.keys() & other.keys():
        counts["answers"] += len(base[task]["texts"])
        counts["same"] += sum(map(str.__eq__, base[task]["texts"], other[task]["texts"]))
        for scored in [name for name in base[task]["right"] if name in other[task]["right"]][-1:]:
            was, now = base[task]["right"][scored], other[task]["right"][scored]
            counts["right_or_wrong"] += len(was)
            counts["lost"] += sum(map(float.__gt__, was, now))
            counts["gained"] += sum(map(float.__lt__, was, now))
    return {**_told(other), **counts}


def _told(run: Run) -> dict[str, Any]:
    return {name: next(iter(run.values()))[name] for name in ("gamma", "batch_size")}


if __name__ == "__main__":
    main()
