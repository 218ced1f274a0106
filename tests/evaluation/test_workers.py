"""Worker processes that die and models that cannot be loaded: one clear error, and what is finished stays."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from hf_selfjudge.cli import main
from hf_selfjudge.evaluation import scoring, workers
from hf_selfjudge.evaluation.processes import made_here, worker_processes
from hf_selfjudge.evaluation.workers import BenchSettings, open_bench
from hf_selfjudge.playground import ASSETS

RESULTS = "What is finished is kept: run the same command again with fewer --workers or a smaller --batch-size."


@pytest.fixture(scope="module")
def broken(tmp_path_factory):
    """A target whose download stopped."""
    folder = tmp_path_factory.mktemp("models") / "target"
    shutil.copytree(ASSETS / "target", folder)
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:100_000])
    return folder


@pytest.mark.parametrize(("count", "rules"), [("1", "topk:2"), ("2", "topk:2"), ("2", "judge:playground@sweep")])
def test_a_comparison_names_the_model_that_cannot_be_loaded(count, rules, broken, tmp_path, capfd):
    pair = ["--target", str(broken), "--draft", "playground"]
    with pytest.raises(SystemExit) as ended:
        main(["compare", *pair, "--rules", rules, "--tasks", "playground/word_problems:2", "--workers", count,
              "--out", str(tmp_path)])  # fmt: skip
    assert ended.value.code == 2
    shown = capfd.readouterr().err
    assert f"selfjudge: The target {broken} cannot be loaded (SafetensorError: " in shown
    assert "what is finished is kept. Download it again if its files are broken or incomplete" in shown
    assert "Traceback" not in shown


def test_a_model_that_does_not_fit_is_named(monkeypatch):
    def fail(*given, **named):
        raise torch.OutOfMemoryError("not enough")

    monkeypatch.setattr("transformers.AutoModelForCausalLM.from_pretrained", fail)
    with pytest.raises(
        OSError, match=r"target big cannot be loaded \(OutOfMemoryError: not enough\).* fewer --workers"
    ):
        workers.Bench(BenchSettings("big", "small"), {})


class Killed:
    """Stands for a job: the process that reads it is gone."""

    request = None

    def __reduce__(self):
        return os._exit, (9,)


def test_a_process_that_dies_ends_the_run_with_advice():
    with (
        pytest.raises(ChildProcessError, match=f"One of 2 worker processes died; .* {RESULTS}"),
        open_bench(BenchSettings("playground", "playground", workers=2), {}) as bench,
    ):
        bench.run([Killed()], lambda count: None)


def test_scoring_has_an_option_of_its_own():
    with pytest.raises(ChildProcessError, match="again with fewer --score-workers"):
        scoring._score_apart([Killed(), Killed()], {}, 2, lambda count: None)


def count_words(text):
    return len(text.split())


def test_an_error_in_what_a_process_makes_reaches_the_parent():
    with pytest.raises(AttributeError, match="split"), worker_processes(1, "less", count_words, 5) as executor:
        executor.submit(made_here).result()


def interrupted(jobs):
    with worker_processes(2, "less", count_words, "a b") as executor:
        jobs += [executor.submit(time.sleep, 60) for _ in range(4)]
        while not any(job.running() for job in jobs):
            time.sleep(0.05)
        raise KeyboardInterrupt


def test_an_interruption_ends_the_processes_at_once():
    begun, jobs = time.monotonic(), []
    with pytest.raises(KeyboardInterrupt):
        interrupted(jobs)
    assert time.monotonic() - begun < 30
    assert len(jobs) == 4


PARENT = """
import os, time
from hf_selfjudge.evaluation.processes import worker_processes
if __name__ == "__main__":
    with worker_processes(1, "less", len, "ab") as executor:
        print(executor.submit(os.getpid).result(), flush=True)
        time.sleep(60)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
def test_a_killed_parent_leaves_no_process(tmp_path):
    (tmp_path / "parent.py").write_text(PARENT)
    with subprocess.Popen([sys.executable, tmp_path / "parent.py"], stdout=subprocess.PIPE, text=True) as parent:
        worker = int(parent.stdout.readline())
        parent.send_signal(signal.SIGKILL)
    for _ in range(200):
        try:
            os.kill(worker, 0)
        except ProcessLookupError:
            return
        if "Z" in Path(f"/proc/{worker}/stat").read_text().rsplit(")", 1)[1][:3]:
            return  # dead, and nobody has asked for its exit code
        time.sleep(0.1)
    pytest.fail("the worker lives on")
