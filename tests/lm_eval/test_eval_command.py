"""Both command lines in processes of their own."""

import json
import os
import subprocess
import sys

import pytest

pytest.importorskip("lm_eval.api")

from embedded_runs import JUDGE

from hf_selfjudge import cli
from hf_selfjudge.lm_eval import EVAL_TASKS
from hf_selfjudge.lm_eval.command import complete

OPTIONS = ["--limit", "2", "--device", "cpu", "--batch_size", "2", "--apply_chat_template", "--metadata", "items=2"]


def run(command, out):
    done = subprocess.run(
        [sys.executable, *command, *OPTIONS, "--output_path", str(out)],
        capture_output=True, text=True, env={**os.environ, "HF_HUB_OFFLINE": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    (file,) = out.rglob("results_*.json")
    return json.loads(file.read_text())


def test_plain_lm_eval_finds_the_model_by_the_folder_of_tasks(tmp_path):
    found = run(["-m", "lm_eval", "--model", "selfjudge", "--model_args", JUDGE, "--tasks",
                 str(EVAL_TASKS / "playground")], tmp_path)  # fmt: skip
    assert len(found["results"]) == 4
    assert all(result["accepted_per_cycle,none"] > 1 for result in found["results"].values())
    assert found["config"]["selfjudge"]["totals"]["responses"] == 8


@pytest.mark.slow
def test_our_command_adds_model_and_tasks(tmp_path):
    found = run(["-m", "hf_selfjudge", "eval", "--model_args", JUDGE, "--tasks",
                 "selfjudge_playground_news"], tmp_path)  # fmt: skip
    assert found["results"]["selfjudge_playground_news"]["accepted_per_cycle,none"] > 1
    assert found["config"]["model"] == "selfjudge"


def test_arguments_are_completed_only_where_nothing_else_is_asked_for():
    ours = ["--include_path", str(EVAL_TASKS)]
    assert complete(["--tasks", "x"]) == ["--tasks", "x", *ours, "--model", "selfjudge"]
    assert complete(["run", "--model=hf", "--tasks", "x"]) == ["run", "--model=hf", "--tasks", "x", *ours]
    assert complete(["--include_path", "mine", "-M", "hf"]) == ["--include_path", "mine", "-M", "hf"]
    for shown in (["ls", "tasks"], ["run", "--help"]):
        assert complete(shown) == shown


def test_every_argument_reaches_lm_eval_as_it_is(monkeypatch):
    seen = []
    monkeypatch.setattr("lm_eval.__main__.cli_evaluate", lambda: seen.append(sys.argv))
    before = list(sys.argv)
    cli.main(["eval", "--tasks", "a,b", "-M", "hf", "--seed", "-1", "--include_path", "x"])
    assert seen == [["lm-eval", "--tasks", "a,b", "-M", "hf", "--seed", "-1", "--include_path", "x"]]
    assert sys.argv == before


def test_help_is_ours(capsys):
    cli.main(["eval", "--help"])
    assert "selfjudge_gsm8k" in capsys.readouterr().out
