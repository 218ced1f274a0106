"""The benchmarks as tasks of `selfjudge compare`."""

import json
from collections import Counter

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


def test_subjects_come_in_proportion(tmp_path):
    path = tmp_path / "rows.jsonl"
    sizes = {"virology": 50, "astronomy": 30, "anatomy": 17, "marketing": 3}
    rows = [
        {"question": f"{subject} {n}?", "subject": subject, "choices": ["yes", "no"], "answer": n % 2}
        for subject, size in sizes.items()
        for n in range(size)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    for skip, count in ((0, 20), (20, 20), (0, 37), (60, 40)):
        task = load_task(f"mmlu_cot={path}", count, "test", 3, skip)
        found = Counter(document["subject"] for document in task.documents)
        for subject, size in sizes.items():
            assert abs(found[subject] - count * size / 100) <= 1
    first, same, other = (load_task(f"mmlu_cot={path}", 20, "test", seed).prompts for seed in (3, 3, 4))
    assert first == same
    assert set(first) != set(other)


def test_functions_are_completed_and_run(tmp_path):
    path = tmp_path / "rows.jsonl"
    head = 'from math import floor\n\n\ndef half(n: float) -> int:\n    """Half of n, rounded down."""\n'
    test = "def check(candidate):\n    assert candidate(5) == 2\n    assert candidate(-1) == -1\n"
    path.write_text(json.dumps({"prompt": head, "test": test, "entry_point": "half"}) + "\n")
    task = load_task(f"humaneval={path}", 1, "test", 0)
    assert head.rstrip() in task.prompts[0]
    answers = {
        f"Sure:\n```python\n{head}    return floor(n / 2)\n```": 1.0,
        "```python\ndef half(n):\n    return floor(n / 2)\n```": 1.0,  # what the prompt imports is there
        "    return floor(n / 2)\n": 1.0,
        f"```python\n{head}    return int(n / 2)\n```": 0.0,
        "I cannot.": 0.0,
    }
    assert task.figures([(0, text) for text in answers]) == [{"pass_at_1": score} for score in answers.values()]


def test_both_tasks_on_news_share_their_prompts(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps({"article": "A dog ran.", "highlights": "Dog ran ."}) + "\n")
    by_rouge = load_task(f"cnn_dailymail_rouge={path}", 1, "test", 0)
    by_nli, other = (load_task(f"cnn_dailymail_fc={path}", 1, "test", 0, nli_model=name) for name in (None, "mine"))
    assert (by_rouge.source, by_rouge.prompts) == (by_nli.source, by_nli.prompts) == (other.source, other.prompts)
    assert by_rouge.figures([(0, "The dog ran.")])[0]["rouge1"] == pytest.approx(0.8)
    assert len({json.dumps(task.scoring) for task in (by_rouge, by_nli, other)}) == 3
    assert [task.needs_model for task in (by_rouge, by_nli)] == [False, True]
    named = parse_tasks([f"lm_eval/cnn_dailymail_fc={path},lm_eval/cnn_dailymail_rouge={path}"], 1, "mine")
    assert [request.nli_model for request in named] == ["mine", None]


def test_what_is_not_there_is_refused(file):
    with pytest.raises(ValueError, match="10 rows, and 11"):
        load_task(f"gsm8k={file}", 6, "test", 0, 5)
    with pytest.raises(ValueError, match="held-out"):
        load_task(f"gsm8k={file}", 2, "train", 0)
    with pytest.raises(ValueError, match="held-out"):
        load_task("math500", 2, "train", 0)
    with pytest.raises(ValueError, match="no target"):
        model_folder("target")
