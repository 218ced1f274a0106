"""Small pieces of HTML: numbers, tables, tokens, pictures."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

DASH = "\u2013"
VISIBLE = {"\n": "\u21b5", "\t": "\u21e5", "\r": "\u240d"}


def count(value: int | None) -> str:
    """A whole number."""
    return DASH if value is None else f"{value:,}"


def percent(value: float | None) -> str:
    """A share."""
    return DASH if value is None else f"{100 * value:.1f} %"


def decimal(value: float | None, places: int = 3) -> str:
    """A number between 0 and 1, or a small one."""
    return DASH if value is None else f"{value:.{places}f}"


def rate(value: float | None) -> str:
    """So many per second, with three digits."""
    return DASH if value is None else f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def duration(seconds: float | None) -> str:
    """Seconds, minutes or hours."""
    if seconds is None:
        return DASH
    if seconds < 120:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.1f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def table(
    heads: Sequence[str], rows: Iterable[Sequence[str]], text: int = 1, classes: Sequence[str] = (), name: str = ""
) -> str:
    """A table whose first `text` columns hold words; cells are HTML, `classes` go to the rows."""
    kinds = [" class='text'" if index < text else "" for index in range(len(heads))]
    lines = ["<tr>", *(f"<th{kind}>{head}</th>" for kind, head in zip(kinds, heads, strict=True)), "</tr>"]
    for index, row in enumerate(rows):
        style = f" class='{classes[index]}'" if index < len(classes) and classes[index] else ""
        lines += [f"<tr{style}>", *(f"<td{kind}>{cell}</td>" for kind, cell in zip(kinds, row, strict=True)), "</tr>"]
    return f"<div class='scroll'><table id='{name}'>{''.join(lines)}</table></div>"


def token(text: str) -> str:
    """A token with its white space made visible."""
    shown = "".join(VISIBLE.get(character, character) for character in text)
    body = shown.strip(" ")
    left = len(shown) - len(shown.lstrip(" "))
    right = 0 if not body else len(shown) - len(shown.rstrip(" "))
    return f"<span class='token'>{chr(0x2423) * left}{escape(body)}{chr(0x2423) * right}</span>"


def context(line: dict[str, Any]) -> str:
    """A substitution within its text: what was there struck out, what the draft says in its place."""
    before, after = (" ".join(line[name].split("\n")) for name in ("before", "after"))
    swapped = (escape(line[name].replace("\n", VISIBLE["\n"])) for name in ("target", "draft"))
    return "<span class='context'>{}<s>{}</s><ins>{}</ins>{}</span>".format(escape(before), *swapped, escape(after))


def picture(light: bytes, dark: bytes, words: str) -> str:
    """A figure, embedded for light and for dark pages."""
    sources = [base64.b64encode(data).decode() for data in (light, dark)]
    return (
        "<figure><picture><source media='(prefers-color-scheme: dark)' "
        f"srcset='data:image/png;base64,{sources[1]}'>"
        f"<img alt='{escape(words)}' src='data:image/png;base64,{sources[0]}'></picture></figure>"
    )


def settings_table(groups: dict[str, Any]) -> str:
    """Settings by group, one line per setting."""
    lines = [
        (escape(group), escape(name), f"<code>{escape(_shown(value))}</code>")
        for group, entries in groups.items()
        if isinstance(entries, dict)
        for name, value in entries.items()
    ]
    return table(("group", "setting", "value"), lines, text=3, name="settings")


def _shown(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
