"""`selfjudge bench --engine vllm`: its options without vLLM, and one real run."""

import json

import pytest

from hf_selfjudge.bench import vllm_engine
from hf_selfjudge.bench.command import with_defaults
from hf_selfjudge.bench.vllm_child import _figures
from hf_selfjudge.bench.vllm_engine import VllmBenchSettings, compared, measure_vllm, read, threshold
from hf_selfjudge.cli import main
from hf_selfjudge.playground import ASSETS

PAIR = ["--target", "playground", "--draft", "playground"]


def refusal(capsys, *options):
    with pytest.raises(SystemExit) as ended:
        main(["bench", *options])
    assert ended.value.code == 2
    return capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "needs --judge"),
        (["--judge", "playground", "--accept", "3"], "--accept belongs to --engine transformers"),
        (["--judge", "playground", "--compiled"], "--compiled belongs to --engine transformers"),
        (["--judge", "playground", "--engine-args", "[1]"], "expected a JSON object"),
        (["--judge", "playground", "--engine-args", "{"], "expected a JSON object"),
        (["--judge", "playground", "--engine-args", '{"worker_cls": "X"}'], "which the benchmark sets itself"),
        (["--judge", "playground", "--batch", "0"], "expected sizes >= 1"),
        (["--judge", "playground", "--batch", "a"], "expected sizes such as"),
        (["--judge", "playground", "--gamma", "0"], "gamma is 0"),
        (["--judge", "playground", "--threshold", "off"], "which is timed anyway"),
    ],
)
def test_bad_options_are_refused(capsys, options, message):
    assert message in refusal(capsys, "--engine", "vllm", *PAIR, *options)


def test_vllms_options_are_refused_without_it(capsys):
    assert "--judge belongs to --engine vllm" in refusal(capsys, "--judge", "playground")


def test_named_shapes_are_refused(capsys, monkeypatch):
    monkeypatch.setattr(vllm_engine, "find_spec", lambda name: True)
    assert "give a real model" in refusal(capsys, "--engine", "vllm", "--judge", "playground")


def test_without_vllm_it_says_what_to_install(capsys, monkeypatch):
    monkeypatch.setattr(vllm_engine, "find_spec", lambda name: None)
    assert "pip install 'hf-selfjudge[vllm]'" in refusal(capsys, "--engine", "vllm", *PAIR, "--judge", "playground")


def test_defaults_of_each_engine():
    assert with_defaults("transformers", {"accept": 2}) == {
        "accept": 2,
        "prompt": 128,
        "compiled": False,
        "device": None,
    }
    assert set(with_defaults("vllm", {})) == {"judge", "threshold", "prompts", "engine_args"}


def test_thresholds_are_numbers_or_names():
    assert [threshold(text) for text in ("0.25", "f1", None)] == [0.25, "f1", None]


def test_prompts_are_held_out_chats():
    found = read(["playground:6"], str(ASSETS / "target"))
    assert len(found) == 6
    assert found == read(["playground:6"], str(ASSETS / "target"))


@pytest.mark.parametrize("source", ["playground", "playground/news"])
def test_the_playground_has_a_default_count_like_any_source(source):
    target = str(ASSETS / "target")
    assert read([source], target) == read([f"{source}:{vllm_engine.UNCOUNTED}"], target)


def test_prompts_from_a_file(tmp_path):
    pytest.importorskip("datasets")
    file = tmp_path / "my.jsonl"
    file.write_text("".join(json.dumps({"prompt": f"Tell me about boat {index}."}) + "\n" for index in range(5)))
    assert len(read([str(file)], str(ASSETS / "target"))) == 5
    assert len(read([f"{file}:2"], str(ASSETS / "target"))) == 2


def test_accepted_per_cycle_counts_draft_tokens_only():
    change = {"drafts": 4.0, "accepted": 8.0, "judge_accepted": 2.0, "step": 1.0, "judge": 0.25}
    found = _figures([[1, 2, 3], [4]], 2.0, change)
    assert found["tokens_per_s"] == 2.0
    assert found["accepted_per_cycle"] == 2.0
    assert found["tokens_per_target_forward"] == 3.0
    assert found["judge_accepted_per_cycle"] == 0.5
    run = {"answers": [[1]], "tokens_per_s": 10.0}
    judge = {"answers": [[2]], "tokens_per_s": 30.0, "seconds": found["seconds"]}
    results = {
        "plain": {"run": run},
        "stock": {"run": {**run, "tokens_per_s": 20.0}},
        "judge": {"off": run, "judge": judge},
        "timed": {"judge": judge},
    }
    shown = compared(1, results)
    assert (shown["judge"]["over_stock"], shown["judge"]["over_plain"]) == (1.5, 3.0)
    assert shown["judge"]["judge_share"] == 0.25
    assert (shown["stock"]["answers_as_plain"], shown["judge"]["answers_as_plain"]) == (1.0, 0.0)


@pytest.mark.vllm
def test_a_real_run(capsys, tmp_path):
    out = tmp_path / "bench.json"
    options = ["--judge", "playground", "--gamma", "5", "--prompts", "playground:4", "--new-tokens", "32"]
    engine = ["--engine-args", '{"enforce_eager": true}', "--repeats", "1", "--batch", "4", "--out", str(out)]
    main(["bench", "--engine", "vllm", *PAIR, *options, *engine])
    found = json.loads(out.read_text())
    assert json.loads(capsys.readouterr().out.splitlines()[-1]) == found
    [run] = found["runs"]
    assert (
        run["plain"]["answers_as_plain"]
        == run["stock"]["answers_as_plain"]
        == run["judge_off"]["answers_as_plain"]
        == 1
    )
    assert 0 < run["stock"]["accepted_per_cycle"] == run["judge_off"]["accepted_per_cycle"]
    assert run["stock"]["accepted_per_cycle"] < run["judge"]["accepted_per_cycle"] <= 5
    assert 0 < run["judge"]["judge_share"] < 0.5
    assert "accepted_per_cycle" not in run["plain"]


@pytest.mark.vllm
def test_an_engine_that_fails_is_named(capsys):
    target, bad = str(ASSETS / "target"), {"no_such_argument": 1}
    settings = VllmBenchSettings(target, target, "topk:2", prompts=("playground:1",), engine_args=bad)
    with pytest.raises(ChildProcessError, match="'plain' ended with status 1"):
        measure_vllm(settings)
    assert "no_such_argument" in capsys.readouterr().err
