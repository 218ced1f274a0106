"""Comparisons on prompts of one's own."""

import json
from dataclasses import replace

import pytest
from comparing import SETTINGS, point

from hf_selfjudge.evaluation.compare import compare
from hf_selfjudge.evaluation.providers import TaskRequest, parse_tasks

ROWS = [{"question": f"What is {n} plus {n}?", "answer": str(2 * n)} for n in range(12)]


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "deep" / "sums.jsonl"
    path.parent.mkdir()
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return path


def test_a_source_with_a_checker_is_a_task(file):
    assert not TaskRequest("prompts", str(file), 3).has_splits
    assert TaskRequest("lm_eval", "gsm8k", 3).has_splits
    (request,) = parse_tasks([f"prompts/{file}?prompt=question&checker=math&reference=answer:5"], 9)
    assert (request.provider, request.name, request.count) == ("prompts", "prompts/sums.jsonl", 5)
    task, others = request.load(), replace(request, skip=5).load()
    assert not set(task.prompts) & set(others.prompts)
    assert task.prompts == request.load().prompts != replace(request, seed=1).load().prompts
    gold = task.rows[2].reference
    found = task.figures([(2, f"The answer is {gold}."), (2, "The answer is 999."), (2, "Who knows?")])
    assert found == [{"score": 1.0}, {"score": 0.0}, {"score": 0.0}]
    assert task.scoring != others.scoring
    open_ended = TaskRequest("prompts", f"{file}?prompt=question", 5).load()
    assert open_ended.figures([(0, "anything")]) == [{}]


def test_rules_are_compared_on_it(file, tmp_path):
    settings = replace(
        SETTINGS,
        rules=("topk:2",),
        tasks=(f"prompts/{file}?prompt=question&checker=math&reference=answer:4",),
        select_on="held-out",
        bench=replace(SETTINGS.bench, max_new_tokens=12),
        ours=None,
    )
    results = compare(settings, tmp_path / "out", progress=False)
    row = point(results, "topk:2")["test"]["tasks"]["prompts/sums.jsonl"]
    assert row["items"] == 4
    assert 0.0 <= row["score"]["estimate"] <= 1.0
    assert compare(settings, tmp_path / "out", progress=False)["computed"]["results"] == 0


@pytest.mark.parametrize(
    ("task", "message"),
    [
        ("prompts", "names no source"),
        ("prompts/none.jsonl:3", "none.jsonl"),
        ("prompts/{file}?checker=spelling:3", "spelling"),
        ("prompts/playground/news:3", "write playground/news instead"),
        ("prompts/{file}?prompt=question:13", "has 12 rows, and 13 are asked for"),
        ("prompts/{file}?prompt=question:x", "count 'x'"),
    ],
)
def test_what_is_wrong_is_told(task, message, file):
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        parse_tasks([task.format(file=file)], 9)[0].load()


def test_training_rows_and_chats_are_refused(file, tmp_path):
    with pytest.raises(ValueError, match=r"no training rows .* --select-on held-out"):
        TaskRequest("prompts", f"{file}?prompt=question", 3, split="train").load()
    chat = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}]
    (tmp_path / "chats.jsonl").write_text(json.dumps({"messages": chat}) + "\n")
    with pytest.raises(ValueError, match="other than one user message"):
        TaskRequest("prompts", str(tmp_path / "chats.jsonl"), 1).load()
