"""Documents of our tasks: rows of the Hub or of a local file, written as prompts by what the task's YAML says.

A task's `dataset_kwargs` hold `source`, in the words of pipeline/sources/presets.yaml: dataset, config, split, prompt,
reference, ... A document has `prompt`, `reference` (JSON) and the columns named in `columns`; `spread` names one whose
values every stretch of documents has in proportion. lm_eval hands the user's `--metadata`, among other things, to
`load` as keywords.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

SPLIT = "test"
"""The one split that documents are given as."""
NLI_MODEL = "microsoft/deberta-large-mnli"
"""What judges factual consistency unless the user names another."""


def load(source: Mapping[str, Any], **metadata: Any) -> dict[str, Any]:
    """The documents of a task, as lm_eval's `custom_dataset` wants them.

    Args:
        source: where rows come from and how they become prompts; with `preset`, what differs from that one.
        metadata: of what the user gave, `data_files` (a file, or a file by preset or dataset), `fold` and `nli_model`
            are read; the rest is for others.

    Raises:
        ValueError: for rows, columns or settings that do not fit.
        FileNotFoundError: for a file or dataset that is not there.
    """
    from datasets import Dataset

    found = documents(source, **metadata)
    if "spread" in source:
        found = spread(found, source["spread"])  # so that the first few, of --limit, are of all kinds
    return {SPLIT: Dataset.from_list(found)}


def documents(source: Mapping[str, Any], **metadata: Any) -> list[dict[str, Any]]:
    """The documents of a task as a list; arguments as of `load`."""
    if "playground" in source:
        return _playground(source["playground"], metadata)
    extra = {"nli_model": str(metadata.get("nli_model", NLI_MODEL))} if source.get("nli") else {}
    rows = [{**row, **extra} for row in _rows(source, metadata)]
    if not rows:
        raise ValueError(f"{source.get('name')}: no rows are left; take another file, split or fold.")
    return rows


def spread(documents: Sequence[dict[str, Any]], column: str) -> list[dict[str, Any]]:
    """The documents in an order in which every stretch has a column's values in proportion, to within about one."""
    sizes = Counter(document[column] for document in documents)
    seen: Counter[Any] = Counter()
    places = []
    for document in documents:
        value = document[column]
        places.append((seen[value] + 0.5) / sizes[value])  # the n-th of m documents belongs at (n - 1/2) / m
        seen[value] += 1
    return [documents[index] for index in sorted(range(len(documents)), key=lambda index: places[index])]


def data_file(name: str, given: Any) -> Path | None:
    """The local file of a task out of `data_files`; None if its rows come from the Hub."""
    if isinstance(given, Mapping):
        given = given.get(name)
    if given is None:
        return None
    path = Path(str(given)).expanduser()
    if not path.is_file():
        raise FileNotFoundError(
            f"data_files names {path} for {name}, which is no file; expected a .jsonl, .json, .csv or .parquet file "
            "(.jsonl.gz too)."
        )
    return path


def _rows(source: Mapping[str, Any], metadata: Mapping[str, Any]) -> list[dict[str, Any]]:
    from ..pipeline.sources.dataset_rows import read_prompts
    from ..pipeline.sources.language import Preset, Source, file_kind, load_presets

    settings = dict(source)
    name = str(settings.pop("name"))
    columns: Sequence[str] = settings.pop("columns", ())
    for key in ("nli", "spread"):
        settings.pop(key, None)
    base = load_presets()[settings.pop("preset")] if "preset" in settings else Preset()
    preset = replace(base, **settings)
    file = data_file(name, metadata.get("data_files"))
    if file is not None and file_kind(file) is None:
        raise ValueError(
            f"data_files names {file}, whose ending says no format; expected .jsonl, .json, .csv, .parquet."
        )
    fold = _fold(name, preset.folds, metadata.get("fold"))
    found = read_prompts(Source(name, name, None, preset, file=file, fold=fold, held=True), seed=0)
    rows = []
    for prompt in found:
        reference = prompt.reference
        rows.append(
            {
                "prompt": prompt.text,
                "reference": json.dumps(reference, ensure_ascii=False),
                **{column: str(reference[column]) for column in columns},
            }
        )
    return rows


def _fold(name: str, folds: int | None, given: Any) -> int | None:
    """The part that is evaluated; the whole if none was asked for, or if the task has no folds."""
    if folds is None or given is None:
        return None
    if not str(given).isdecimal() or int(given) >= folds:
        raise ValueError(f"fold is {given!r}, but {name} has the folds 0 to {folds - 1}.")
    return int(given)


def _playground(task: str, metadata: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Held-out items of the embedded world: `items` of them (default 200), of `seed`."""
    from ..playground.world import generate

    counts = {"items": 200, "seed": 0, **metadata}
    for name, least in (("items", 1), ("seed", 0)):
        if not str(counts[name]).isdecimal() or int(counts[name]) < least:
            raise ValueError(f"{name} is {counts[name]!r} in --metadata, expected an int of at least {least}.")
    items = generate(task, "test", int(counts["items"]), int(counts["seed"]))
    return [
        {"prompt": item.prompt, "reference": json.dumps({"task": item.task, "facts": dict(item.facts)})}
        for item in items
    ]
