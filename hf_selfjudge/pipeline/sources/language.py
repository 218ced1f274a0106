"""Where prompts come from: the language of `--prompts`, and the presets of presets.yaml.

    gsm8k:500                            a preset
    gsm8k=train.jsonl:500                the same columns, from a local file
    livecodebench@fold0:220              all but fold 0 of a preset without a training split (@held0: only fold 0)
    playground:400                       the embedded world, spread over its tasks; playground/news:100 for one of them
    my.jsonl:200                         a file: .jsonl, .json, .csv or .parquet, the first two also gzipped
    org/name?config=main&split=train&prompt=question&checker=math&reference=answer:500
                                         any dataset on the Hub, with a mapping; files take one too

In a mapping `prompt` is a column's name or a Jinja template, `reference` and `filter` are a column's name or a Jinja
expression; %26 stands for & in them. Without `prompt` the column is guessed. This module only reads the words,
`dataset_rows` reads the data. It imports neither torch nor datasets, so that --help answers at once.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import unquote

PRESETS = Path(__file__).with_name("presets.yaml")
KINDS = {".jsonl": "json", ".json": "json", ".csv": "csv", ".parquet": "parquet"}
"""File endings and the loader of `datasets` for them."""
GZIPPED = frozenset({"json", "csv"})
PLAYGROUND = "playground"
MAPPING = ("config", "split", "revision", "prompt", "checker", "reference", "filter")
HUB_ONLY = ("config", "split", "revision")
HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
FOLD = re.compile(r"(?P<name>.*)@(?P<part>fold|held)(?P<fold>\d+)")


@dataclass(frozen=True)
class Preset:
    """How a dataset's rows become prompts. The fields are explained in presets.yaml."""

    about: str = ""
    dataset: str | None = None
    config: str | None = None
    split: str = "train"
    revision: str | None = None
    files: tuple[str, ...] = ()
    prompt: str | None = None
    checker: str | None = None
    reference: str | None = None
    filter: str | None = None
    optional: tuple[str, ...] = ()
    folds: int | None = None
    example: Mapping[str, Any] | None = None

    @classmethod
    def from_dict(cls, name: str, entry: Mapping[str, Any]) -> Preset:
        """The preset of a YAML entry; unknown keys are refused."""
        known = [key.name for key in fields(cls)]
        unknown = sorted(set(entry) - set(known))
        if unknown or not entry.get("dataset") or not entry.get("prompt"):
            raise ValueError(
                f"preset {name!r} has the keys {sorted(entry)}; expected `dataset`, `prompt` and some of {known}."
            )
        lists = {key: tuple(entry[key]) for key in ("files", "optional") if key in entry}
        return cls(**{**entry, **lists})


@dataclass(frozen=True)
class Source:
    """One part of the mixture, understood but not read."""

    spec: str
    """As the user wrote it."""
    name: str
    """As records and reports call it."""
    count: int | None
    """How many prompts; all of them if None."""
    preset: Preset
    """How its rows are read."""
    file: Path | None = None
    """The local file its rows come from, if it is one."""
    task: str | None = None
    """The playground's task, if it is one."""
    fold: int | None = None
    """The fold left out, or kept alone if `held`."""
    held: bool = False

    @property
    def place(self) -> str:
        """Where its rows lie, in words."""
        preset = self.preset
        if self.file is not None:
            return str(self.file)
        part = "its files" if preset.files else f"split {preset.split}"
        return f"the Hub dataset {preset.dataset} ({f'config {preset.config}, ' if preset.config else ''}{part})"


@cache
def load_presets() -> dict[str, Preset]:
    """The presets by name."""
    import yaml

    entries = yaml.safe_load(PRESETS.read_text(encoding="utf-8"))
    return {name: Preset.from_dict(name, entry) for name, entry in entries.items()}


def describe_presets() -> str:
    """The presets, one line each, for a command's help."""
    lines = {name: preset.about for name, preset in load_presets().items()}
    lines[PLAYGROUND] = "the embedded world's training split, all tasks; playground/TASK for one"
    width = max(map(len, lines))
    return "\n".join(f"  {name:<{width}}  {about}" for name, about in lines.items())


def parse_sources(specs: Sequence[str]) -> list[Source]:
    """Understand all sources, and find what is wrong with them before anything is read.

    Raises:
        ValueError: for a source that cannot be understood, with what would be.
        FileNotFoundError: for a file that is not there.
    """
    if not specs:
        raise ValueError(f"No prompts were given; expected sources such as gsm8k:500 or my.jsonl. Presets:\n"
                         f"{describe_presets()}")  # fmt: skip
    twice = sorted({spec for spec in specs if list(specs).count(spec) > 1})
    if twice:
        raise ValueError(f"The source {twice[0]} was given twice; give it once, with a larger COUNT.")
    sources = [source for spec in specs for source in parse_source(spec)]
    for source in sources:
        _check_checker(source)
    return sources


def parse_source(spec: str) -> list[Source]:
    """Understand one source; `playground` alone is one per task."""
    head, count = _split_count(spec)
    base, _, query = head.partition("?")
    mapping = _parse_mapping(spec, query)
    if base == PLAYGROUND or base.startswith(f"{PLAYGROUND}/"):
        return _playground(spec, base, count, mapping)
    name, _, file = base.partition("=")
    if file and not os.path.exists(base):
        return [_preset_source(spec, name, count, mapping, _existing_file(spec, file))]
    if _looks_like_file(base):
        path = _existing_file(spec, base)
        _refuse_hub_keys(spec, mapping)
        return [Source(spec, path.name, count, replace(Preset(), **mapping), file=path)]
    if HUB_ID.fullmatch(base):
        return [Source(spec, base, count, replace(Preset(dataset=base), **mapping))]
    return [_preset_source(spec, base, count, mapping, None)]


