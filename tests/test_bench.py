"""`selfjudge bench` with transformers: what it refuses before any model is loaded, and one small run."""

import json

import pytest
import torch

from hf_selfjudge.bench import measure, shapes
from hf_selfjudge.bench.measure import BenchSettings
from hf_selfjudge.cli import main

SMALL = ["--target", "tiny-0.1m", "--draft", "tiny-0.1m", "--device", "cpu", "--prompt", "600", "--repeats", "1"]
"""Its vocabulary has 512 tokens: of 600 by lot some would be beyond it."""


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--batch", "0"], "batches are (0,), expected sizes >= 1"),
        (["--batch", "1,-1"], "batches are (1, -1), expected sizes >= 1"),
        (["--batch", ""], "expected sizes such as 1,8,32"),
        (["--dtype", "foo"], "dtype is 'foo', expected a torch dtype such as float32"),
        (["--dtype", "int8"], "dtype is 'int8', expected a torch dtype such as float32"),
        (["--dtype", "nn"], "dtype is 'nn', expected a torch dtype such as float32"),
        (["--device", "foo"], "device is 'foo', expected a torch device such as cpu"),
        (["--device", "cuda"], "no CUDA device can be used here"),
    ],
)
def test_bad_options_are_refused_before_any_model_is_loaded(options, message, capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(shapes, "load", lambda *given: pytest.fail("a model was loaded"))
    with pytest.raises(SystemExit) as ended:
        main(["bench", *options])
    assert ended.value.code == 2
    shown = capsys.readouterr().err
    assert message in shown
    assert shown.count("\n") == 1


def test_a_small_vocabulary_and_batch_1_in_any_place(capsys, tmp_path):
    main(["bench", *SMALL, "--new-tokens", "12", "--batch", "2,1", "--out", str(tmp_path / "bench.json")])
    found = json.loads((tmp_path / "bench.json").read_text())
    shown = capsys.readouterr().out
    assert json.loads(shown.splitlines()[-1]) == found
    assert "ours, batch 2" in shown
    two, one = found["ours"]
    assert one["over_batch_1"] == 1.0
    assert two["over_batch_1"] == two["tokens_per_s"] / one["tokens_per_s"]


def test_nothing_is_compared_with_a_batch_that_was_not_run(monkeypatch):
    monkeypatch.setattr(measure, "ours", lambda target, draft, settings, batch: {"batch": batch, "tokens_per_s": 1.0})
    model = shapes.load("tiny-0.1m", "cpu", torch.float32)
    settings = BenchSettings(gamma=2, accept=1, prompt=8, new_tokens=4, batches=(2, 8), repeats=1)
    found = measure.measure(model, shapes.load("tiny-0.1m", "cpu", torch.float32), settings)
    assert [sorted(run) for run in found["ours"]] == [
        ["batch", "over_plain", "over_stock_assisted", "tokens_per_s"]
    ] * 2


@pytest.mark.parametrize(("device", "expected"), [("cuda:1", [torch.device("cuda:1")]), ("cuda", [])])
def test_the_named_gpu_is_the_one_whose_clock_and_memory_are_read(device, expected, monkeypatch):
    class Loaded(Exception):
        pass

    def load(*given):
        raise Loaded

    chosen = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    monkeypatch.setattr(shapes, "load", load)
    with pytest.raises(Loaded):
        main(["bench", "--device", device])
    assert chosen == expected
