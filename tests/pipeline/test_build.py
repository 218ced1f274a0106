"""The build: resumable from any moment, refusing what does not fit, and one result however it was reached."""

import errno
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from building import manifest, results, save_pair, tiny_settings, with_models, write_prompts
from tiny import build_tokenizer
from transformers import AutoModelForCausalLM

from hf_selfjudge import SelfJudgeVerifier, cli, files
from hf_selfjudge.pipeline.build import STAGES, build
from hf_selfjudge.pipeline.build_settings import GROUPS
from hf_selfjudge.pipeline.models import Pair
from hf_selfjudge.pipeline.records import Mismatches, Substitutions
from hf_selfjudge.pipeline.storage.shards import Piece, Shards, read_responses, read_table, response_lines

LATER = ("label", "fit", "calibrate")


@pytest.fixture(scope="session")
def pair(tmp_path_factory):
    return save_pair(tmp_path_factory.mktemp("pair"))


@pytest.fixture(scope="session")
def prompts(tmp_path_factory):
    return write_prompts(tmp_path_factory.mktemp("prompts") / "my.jsonl")


@pytest.fixture(scope="session")
def settings(pair, prompts):
    return tiny_settings(pair, prompts)


@pytest.fixture(scope="session")
def plain(settings, tmp_path_factory):
    """A build without interruption."""
    out = tmp_path_factory.mktemp("plain") / "judge"
    build(settings, out)
    return out


@pytest.fixture
def copied(plain, tmp_path):
    """A finished build to damage."""
    return shutil.copytree(plain, tmp_path / "judge")


@pytest.fixture
def no_models(monkeypatch):
    def load(self, role):
        raise AssertionError(f"the {role} was loaded")

    monkeypatch.setattr(Pair, "_load", load)


def test_a_build_gives_a_judge_and_says_how(settings, plain):
    judge = SelfJudgeVerifier.from_pretrained(plain)
    rows = read_table(Substitutions, sorted((plain / "build" / "score").glob("*.safetensors")))
    keys = list(zip(rows.prompt_ids.tolist(), rows.positions.tolist(), rows.ranks.tolist(), strict=True))
    assert len(set(keys)) == len(keys) > 10
    assert set(rows.prompt_ids.tolist()) <= set(range(8))
    said = manifest(plain)
    assert said["settings"] == settings.to_dict()
    assert said["stages"]["prompts"]["rows"] == said["stages"]["respond"]["rows"] == 8
    assert said["stages"]["respond"]["info"]["tokens"] == 8 * 16
    assert said["stages"]["score"]["rows"] == said["stages"]["mine"]["rows"] == len(rows)
    assert said["models"]["target"]["fingerprint"] != said["models"]["draft"]["fingerprint"]
    assert judge.config.target.id == settings.models.target
    assert judge.config.labels["tau"] == said["stages"]["label"]["info"]["tau"]
    assert "torch" in said["packages"]


def test_a_finished_build_does_nothing_and_loads_nothing(settings, copied, no_models, monkeypatch):
    before = results(copied)
    monkeypatch.setattr(
        "hf_selfjudge.pipeline.storage.shards.write_bytes", lambda path, data: pytest.fail(f"wrote {path}")
    )
    found = build(settings, copied)
    assert found["rows"]["respond"] == 8
    assert results(copied) == before


def test_the_report_is_made_again_when_asked_for(settings, copied, no_models):
    page = copied / "report" / "report.html"
    text = page.read_text()
    page.write_text("old")
    build(settings, copied)
    assert page.read_text() == "old"
    build(settings, copied, ["report"])
    assert page.read_text() == text
    page.unlink()
    build(settings, copied)
    assert page.read_text() == text
    (copied / "build" / "fit" / "00000.note.json").unlink()
    with pytest.raises(ValueError, match="report needs the results of fit"):
        build(settings, copied, ["report"])


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


def test_other_settings_are_refused_with_the_difference(settings, copied):
    before = results(copied)
    with pytest.raises(ValueError, match=r"\(old -> new\): respond: batch_size: 4 -> 2; score: lengths: 0,5 -> 0,5,9;"):
        build(settings.updated({"batch_size": 2, "lengths": (0, 5, 9), "length": 9}), copied)
    with pytest.raises(ValueError, match=r"label: tau: not set -> 2\.0\. Give .* with --overwrite label\."):
        build(settings.updated({"tau": 2.0}), copied)
    with pytest.raises(ValueError, match="score: lengths: 0,5 -> 5"):
        build(settings.updated({"lengths": (5,)}), copied, ["fit"])
    with pytest.raises(ValueError, match=r"prompts: max_new_tokens: 16 -> 8; respond: max_new_tokens: 16 -> 8"):
        build(settings.updated({"max_new_tokens": 8}), copied, overwrite="mine")
    assert results(copied) == before


