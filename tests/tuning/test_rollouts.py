"""Exploring with a model that cannot be loaded, and with a process that dies."""

import os
import shutil

import pytest

from hf_selfjudge.cli import main
from hf_selfjudge.evaluation.workers import BenchSettings
from hf_selfjudge.playground import ASSETS
from hf_selfjudge.tuning.rollouts import Explored, _explore_apart


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_model_that_cannot_be_loaded_is_named(workers, tmp_path, capfd):
    draft = tmp_path / "draft"
    shutil.copytree(ASSETS / "draft", draft)
    (draft / "model.safetensors").write_bytes((draft / "model.safetensors").read_bytes()[:50_000])
    with pytest.raises(SystemExit) as ended:
        main(["tune", "--target", "playground", "--draft", str(draft), "--judges", "playground",
              "--prompts", "playground/word_problems:40", "--max-new-tokens", "100", "--workers", workers,
              "--out", str(tmp_path / "out")])  # fmt: skip
    assert ended.value.code == 2
    shown = capfd.readouterr().err
    assert f"The draft {draft} cannot be loaded (SafetensorError: " in shown
    assert "what is finished is kept. Download it again" in shown
    assert "Traceback" not in shown


class Killed:
    """Stands for a part: the process that reads it is gone."""

    def __reduce__(self):
        return os._exit, (9,)


def test_a_process_that_dies_ends_the_run_with_advice():
    bench = BenchSettings("playground", "playground", workers=2)
    explored = Explored(bench, "topk:2", (), [], 8, "mark")
    with pytest.raises(ChildProcessError, match=r"One of 2 .* died; .* is kept: .* with fewer --workers"):
        _explore_apart(explored, [Killed()], lambda count: None)
