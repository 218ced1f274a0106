"""From a source to its prompts: rows of the Hub, of a file or of the playground.

Files are streamed, so nothing is written beside them or in a cache. This module knows nothing of tokens, of the choice
of prompts or of their split.
"""

from __future__ import annotations

import gzip
import itertools
import json
import logging
import zlib
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from .language import PLAYGROUND, Source, file_kind
from .mapping import RawPrompt, Row, compile_mapping, content_hash, to_json

PLAYGROUND_ROUNDS = 4
"""How often the playground's list is doubled when prompts of it are skipped."""

FIRST_ROWS = 1000
"""Rows of a .jsonl file that tell its columns."""

log = logging.getLogger(__name__)


def read_prompts(source: Source, seed: int) -> Iterator[RawPrompt]:
    """All prompts of a source in its own order; the playground's, which never end, a few times more than asked for.

    Raises:
        ValueError: for columns or files that do not fit the source.
        FileNotFoundError: for a Hub dataset that cannot be had.
        ImportError: if the library `datasets` is not installed.
    """
    if source.task is not None:
        yield from _read_playground(source, seed)
        return
    with closing(_read_rows(source)) as rows:
        first = next(rows, None)
        if first is None:
            raise ValueError(f"{source.spec}: there are no rows in {source.place}; expected at least one.")
        convert = compile_mapping(source, list(first))
        for row in itertools.chain([first], rows):
            prompt = convert(row)
            if prompt is not None and _in_fold(source, prompt):
                yield prompt


def _in_fold(source: Source, prompt: RawPrompt) -> bool:
    if source.fold is None or source.preset.folds is None:
        return True
    # without the seed: what is held out for evaluation is the same for every build
    return (content_hash(prompt.text, "fold") % source.preset.folds == source.fold) == source.held


def _read_playground(source: Source, seed: int) -> Iterator[RawPrompt]:
    from ...playground import world

    task, count, done = source.task or "", source.count or 0, 0
    for _ in range(PLAYGROUND_ROUNDS):
        # a longer list starts with the shorter one
        for item in world.generate(task, "train", count, seed)[done:]:
            reference = {"task": item.task, "facts": dict(item.facts)}
            checked = world.score(item, item.response) is not None
            message = {"role": "user", "content": item.prompt}
            yield RawPrompt((message,), PLAYGROUND if checked else None, to_json(reference) if checked else None)
        done, count = count, 2 * count


def _read_rows(source: Source) -> Generator[Row]:
    preset = source.preset
    if source.file is not None and _is_jsonl(source.file):
        yield from _read_jsonl(source, source.file)
        return
    try:
        import datasets  # noqa: F401
    except ImportError as error:
        raise ImportError(
            f"{source.spec}: the library `datasets`, which reads files and Hub datasets, cannot be imported ({error}); "
            "install it with `pip install 'hf-selfjudge[train]'`."
        ) from None
    if source.file is not None:
        yield from _read_file(source, source.file)
    elif preset.files:
        for name in preset.files:
            file = _download(source, name)
            yield from (_read_jsonl if _is_jsonl(file) else _read_file)(source, file)
    else:
        yield from _read_hub(source)


def _is_jsonl(path: Path) -> bool:
    return (path.with_suffix("") if path.suffix == ".gz" else path).suffix == ".jsonl"


def _read_jsonl(source: Source, path: Path) -> Iterator[Row]:
    """One JSON object a line, without any library: the commonest kind of file is read at once, on any machine.

    Like the library, the columns are those of the first rows; what a row lacks is None.
    """
    opened = gzip.open if path.suffix == ".gz" else open
    try:
        with opened(path, "rt", encoding="utf-8-sig") as file:
            rows = (_json_row(number, line) for number, line in enumerate(file, 1) if line.strip())
            first = list(itertools.islice(rows, FIRST_ROWS))
            columns = list(dict.fromkeys(key for row in first for key in row))
            for row in itertools.chain(first, rows):
                yield {column: row.get(column) for column in columns}
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise ValueError(
            f"{source.spec}: {path} cannot be read as json: {_reason(error)}; expected rows with named columns "
            "(one JSON object a line, a list of objects, or a table)."
        ) from None


def _json_row(number: int, line: str) -> Row:
    try:
        found = json.loads(line)
    except ValueError as error:
        raise ValueError(f"line {number} is no JSON ({error})") from None
    if not isinstance(found, dict):
        raise ValueError(f"line {number} is a {type(found).__name__}")
    return found


def _read_file(source: Source, path: Path) -> Iterator[Row]:
    from datasets import load_dataset

    kind = file_kind(path) or ""
    # the loader takes names for patterns and leaves locks in its cache: give it a plain name in a folder that goes away
    with _quiet(), TemporaryDirectory() as folder:
        link = Path(folder, "rows" + "".join(path.suffixes[-2:] if path.suffix == ".gz" else path.suffix))
        link.symlink_to(path.resolve())
        try:
            options = _csv_options(path) if kind == "csv" else {}
            rows = load_dataset(kind, data_files=str(link), split="train", streaming=True, cache_dir=folder, **options)
            yield from rows
        except StopIteration:  # what the loader says to an empty file
            return
        except Exception as error:
            raise ValueError(
                f"{source.spec}: {path} cannot be read as {kind}: {_reason(error)}; expected rows with named columns "
                "(one JSON object a line, a list of objects, or a table)."
            ) from None


def _csv_options(path: Path) -> dict[str, Any]:
    """Every column as text: 007 and NA are answers too."""
    import csv

    from datasets import Features, Value

    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt", encoding="utf-8-sig", newline="") as file:
        header = next(csv.reader(file), [])
    features = Features({name: Value("string") for name in header})
    return {"features": features, "keep_default_na": False}


def _read_hub(source: Source) -> Iterator[Row]:
    from datasets import load_dataset

    preset = source.preset
    log.info("%s: loading %s", source.spec, source.place)
    with _quiet():
        try:
            rows = load_dataset(preset.dataset, preset.config, split=preset.split, revision=preset.revision)
        except Exception as error:
            raise FileNotFoundError(_unreachable(source, error)) from None
    yield from rows


def _download(source: Source, name: str) -> Path:
    from huggingface_hub import hf_hub_download

    preset = source.preset
    log.info("%s: loading %s of %s", source.spec, name, source.place)
    with _quiet():
        try:
            found = hf_hub_download(str(preset.dataset), name, repo_type="dataset", revision=preset.revision)
        except Exception as error:
            raise FileNotFoundError(_unreachable(source, error)) from None
    return Path(found)


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep the libraries' own words about an error from standing beside ours."""
    loggers = [logging.getLogger(name) for name in ("datasets", "huggingface_hub")]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.CRITICAL)
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _unreachable(source: Source, error: Exception) -> str:
    named = source.name != source.preset.dataset
    way_out = f"{source.name}=FILE" if named else "FILE?prompt=COLUMN"
    return (
        f"{source.spec}: {source.place} could not be loaded: {_reason(error)}. Check its name and the connection, or "
        f"take the rows from a local .jsonl, .json, .csv or .parquet file: {way_out}."
    )


def _reason(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return (lines[0].rstrip(".") if lines else "") or type(error).__name__
