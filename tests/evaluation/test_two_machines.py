"""Answers decoded on one machine, scored and reported on another; what may not be mixed; jobs that fail."""

import json
import shutil
from dataclasses import replace

import pytest
import torch
from brief_tasks import BriefTask
from comparing import BENCH, OPEN, SETTINGS, WORDS, point, stored

from hf_selfjudge.evaluation import compare as compare_module
from hf_selfjudge.evaluation import provenance
from hf_selfjudge.evaluation import workers as bench_module
from hf_selfjudge.evaluation.command import run_compare
from hf_selfjudge.evaluation.compare import compare
from hf_selfjudge.evaluation.grammar import Point
from hf_selfjudge.evaluation.page import conditions
from hf_selfjudge.evaluation.plan import make_plan
from hf_selfjudge.evaluation.workers import Bench, open_bench
from hf_selfjudge.playground import ASSETS
from hf_selfjudge.playground.world import generate

SMALL = replace(SETTINGS, rules=("topk:2",), tasks=(f"{WORDS}:2",), select_on="test", resamples=20)


def refuse(self, index, text):
    raise AssertionError("nothing may be scored here")


@pytest.fixture(scope="module")
def decoded(tmp_path_factory):
    """A folder with answers whose models are gone, and the settings that name them."""
    place = tmp_path_factory.mktemp("machine")
    for role in ("target", "draft"):
        shutil.copytree(ASSETS / role, place / role)
    bench = replace(BENCH, target=str(place / "target"), draft=str(place / "draft"))
    settings = replace(SMALL, bench=bench)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(BriefTask, "score", refuse)
        found = compare(settings, place / "out", progress=False, report=False)
    assert {**found["computed"], "seconds": 0} == {"results": 2, "scored": 0, "missing": 0, "seconds": 0}
    for role in ("target", "draft"):
        shutil.rmtree(place / role)
    return place / "out", settings


@pytest.fixture
def other_machine(decoded, tmp_path, monkeypatch):
    """The answers on a machine that has neither the models nor the device."""
    out, settings = decoded
    shutil.copytree(out, tmp_path / "out")
    monkeypatch.setattr(bench_module, "Bench", None)
    return tmp_path / "out", replace(settings, bench=replace(settings.bench, device="cuda"))


def test_only_answers_are_there_after_decoding(decoded):
    out, _ = decoded
    (models,) = out.rglob("*.json")
    assert models.name == "models.json"
    for path in out.rglob("*.json.gz"):
        kept = stored(path)
        assert len(kept["texts"]) == 2
        assert all(kept["texts"])
        assert set(kept["made_with"]) == {"hardware", "hf_selfjudge", "torch", "transformers", "batch_size"}


def test_another_machine_scores_without_models_device_or_versions(other_machine, monkeypatch):
    monkeypatch.setattr(torch, "__version__", "9.9")
    out, settings = other_machine
    found = compare(settings, out, progress=False)
    assert (found["computed"]["results"], found["computed"]["scored"]) == (0, 2)
    assert found["conditions"]["torch"] != "9.9"
    assert found["conditions"]["hardware"].endswith("CPU")
    (path,) = out.rglob("topk-2-*.json.gz")
    task = BriefTask(WORDS, generate("word_problems", "test", 2, 0))
    scores = [task.score(index, text) for index, text in enumerate(stored(path)["texts"])]
    assert point(found, "topk:2")["test"]["tasks"][WORDS]["score"]["estimate"] == sum(scores) / 2


def test_what_is_missing_cannot_be_decoded_there(other_machine):
    out, settings = other_machine
    more = replace(settings, rules=("topk:2/3",))
    with pytest.raises(ValueError, match=r"1 results are not decoded yet: topk:3 on brief/word_problems. device is"):
        compare(more, out, progress=False)
    on_cpu = replace(more, bench=replace(more.bench, device="cpu"))
    with pytest.raises(FileNotFoundError, match="neither a folder nor a model"):
        compare(on_cpu, out, progress=False)
    found = compare(more, out, progress=False, decode=False, report=False)
    assert (found["computed"]["scored"], found["computed"]["missing"]) == (2, 1)


def test_thetas_are_found_where_answers_are_decoded(other_machine):
    out, settings = other_machine
    swept = replace(settings, rules=("judge:playground@sweep",))
    with pytest.raises(ValueError, match="thetas of swept judges are not known yet"):
        compare(swept, out, progress=False, decode=False, report=False)
    with pytest.raises(ValueError, match=r"Thetas are not known. device is 'cuda'"):
        compare(swept, out, progress=False)


