"""Command-line options from a settings class: one option per field, with its help, choices and default."""

from __future__ import annotations

import argparse
import types
import typing
from collections.abc import Callable
from dataclasses import fields
from typing import Any

NOT_SPLIT = frozenset({"prompts"})
"""Lists whose entries may contain commas."""


def add_options(parser: argparse.ArgumentParser, settings: type) -> None:
    """Add a group of options for the fields of a settings class. Those not given do not appear in the result."""
    group = parser.add_argument_group(str(settings.__doc__).strip().rstrip(".").lower())
    hints = typing.get_type_hints(settings)
    for field in fields(settings):
        kind, optional = _without_none(hints[field.name])
        help = f"{field.metadata['help']}{_shown(field.default, optional)}"
        flag = f"--{field.name.replace('_', '-')}"
        if kind is bool:
            group.add_argument(flag, action=argparse.BooleanOptionalAction, default=argparse.SUPPRESS, help=help)
            continue
        several = typing.get_origin(kind) is tuple
        one = typing.get_args(kind)[0] if several else kind
        group.add_argument(
            flag,
            type=_many(one, field.name not in NOT_SPLIT) if several else _none_or(one) if optional else one,
            action=_Collect if several else "store",
            choices=None if several else field.metadata["choices"],
            default=argparse.SUPPRESS,
            metavar=_metavar(field.name, one, field.metadata["choices"], several),
            help=help,
        )


class _Collect(argparse.Action):
    """An option that may be given several times, each time with one value or some separated by commas."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        setattr(namespace, self.dest, (*getattr(namespace, self.dest, ()), *values))


def _many(one: Callable[[str], Any], split: bool) -> Callable[[str], tuple[Any, ...]]:
    def values(text: str) -> tuple[Any, ...]:
        return tuple(one(part.strip()) for part in (text.split(",") if split else [text]) if part.strip())

    values.__name__ = f"{getattr(one, '__name__', 'value')} list"  # argparse names the type in its errors
    return values


def _none_or(one: Callable[[str], Any]) -> Callable[[str], Any]:
    def value(text: str) -> Any:
        return None if text == "none" else one(text)

    value.__name__ = getattr(one, "__name__", "value")
    return value


def _without_none(hint: Any) -> tuple[Any, bool]:
    """The type of a field, and whether it may be None."""
    if isinstance(hint, types.UnionType):
        kinds = [kind for kind in typing.get_args(hint) if kind is not type(None)]
        return kinds[0], True
    return hint, False


def _metavar(name: str, kind: Any, choices: tuple[str, ...] | None, several: bool) -> str | None:
    if choices is not None and not several:
        return None  # argparse shows the choices
    word = {int: "N", float: "X"}.get(kind, name.rsplit("_", 1)[-1].upper())
    return f"{word}[,{word}]" if several and name not in NOT_SPLIT else word


def _shown(default: Any, optional: bool) -> str:
    if default is None or default == ():
        return ""
    text = ", ".join(map(str, default)) if isinstance(default, tuple) else str(default)
    return f" (default: {text})".replace("%", "%%")
