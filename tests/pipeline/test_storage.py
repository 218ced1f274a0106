"""Shards, their notes, tables as bytes and the lock."""

import errno
import json
import os
import subprocess
import sys

import pytest
import torch

from hf_selfjudge import files
from hf_selfjudge.files import locked
from hf_selfjudge.pipeline.records import Mismatches, Prompt, Response, Substitutions
from hf_selfjudge.pipeline.storage.shards import (
    Piece,
    Shards,
    prompt_lines,
    read_prompts,
    read_responses,
    read_table,
    response_lines,
    table_bytes,
)


@pytest.fixture
def shards(tmp_path):
    found = Shards(tmp_path / "mine", "safetensors")
    found.write(0, Piece(b"some bytes", 3, {"empty": 1}), "settings", {"respond/00000": "abc"}, 1.5)
    return found


def problem(shards, made_with="settings", digest="abc"):
    return shards.problem(0, made_with, {"respond/00000": digest})


def test_a_written_shard_is_finished(shards):
    assert problem(shards) is None
    note = shards.note(0)
    assert (note.rows, note.seconds, note.info) == (3, 1.5, {"empty": 1})
    assert [n.sha256 for n in shards.notes()] == [note.sha256]
    assert sorted(path.name for path in shards.folder.iterdir()) == ["00000.note.json", "00000.safetensors"]


def test_everything_else_is_unfinished(shards):
    assert shards.problem(1, "settings", {}) == "missing"
    assert problem(shards, made_with="others") == "made with other settings"
    assert problem(shards, digest="other") == "made from other inputs"


@pytest.mark.parametrize("damage", [lambda data: data[:4], lambda data: b"x" + data[1:], lambda data: data + b"\0"])
def test_a_damaged_file_is_found(shards, damage):
    shards.path(0).write_bytes(damage(shards.path(0).read_bytes()))
    assert problem(shards) == "corrupted"


@pytest.mark.parametrize("text", ["", "{", "[]", '{"rows": 3}', '"note"'])
def test_a_damaged_note_is_no_note(shards, text):
    shards.note_path(0).write_text(text)
    assert problem(shards) == "missing"
    assert shards.notes() == []


def test_a_lost_file_is_missing(shards):
    shards.path(0).unlink()
    assert problem(shards) == "missing"


def test_a_write_that_fails_leaves_no_note_of_the_old_shard(shards, monkeypatch):
    def full(path, data):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("hf_selfjudge.pipeline.storage.shards.write_bytes", full)
    with pytest.raises(OSError, match=r"00000\.safetensors \(3 bytes\): No space left on device.*goes on from here"):
        shards.write(0, Piece(b"new", 1), "settings", {})
    assert problem(shards) == "missing"


def test_a_disk_that_fills_up_leaves_no_half_written_file(shards, monkeypatch):
    def full(handle):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("hf_selfjudge.files.os.fsync", full)
    with pytest.raises(OSError, match="No space left"):
        shards.write(1, Piece(b"new", 1), "settings", {})
    assert not shards.path(1).exists()
    assert not [path for path in shards.folder.iterdir() if path.name.startswith(".")]


def test_leftovers_of_killed_writers_are_swept_and_nothing_else(tmp_path):
    for name in (".00000.safetensors.ab_cd012", ".config.json.abcdefgh", ".gitattributes", ".hidden", "kept.json"):
        (tmp_path / name).write_text("x")
    (tmp_path / ".folder.abcdefgh").mkdir()
    files.remove_leftovers(tmp_path, ("config.json",))
    assert not (tmp_path / ".config.json.abcdefgh").exists()
    assert (tmp_path / ".00000.safetensors.ab_cd012").exists()
    files.remove_leftovers(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        ".folder.abcdefgh",
        ".gitattributes",
        ".hidden",
        "kept.json",
    ]


def test_dropping_leaves_nothing_but_other_peoples_files(shards):
    (shards.folder / "remark.txt").write_text("mine")
    (shards.folder / ".00001.safetensors.abcdefgh").write_text("half")
    shards.drop()
    assert [path.name for path in shards.folder.iterdir()] == ["remark.txt"]
    Shards(shards.folder / "never", "jsonl").drop()


def substitutions(prompt_ids: list[int]) -> Substitutions:
    rows = len(prompt_ids)
    column = torch.arange(rows)
    return Substitutions(
        prompt_ids=torch.tensor(prompt_ids),
        positions=column.flip(0),
        target_tokens=column,
        draft_tokens=column + 1,
        ranks=torch.zeros_like(column),
        prefix=torch.randn(rows),
        suffix_tokens=torch.ones(rows, 2, dtype=torch.long),
        likelihood=torch.randn(rows, 2),
        confidence=torch.randn(rows, 2),
        features={"hidden": torch.randn(rows, 4, dtype=torch.bfloat16), "rank": torch.randn(rows)},
        lengths=(5, 20),
    )


def test_tables_come_back_joined_and_sorted(tmp_path):
    parts = [substitutions([7, 7, 2]), None, substitutions([5])]
    paths = [tmp_path / str(index) for index in range(3)]
    for path, part in zip(paths, parts, strict=True):
        path.write_bytes(table_bytes(part))
    found = read_table(Substitutions, paths)
    assert found.lengths == (5, 20)
    assert found.prompt_ids.tolist() == [2, 5, 7, 7]
    assert found.positions.tolist() == [0, 0, 1, 2]
    assert found.features["hidden"].dtype == torch.bfloat16
    assert torch.equal(found.features["hidden"][2], parts[0].features["hidden"][1])
    assert found.original_features == {}
    assert table_bytes(parts[0]) == table_bytes(parts[0])


def test_a_table_without_rows_is_none(tmp_path):
    empty = torch.empty(0, dtype=torch.long)
    table = Mismatches(empty, empty, empty, empty, empty, torch.empty(0), empty.reshape(0, 4))
    for index, part in enumerate((table, None)):
        (tmp_path / str(index)).write_bytes(table_bytes(part))
    assert read_table(Mismatches, [tmp_path / "0", tmp_path / "1"]) is None


def test_prompts_and_responses_come_back_whatever_they_contain(tmp_path):
    text = 'a line\nanother\u2028third \\ " \ud800 é 漢'
    prompts = [
        Prompt(0, "my", "train", text, [1, 2], "code", {"tests": ["assert f(1)\n", None, 1.5]}),
        Prompt(1, "my", "validation", "", [3]),
    ]
    path = tmp_path / "prompts.jsonl"
    path.write_bytes(prompt_lines(prompts))
    assert read_prompts(path) == prompts
    assert "é 漢" in path.read_text(encoding="utf-8")
    responses = [Response(0, [1, 2], [3, 4]), Response(1, [3], [])]
    path.write_bytes(response_lines(responses, [text, ""]))
    assert read_responses(path) == responses
    assert json.loads(path.read_text(encoding="utf-8").split("\n")[0])["text"] == text


LOCK = """
import sys, time
from pathlib import Path
from hf_selfjudge.files import locked
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def test_one_build_at_a_time_and_the_dead_hold_no_lock(tmp_path):
    path = tmp_path / "judge" / "build" / "lock"
    holder = subprocess.Popen([sys.executable, "-c", LOCK, str(path)], stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout.readline() == "held\n"
        message = rf"judge is in use by another run \(process {holder.pid} on "
        with pytest.raises(ValueError, match=message), locked(path):
            pass
    finally:
        holder.kill()
        holder.wait()
        holder.stdout.close()
    with locked(path):
        assert path.read_text().startswith(f"process {os.getpid()} on ")
    with locked(path):
        pass