def test_a_folder_with_another_model_is_refused(other_machine):
    out, settings = other_machine
    on_cpu = replace(settings, rules=("topk:3",), bench=replace(settings.bench, device="cpu"))
    shutil.copytree(ASSETS / "draft", settings.bench.target, ignore=shutil.ignore_patterns("*.safetensors"))
    with pytest.raises(ValueError, match=r"target .* is not the one that the answers"):
        compare(on_cpu, out, progress=False)
    shutil.rmtree(settings.bench.target)


def test_other_devices_and_versions_are_not_mixed_silently(tmp_path, monkeypatch, caplog):
    compare(SMALL, tmp_path, progress=False)
    made = provenance.here("cpu", 4) | {"torch": "9.9", "hardware": "NVIDIA H200"}
    for module in (provenance, compare_module):
        monkeypatch.setattr(module, "here", lambda device, batch_size: made)
    more = replace(SMALL, rules=("topk:2/3",))
    assert compare(SMALL, tmp_path, progress=False)["computed"]["results"] == 0  # nothing new, nothing mixed
    with pytest.raises(ValueError, match=r"2 results are there and 1 .* hardware .*NVIDIA H200; torch .*9.9.*--mix"):
        compare(more, tmp_path, progress=False)
    assert not caplog.records
    found = compare(replace(more, mix=True), tmp_path, progress=False)
    assert found["computed"]["results"] == 1
    assert [one["results"] for one in found["conditions"]["made_with"]] == [2, 1]
    assert "1 results with NVIDIA H200" in conditions(found)
    assert "different things" in caplog.text


def test_a_job_that_fails_does_not_stop_the_others(tmp_path, monkeypatch):
    measure = Bench.measure

    def failing(self, job, advance):
        if job.point.spec == "topk:2":
            raise RuntimeError("CUDA out of memory")
        return measure(self, job, advance)

    monkeypatch.setattr(Bench, "measure", failing)
    settings = replace(SMALL, rules=("topk:2/3",), tasks=(f"{WORDS}:1,{OPEN}:1",))
    message = r"2 of 6 results .* topk:2 on brief/open_ended \(RuntimeError: CUDA out of memory\).*smaller --batch-size"
    with pytest.raises(ValueError, match=message):
        compare(settings, tmp_path, progress=False)
    assert len(list(tmp_path.rglob("*.json.gz"))) == 4


@pytest.mark.slow
def test_a_job_that_fails_in_a_worker_does_not_stop_the_others(tmp_path):
    settings = replace(SMALL, bench=replace(BENCH, workers=2))
    plan = make_plan(settings, tmp_path)
    (request,) = plan.sets["test"]
    jobs = [plan.job("test", request, Point("", ((rule,),))) for rule in ("exact", "topk:2", "topk:3")]
    (tmp_path / "file").touch()
    jobs[0] = replace(jobs[0], path=tmp_path / "file" / "answers.json.gz")  # cannot be written
    advanced = []
    with open_bench(settings.bench, plan.items) as bench:
        failed = bench.run(jobs, advanced.append)
    assert list(failed) == [jobs[0]]
    assert "Error" in failed[jobs[0]]
    assert sorted(advanced) == [0, 2, 2]
    assert all(job.path.is_file() for job in jobs[1:])


def test_exact_decoding_comes_first_then_the_most_expensive_jobs(tmp_path, monkeypatch):
    order = []
    monkeypatch.setattr(Bench, "measure", lambda self, job, advance: order.append((job.point.spec, job.items)) or 1 / 0)
    settings = replace(SMALL, tasks=(f"{OPEN}:1,{WORDS}:3",), select_on="train", selection_items=2)
    with pytest.raises(ValueError, match="8 of 8"):
        compare(settings, tmp_path, progress=False)
    assert [items for _, items in order] == [3, 2, 2, 1] * 2
    assert [spec for spec, _ in order] == ["exact"] * 4 + ["topk:2"] * 4


def test_the_command_says_what_was_computed(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(BriefTask, "score", refuse)
    given = {
        **{name: getattr(BENCH, name) for name in BENCH.__dataclass_fields__}, "rules": ["topk:2"],
        "tasks": [f"{WORDS}:1"], "select_on": "test", "resamples": 20, "out": tmp_path,
        "selection_tasks": None, "also": None,
    }  # fmt: skip
    run_compare(**given, decode_only=True)
    assert json.loads(capsys.readouterr().out)["computed"]["results"] == 2
    assert not (tmp_path / "compare.json").exists()
    monkeypatch.undo()
    run_compare(**given, score_only=True)
    assert json.loads(capsys.readouterr().out)["computed"]["scored"] == 2
    assert not (tmp_path / "compare.json").exists()
    with pytest.raises(ValueError, match="give one of them"):
        run_compare(**given, decode_only=True, score_only=True)
