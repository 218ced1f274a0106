"""Progress bars: on terminals only, and silent where somebody else already shows how far the work is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

from tqdm import tqdm

Item = TypeVar("Item")

_silent: ContextVar[bool] = ContextVar("silent", default=False)


def counted(items: Iterable[Item], name: str, unit: str) -> Iterable[Item]:
    """The items, with a bar that counts them."""
    return tqdm(items, name, unit=unit, disable=True if _silent.get() else None)


@contextmanager
def silence(enabled: bool = True) -> Iterator[None]:
    """No bars inside."""
    before = _silent.set(enabled or _silent.get())
    try:
        yield
    finally:
        _silent.reset(before)