def test_another_model_is_refused_and_a_moved_one_is_not(settings, copied, tmp_path, no_models):
    other = save_pair(tmp_path / "other", noise=0.2)
    with pytest.raises(ValueError, match=r"mine: models\.draft\.fingerprint: files \w+ -> files \w+; score: models"):
        build(with_models(settings, draft=str(other / "draft")), copied)
    with pytest.raises(ValueError, match=r"respond: models\.target\.dtype: auto -> bfloat16"):
        build(with_models(settings, dtype="bfloat16"), copied)
    moved = shutil.copytree(settings.models.draft, tmp_path / "moved")
    build(with_models(settings, draft=str(moved)), copied)


def test_a_changed_file_of_prompts_is_refused(pair, tmp_path):
    prompts = write_prompts(tmp_path / "my.jsonl")
    settings = tiny_settings(pair, prompts)
    build(settings, tmp_path / "judge", ["prompts"])
    write_prompts(prompts, count=9)
    with pytest.raises(ValueError, match=r"prompts: content\..*my\.jsonl: \w+ -> \w+"):
        build(settings, tmp_path / "judge", ["prompts"])


def test_overwriting_drops_a_stage_and_what_was_made_from_it(settings, copied, tmp_path):
    changed = settings.updated({"tau": -3.0})
    mined = {path: path.stat().st_mtime_ns for path in (copied / "build" / "mine").iterdir()}
    build(changed, copied, ["label"], overwrite="label")
    assert not (copied / "config.json").exists()
    assert not list((copied / "build" / "fit").iterdir())
    assert {path: path.stat().st_mtime_ns for path in (copied / "build" / "mine").iterdir()} == mined
    build(changed, copied, STAGES[:-1])
    build(changed, tmp_path / "fresh", STAGES[:-1])
    assert results(copied) == results(tmp_path / "fresh")


def test_settings_of_stages_without_results_may_change(settings, tmp_path):
    out = tmp_path / "judge"
    build(settings, out, ["prompts", "respond", "mine"])
    changed = settings.updated({"lengths": (3,), "length": 3})
    build(changed, out, STAGES[:-1])
    build(changed, tmp_path / "fresh", STAGES[:-1])
    assert results(out) == results(tmp_path / "fresh")
    assert manifest(out)["settings"] == changed.to_dict()


def options(settings, *groups: str) -> list[str]:
    """A command line that gives these settings."""
    return [
        f"--{name.replace('_', '-')}={','.join(map(str, value)) if isinstance(value, list) else value}"
        for group in groups
        for name, value in settings.to_dict()[group].items()
        if value is not None and not isinstance(value, bool)
    ]


def test_each_stage_alone_gives_the_same(settings, plain, tmp_path, capsys):
    out = tmp_path / "judge"
    for command, groups in (
        ("respond", ("models", "prompts", "respond")),
        ("mine", ("mine",)),
        ("score", ("score",)),
        ("label", ("label",)),
        ("fit", ("fit",)),
        ("calibrate", ()),
    ):
        cli.main([command, "--out", str(out), *options(settings, *groups)])
        assert json.loads(capsys.readouterr().out.splitlines()[-1])["out"] == str(out)
    assert results(out) == results(plain)
    assert results(out)["README.md in step"]
    assert "Accepted at the default threshold" in (plain / "README.md").read_text()  # told by the report


def test_a_stage_needs_those_before_it(settings, tmp_path):
    out = tmp_path / "judge"
    with pytest.raises(FileNotFoundError, match="holds no build to go on with"):
        build(settings, out, ["score"])
    assert not out.exists()
    build(settings, out, ["prompts"])
    with pytest.raises(
        ValueError, match=r"mine needs the results of respond, and 2 of 2 shards .* `selfjudge respond`"
    ):
        build(settings, out, ["mine"])
    with pytest.raises(ValueError, match="no stage judge"):
        build(settings, out, ["judge"])


def test_a_corrupted_stage_before_is_told_to_a_stage_alone(settings, copied):
    path = copied / "build" / "mine" / "00001.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ValueError, match=r"fit needs the results of mine, and 1 of 2 .*\(shard 00001: corrupted\)"):
        build(settings, copied, ["fit"])


def test_empty_and_cut_responses_are_counted_and_empty_ones_not_mined(pair, prompts, plain, tmp_path):
    responses = [r for n in (0, 1) for r in read_responses(plain / "build" / "respond" / f"0000{n}.jsonl")]
    end = responses[2].answer[0]
    ended = save_pair(tmp_path / "pair", end=end)
    out = tmp_path / "judge"
    build(tiny_settings(ended, prompts), out, ["prompts", "respond", "mine", "score"])
    info = manifest(out)["stages"]["respond"]["info"]
    empty = [r.prompt_id for r in responses if r.answer[0] == end]
    assert info["empty"] == len(empty) > 0
    assert info["cut"] == sum(end not in r.answer for r in responses)
    assert manifest(out)["stages"]["respond"]["rows"] == 8
    rows = read_table(Substitutions, sorted((out / "build" / "score").glob("*.safetensors")))
    assert not set(rows.prompt_ids.tolist()) & set(empty)


