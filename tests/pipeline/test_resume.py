"""A build that was killed, ran out of disk, was damaged or shared by processes: the same result in the end."""

import errno
import json
import logging
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
from building import LATER, manifest, options, results

from hf_selfjudge import SelfJudgeVerifier, files
from hf_selfjudge.pipeline.build import STAGES, build
from hf_selfjudge.pipeline.build_settings import GROUPS
from hf_selfjudge.pipeline.models import Pair
from hf_selfjudge.pipeline.records import Mismatches
from hf_selfjudge.pipeline.storage.shards import Piece, Shards, read_responses, read_table, response_lines


class Killed(BaseException):
    """Nothing catches it, as nothing catches kill -9."""


def killer(real, survivors: int, how: str):
    """An atomic write that dies at the first write after `survivors`."""
    left = [survivors]

    @contextmanager
    def write(path):
        left[0] -= 1
        if left[0] >= 0 or how == "behind":
            with real(path) as temporary:
                yield temporary
            if left[0] < 0:
                raise Killed
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        half = path.parent / f".{path.name}.half0000"
        if how == "within":
            half.write_bytes(b"half of it")
        raise Killed
        yield half

    return write


def test_killed_at_every_write_the_result_is_the_same(settings, plain, tmp_path, monkeypatch):
    real, load = files.atomic_path, Pair._load
    loaded = {role: load(Pair(settings.models), role) for role in ("target", "draft")}
    monkeypatch.setattr(Pair, "_load", lambda self, role: loaded[role])
    runs = 0
    while True:
        how = ("before", "within", "behind")[runs % 3]
        monkeypatch.setattr(files, "atomic_path", killer(real, survivors=1, how=how))
        runs += 1
        try:
            build(settings, tmp_path / "judge", STAGES[:-1])
            break
        except Killed:
            assert runs < 200
    assert runs > 15
    monkeypatch.setattr(files, "atomic_path", real)
    build(settings, tmp_path / "judge", STAGES[:-1])
    assert results(tmp_path / "judge") == results(plain)
    assert not list((tmp_path / "judge").rglob(".*"))


def test_a_full_disk_is_told_in_one_sentence_and_the_build_goes_on(settings, plain, tmp_path, monkeypatch):
    real = files.write_bytes

    def full(path, data):
        if path.name == "00001.safetensors":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        real(path, data)

    with monkeypatch.context() as patch:
        patch.setattr("hf_selfjudge.pipeline.storage.shards.write_bytes", full)
        with pytest.raises(OSError, match=r"Cannot write .*mine/00001\.safetensors .*: No space left on device\. Make"):
            build(settings, tmp_path / "judge", STAGES[:-1])
    build(settings, tmp_path / "judge", STAGES[:-1])
    assert results(tmp_path / "judge") == results(plain)


