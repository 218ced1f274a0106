"""The benchmarks as tasks of `selfjudge compare`."""

import json

import pytest

from hf_selfjudge.evaluation.providers import parse_tasks
from hf_selfjudge.lm_eval.provider import TASKS, load_task, model_folder


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "rows.jsonl"
    rows = [{"question": f"What is {n} + 1?", "answer": f"#### {n + 1}"} for n in range(10)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_a_file_behind_the_task_is_understood(file):
    request, other = parse_tasks([f"lm_eval/gsm8k={file}:4", "playground/news"], 7)
    assert (request.task, request.count, other.count) == (f"gsm8k={file}", 4, 7)
    assert request.name == "lm_eval/gsm8k"
    task = request.load()
    assert (len(task.prompts), task.chat, task.max_new_tokens) == (4, True, 512)
    assert len(parse_tasks(["lm_eval"], 5)) == len(TASKS)
    with pytest.raises(ValueError, match="no task 'gsm=x'"):
        parse_tasks(["lm_eval/gsm=x"], 5)


def test_items_do_not_overlap_and_are_scored(file):
    first, second = (load_task(f"gsm8k={file}", 5, "test", 0, skip) for skip in (0, 5))
    assert len({*first.prompts, *second.prompts}) == 10
    assert first.prompts != load_task(f"gsm8k={file}", 5, "test", 1).prompts
    gold = json.loads(first.documents[0]["reference"]).removeprefix("#### ")
    answers = [(0, f"The answer is {gold}."), (0, "The answer is 999.")]
    assert first.figures(answers) == [{"exact_match": 1.0}, {"exact_match": 0.0}]


def test_what_is_not_there_is_refused(file):
    with pytest.raises(ValueError, match="10 rows, and 11"):
        load_task(f"gsm8k={file}", 6, "test", 0, 5)
    with pytest.raises(ValueError, match="held-out"):
        load_task(f"gsm8k={file}", 2, "train", 0)
    with pytest.raises(ValueError, match="held-out"):
        load_task("math500", 2, "train", 0)
    with pytest.raises(ValueError, match="no target"):
        model_folder("target")