def test_without_any_mismatch_there_is_nothing_to_judge(prompts, tmp_path):
    pair = save_pair(tmp_path / "pair", noise=0.0)
    with pytest.raises(ValueError, match="no mismatch in any response"):
        build(tiny_settings(pair, prompts), tmp_path / "judge")


def test_prompts_beyond_the_context_are_skipped_and_counted(pair, tmp_path):
    prompts = write_prompts(tmp_path / "my.jsonl")
    with prompts.open("a") as file:
        file.write('{"prompt": "%s"}\n' % ("the old stone " * 100))
    out = tmp_path / "judge"
    build(tiny_settings(pair, prompts), out, ["prompts"])
    entry = manifest(out)["stages"]["prompts"]
    assert entry["rows"] == 8
    assert entry["info"]["skipped"] == {"my.jsonl: longer than 240 tokens": 1}


def test_a_larger_padded_vocabulary_is_none_of_another(settings, prompts, tmp_path):
    pair = save_pair(tmp_path / "pair", noise=0.3)
    draft = AutoModelForCausalLM.from_pretrained(pair / "draft")
    draft.resize_token_embeddings(120, mean_resizing=False)
    draft.lm_head.weight.data[101:] *= 100  # padding that would win every position
    draft.save_pretrained(pair / "draft")
    out = tmp_path / "judge"
    build(tiny_settings(pair, prompts), out, ["prompts", "respond", "mine", "score"])
    rows = read_table(Substitutions, sorted((out / "build" / "score").glob("*.safetensors")))
    assert int(rows.draft_tokens.max()) < 101
    assert bool(rows.features["kl_pq"].isfinite().all())


def test_a_draft_that_reads_less_than_the_target_is_told(pair, prompts, settings, tmp_path):
    short = shutil.copytree(pair / "draft", tmp_path / "short")
    config = json.loads((short / "config.json").read_text())
    (short / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 20}))
    build(with_models(settings, draft=None), tmp_path / "judge", ["prompts", "respond"])
    with pytest.raises(ValueError, match=r"have \d+ tokens, and the draft reads 20"):
        build(with_models(settings, draft=str(short)), tmp_path / "judge", ["mine"])


def test_more_autojudge_prompts_cost_only_the_shards_they_are_in(settings, tmp_path, caplog, monkeypatch):
    chosen = {0}
    monkeypatch.setattr("hf_selfjudge.pipeline.autojudge.autojudge_prompts", lambda prompts, settings: sorted(chosen))
    out = tmp_path / "judge"
    stages = ["prompts", "respond", "mine", "autojudge"]
    build(settings, out, stages)
    shards = [[r.prompt_id for r in read_responses(path)] for path in sorted((out / "build/respond").glob("*.jsonl"))]
    home = next(index for index, ids in enumerate(shards) if 0 in ids)
    chosen.add(shards[1 - home][0])
    build(settings, out, stages)
    assert f"autojudge: shard 0000{1 - home} is made again: made from other inputs" in caplog.text
    assert f"autojudge: shard 0000{home}" not in caplog.text


def test_another_vocabulary_is_refused_before_any_work(settings, tmp_path, no_models):
    pair = save_pair(tmp_path / "pair")
    build_tokenizer(shift=3).save_pretrained(pair / "draft")
    with pytest.raises(ValueError, match=r"different vocabularies \(101 and 101 tokens, \d+ entries differ\)"):
        build(with_models(settings, draft=str(pair / "draft")), tmp_path / "judge")
    assert not (tmp_path / "judge" / "build" / "prompts").exists()


def test_another_models_folder_is_left_alone(settings, pair):
    with pytest.raises(ValueError, match=r"holds another model .*'llama'"):
        build(settings, pair / "draft")


def test_an_edited_readme_is_left_alone(settings, copied):
    (copied / "README.md").write_text("mine")
    build(settings, copied, STAGES[:-1], overwrite="fit")
    assert (copied / "README.md").read_text() == "mine"


def test_a_lost_manifest_costs_nothing(settings, copied, plain, no_models):
    (copied / "build" / "manifest.json").unlink()
    build(settings, copied)
    assert results(copied) == results(plain)
    (copied / "build" / "manifest.json").write_text("{")
    with pytest.raises(ValueError, match=r"manifest\.json is not valid JSON"):
        build(settings, copied)


def test_out_of_memory_says_what_to_do(settings, tmp_path, monkeypatch):
    def load(self, role):
        raise torch.OutOfMemoryError("CUDA out of memory.\nTried to allocate 2 GiB")

    monkeypatch.setattr(Pair, "_load", load)
    with pytest.raises(MemoryError, match=r"in respond, shard 00000 \(CUDA out of memory\. Tried .*--batch-size"):
        build(settings, tmp_path / "judge")


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