@pytest.mark.parametrize("stage", ["prompts", "respond", "mine", "score", "label", "fit"])
def test_a_damaged_shard_is_made_again_and_nothing_else(settings, plain, copied, stage, caplog):
    shard = sorted((copied / "build" / stage).glob("[0-9]*"))[-1 if stage in ("respond", "mine", "score") else 0]
    shard = shard.with_name(shard.name.replace(".note.json", ".safetensors"))
    shard = shard if shard.exists() else shard.with_suffix(".jsonl")
    data = shard.read_bytes()
    shard.write_bytes(data[: len(data) // 2])
    before = {path: path.stat().st_mtime_ns for path in (copied / "build").rglob("[0-9]*")}
    with caplog.at_level(logging.INFO):
        build(settings, copied, STAGES[:-1])
    number = shard.name[:5]
    assert f"{stage}: shard {number} is made again: corrupted" in caplog.text
    assert caplog.text.count("made again") == 1
    assert results(copied) == results(plain)
    changed = {path for path, time in before.items() if path.stat().st_mtime_ns != time}
    assert changed == {shard, shard.parent / f"{number}.note.json"}


def test_what_was_made_from_other_inputs_is_made_again(settings, plain, copied, caplog):
    shards = Shards(copied / "build" / "respond", "jsonl")
    note = shards.note(1)
    other = [type(r)(r.prompt_id, r.prompt, r.answer[:6]) for r in read_responses(shards.path(1))]
    shards.write(1, Piece(response_lines(other, [""] * 4), 4, note.info), note.made_with, note.inputs)
    build(settings, copied, STAGES[:-1])
    for stage in ("mine", "score"):
        assert f"{stage}: shard 00001 is made again: made from other inputs" in caplog.text
        assert f"{stage}: shard 00000" not in caplog.text
    for stage in LATER:
        assert f"{stage}: shard 00000 is made again: made from other inputs" in caplog.text
    rows = read_table(Mismatches, [copied / "build" / "mine" / "00001.safetensors"])
    assert int(rows.positions.max()) < 6
    assert results(copied) != results(plain)
    assert SelfJudgeVerifier.from_pretrained(copied).config.labels["substitutions"] == manifest(copied)["stages"][
        "mine"]["rows"]  # fmt: skip
    readme = (copied / "README.md").read_text()
    assert f"substitutions: {manifest(copied)['stages']['mine']['rows']}" in readme


EMBEDDED = (
    *("build", "--target", "playground", "--draft", "playground", "--prompts", "playground/multiple_choice:9"),
    *("--max-new-tokens", "48", "--shard-size", "3", "--lengths", "5", "--length", "5", "--acceptable", "0.5"),
    *("--autojudge-prompts", "2", "--feature-sets", "paper", "--seeds", "1"),
)


MOMENTS = ("prompts/00000.jsonl", "respond/00001.jsonl", "mine/00000.note.json", "score/00001.safetensors",
           "autojudge/00001.note.json", "fit/00000.safetensors")  # fmt: skip


SERVER = """
import json, os, sys
from hf_selfjudge import cli

cli.main(json.loads(sys.stdin.readline()))  # the plain build; and everything is imported
for line in sys.stdin:  # one process for each of the others
    child = os.fork()
    if child == 0:
        cli.main(json.loads(line))
        os._exit(0)
    print("child", child, flush=True)
    print("status", os.waitpid(child, 0)[1], flush=True)
"""


def start(*arguments: str, **pipes) -> subprocess.Popen:
    single = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen([sys.executable, *arguments], env=single, stdout=subprocess.PIPE, text=True, **pipes)


def test_kill_9_and_run_again(tmp_path):
    out, plain = tmp_path / "judge", tmp_path / "plain"
    with start("-c", SERVER, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL) as server:

        def said(word: str) -> int:
            return next(int(line.split()[1]) for line in server.stdout if line.startswith(word))

        def ask(folder: Path) -> None:
            print(json.dumps([*EMBEDDED, "--out", str(folder)]), file=server.stdin, flush=True)

        ask(plain)
        for moment in MOMENTS:
            ask(out)
            child = said("child")
            while not (out / "build" / moment).exists():
                os.kill(child, 0)  # fails if it ended before
                time.sleep(0.002)
            os.kill(child, signal.SIGKILL)
            assert said("status") == signal.SIGKILL
        assert not (out / "config.json").exists()
        ask(out)
        assert said("status") == 0
        server.stdin.close()
    assert results(out) == results(plain)
    assert manifest(out)["stages"]["autojudge"]["rows"] > 0


def test_two_processes_give_the_bytes_of_one(settings, plain, tmp_path):
    out = tmp_path / "judge"
    launcher = ["-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2", "--num_machines", "1"]
    launcher += ["--mixed_precision", "no", "--dynamo_backend", "no", "--main_process_port", "0", "-m", "hf_selfjudge"]
    running = start(*launcher, "build", "--out", str(out), *options(settings, *GROUPS), stderr=subprocess.PIPE)
    shown, errors = running.communicate(timeout=300)
    assert running.returncode == 0, errors
    assert json.loads(shown.splitlines()[-1])["rows"]["respond"] == 8
    assert shown.count("\n") == 1
    assert results(out) == results(plain)
    makers = [json.loads(p.read_text())["process"] for p in sorted((out / "build" / "score").glob("*.note.json"))]
    assert makers == [0, 1]
