"""Results of a device, brought to the host one step late, so that the device never waits for the host."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

Columns = dict[str, Tensor]


@dataclass(frozen=True)
class _Arriving:
    """Columns on their way to the host."""

    rows: Tensor  # (count,): where they belong in the table
    columns: Columns  # on the host, valid once all events are over
    events: list[torch.cuda.Event]

    @classmethod
    def send(cls, rows: Tensor, columns: Columns) -> _Arriving:
        """Start the copies. On a GPU they go to pinned memory, behind the work that is already queued."""
        arriving = {name: column.to("cpu", non_blocking=True) for name, column in columns.items()}
        devices = {column.device for column in columns.values() if column.is_cuda}
        return cls(rows, arriving, [torch.cuda.current_stream(device).record_event() for device in devices])


class LateTable:
    """Columns of a table of known length, handed in by parts in any order.

    Each part is waited for only when the next one has been handed in, whose work the device then already has.
    """

    def __init__(self, length: int) -> None:
        self._length = length
        self._columns: Columns = {}
        self._arriving: _Arriving | None = None

    def add(self, rows: Tensor, columns: Columns) -> None:
        """Hand in the columns of these rows, on any device."""
        arriving = _Arriving.send(rows, columns)
        self._store()
        self._arriving = arriving

    def columns(self) -> Columns:
        """All columns, on the host; none if nothing was handed in."""
        self._store()
        return self._columns

    def _store(self) -> None:
        """Wait for the part on its way and put it into its rows."""
        if self._arriving is None:
            return
        for event in self._arriving.events:
            event.synchronize()
        for name, column in self._arriving.columns.items():
            if name not in self._columns:
                self._columns[name] = torch.empty((self._length, *column.shape[1:]), dtype=column.dtype)
            self._columns[name][self._arriving.rows] = column
        self._arriving = None
