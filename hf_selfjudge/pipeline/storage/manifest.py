"""The manifest of a build: what it was asked to do, with what, and what came out. One JSON file, written atomically.

Only the first process writes it. It never decides whether a shard is finished, the shards' notes do; it says with which
settings a stage's results were made, so that others are refused instead of mixed.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from .shards import to_json, write_file

FORMAT_VERSION = 1
PACKAGES = ("hf-selfjudge", "torch", "transformers", "tokenizers", "safetensors", "datasets")


class Manifest:
    """`manifest.json`, as it is on disk."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.data: dict[str, Any] = {"format_version": FORMAT_VERSION, "settings": {}, "models": {}, "stages": {}}
        if path.exists():
            self.data = _read(path)

    @property
    def settings(self) -> dict[str, dict[str, Any]]:
        """The settings of the whole build as last asked for, by group."""
        return self.data["settings"]

    def made_with(self, stage: str) -> dict[str, Any]:
        """Settings and models of a stage's results, as they were recorded."""
        return self.data["stages"].get(stage, {}).get("made_with", {})

    def record(self, *path: str, value: Any) -> None:
        """Set an entry, and write the file if that changes it."""
        changed = json.loads(json.dumps(self.data))
        place = changed
        for name in path[:-1]:
            place = place.setdefault(name, {})
        place[path[-1]] = value
        if changed != self.data:
            self.data = changed
            write_file(self.path, to_json(self.data))

    def forget(self, stages: Iterable[str]) -> None:
        """Drop the entries of stages whose results were dropped."""
        self.record("stages", value={name: entry for name, entry in self.data["stages"].items() if name not in stages})


def differences(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """What differs between two flat or nested mappings, as `name: old -> new`."""
    found = []
    for name in sorted(old.keys() | new.keys()):
        before, after = old.get(name), new.get(name)
        if isinstance(before, dict) and isinstance(after, dict):
            found += [f"{name}.{line}" for line in differences(before, after)]
        elif before != after:
            found.append(f"{name}: {_show(before)} -> {_show(after)}")
    return found


def package_versions() -> dict[str, str]:
    """Versions of what results may depend on."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _show(value: Any) -> str:
    if isinstance(value, list):
        return ",".join(map(str, value)) or "nothing"
    return "not set" if value is None else str(value)


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(
            f"{path} is not valid JSON ({error}). Restore it or delete it: finished shards are recognised without it."
        ) from None
    if not isinstance(found, dict) or found.get("format_version") != FORMAT_VERSION:
        raise ValueError(
            f"{path} is not a manifest of format {FORMAT_VERSION}, the one this version of hf_selfjudge reads. Give "
            "another --out."
        )
    return found
