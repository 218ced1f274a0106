"""Columns handed in by parts."""

import torch

from hf_selfjudge.pipeline.packing.fetching import LateTable


def test_parts_land_in_their_rows():
    scores, states = torch.randn(9), torch.randn(9, 4).bfloat16()
    table = LateTable(9)
    for rows in (torch.tensor([7, 0, 3]), torch.tensor([8]), torch.tensor([1, 2, 4, 5, 6])):
        table.add(rows, {"score": scores[rows], "state": states[rows]})
    found = table.columns()
    assert torch.equal(found["score"], scores)
    assert torch.equal(found["state"], states)


def test_without_parts_there_are_no_columns():
    assert LateTable(0).columns() == {}


def test_a_part_is_waited_for_when_the_next_is_handed_in(monkeypatch):
    table, stored = LateTable(3), []
    real = LateTable._store
    monkeypatch.setattr(LateTable, "_store", lambda self: (stored.append(self._arriving), real(self)))
    for row in range(3):
        table.add(torch.tensor([row]), {"x": torch.tensor([row])})
        assert (stored[-1] is None) == (row == 0)
        assert stored[-1] is None or stored[-1].rows.tolist() == [row - 1]
    assert table.columns()["x"].tolist() == [0, 1, 2]