def _split_count(spec: str) -> tuple[str, int | None]:
    """The source and its COUNT."""
    head, colon, tail = spec.rpartition(":")
    # a colon inside a path or a template is not one before a count
    if not colon or re.search(r"[/}\s]", tail) or os.path.exists(spec):
        return spec, None
    if not (tail.isascii() and tail.isdigit() and int(tail) > 0):
        raise ValueError(f"{spec}: COUNT is {tail!r}, expected a whole number of at least 1, as in {head}:500.")
    return head, int(tail)


def _parse_mapping(spec: str, query: str) -> dict[str, Any]:
    """The part behind the question mark."""
    mapping: dict[str, Any] = {}
    for part in filter(None, query.split("&")):
        key, equals, value = part.partition("=")
        if key not in MAPPING or not equals or not value:
            raise ValueError(f"{spec}: {part!r} is no part of a mapping, expected KEY=VALUE joined by & with a KEY of "
                             f"{', '.join(MAPPING)}.")  # fmt: skip
        mapping[key] = unquote(value)
    if mapping.get("checker") == "none":
        mapping |= {"checker": None, "reference": None}
    return mapping


def _playground(spec: str, base: str, count: int | None, mapping: dict[str, Any]) -> list[Source]:
    from ...playground.world import TASKS

    task = base.removeprefix(PLAYGROUND).removeprefix("/")
    if task and task not in TASKS:
        raise ValueError(f"{spec}: no playground task {task!r}; {_nearest(task, TASKS)}there are {', '.join(TASKS)}.")
    if mapping:
        raise ValueError(f"{spec}: the playground takes no mapping; leave out everything behind the question mark.")
    if count is None:
        raise ValueError(f"{spec}: the playground is endless, so it needs a COUNT, as in {base}:400.")
    names = [task] if task else list(TASKS)
    shares = [count // len(names) + (place < count % len(names)) for place in range(len(names))]
    return [
        Source(spec, f"{PLAYGROUND}/{name}", share, Preset(checker=PLAYGROUND), task=name)
        for name, share in zip(names, shares, strict=True)
        if share
    ]


def _preset_source(spec: str, base: str, count: int | None, mapping: dict[str, Any], file: Path | None) -> Source:
    presets = load_presets()
    folded = FOLD.fullmatch(base)
    name = folded["name"] if folded else base
    if name not in presets:
        raise ValueError(
            f"{spec}: no preset {name!r}; {_nearest(name, [*presets, PLAYGROUND])}presets are "
            f"{', '.join([*presets, PLAYGROUND])}; a Hub dataset is written org/name, a file ends in "
            f"{', '.join(KINDS)}."
        )
    preset = presets[name]
    if file is not None:
        _refuse_hub_keys(spec, mapping)
    if folded is None:
        return Source(spec, name, count, replace(preset, **mapping), file)
    if preset.folds is None:
        raise ValueError(f"{spec}: {name} is not divided into folds; write {name}.")
    fold = int(folded["fold"])
    if fold >= preset.folds:
        raise ValueError(f"{spec}: there is no fold {fold}; {name} has the folds 0 to {preset.folds - 1}.")
    return Source(spec, base, count, replace(preset, **mapping), file, fold=fold, held=folded["part"] == "held")


def file_kind(path: Path) -> str | None:
    """The loader of `datasets` for a file, or None for an ending that no loader reads."""
    gzipped = path.suffix == ".gz"
    kind = KINDS.get(path.with_suffix("").suffix if gzipped else path.suffix)
    return None if gzipped and kind not in GZIPPED else kind


def _looks_like_file(base: str) -> bool:
    return base.startswith(("/", "./", "../", "~")) or file_kind(Path(base)) is not None or os.path.isfile(base)


def _existing_file(spec: str, text: str) -> Path:
    path = Path(text).expanduser()
    if not path.is_file():
        found = "is a folder" if path.is_dir() else "does not exist"
        raise FileNotFoundError(f"{spec}: {path} {found}; expected a file (relative paths start at {Path.cwd()}).")
    if file_kind(path) is None:
        raise ValueError(f"{spec}: {path.name} has no ending that is understood; expected {', '.join(KINDS)}, or "
                         ".jsonl.gz, .json.gz, .csv.gz.")  # fmt: skip
    return path


def _refuse_hub_keys(spec: str, mapping: dict[str, Any]) -> None:
    wrong = [key for key in HUB_ONLY if key in mapping]
    if wrong:
        raise ValueError(f"{spec}: {', '.join(wrong)} is for Hub datasets; a file is read as it is. Leave it out.")


def _check_checker(source: Source) -> None:
    checker = source.preset.checker
    if checker is None:
        return
    from ...checkers import CHECKERS

    if checker not in CHECKERS:
        raise ValueError(f"{source.spec}: no checker {checker!r}; {_nearest(checker, CHECKERS)}expected one of "
                         f"{', '.join(CHECKERS)}, or none.")  # fmt: skip


def _nearest(word: str, known: Sequence[str] | Mapping[str, Any]) -> str:
    """`did you mean ...? `, or nothing."""
    found = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f"did you mean {found[0]!r}? " if found else ""
