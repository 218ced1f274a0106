"""Points chosen on tasks of their own, and only those decoded on the test items."""

import csv
import json
from dataclasses import replace

import pytest
from brief_tasks import BriefTask
from comparing import OPEN, SETTINGS, WORDS, point

from hf_selfjudge.evaluation.compare import compare
from hf_selfjudge.evaluation.judges import sweep_thetas
from hf_selfjudge.evaluation.matched import CRITERIA
from hf_selfjudge.evaluation.page import report
from hf_selfjudge.evaluation.plan import make_plan

RULES = ("topk:2/3/4,floor:0.3/0.1/0.01",)
CHOSEN = replace(SETTINGS, rules=RULES, tasks=(f"{WORDS}:3,{OPEN}:1",), selection_tasks=(f"{WORDS}:2",), test="chosen")


@pytest.fixture(scope="module")
def chosen(tmp_path_factory):
    """Folder and results of a comparison in which only chosen points are tested."""
    out = tmp_path_factory.mktemp("chosen")
    scored = []

    def score(self, index, text):
        scored.append(self.prompts[index])
        return 1.0 if len(text) % 2 else 0.5

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(BriefTask, "score", score)
        first = compare(CHOSEN, out, progress=False, report=False)
        on = set(scored)
        results = compare(replace(CHOSEN, also=("topk:4",)), out, progress=False)
    return out, first, on, results


def test_only_chosen_points_are_decoded_on_the_test_items(chosen):
    out, first, _, results = chosen
    named = {entry["point"] for criterion in CRITERIA for entry in results["matched"][criterion]["methods"].values()}
    tested = {index for index, found in enumerate(results["points"]) if "test" in found}
    also = next(index for index, found in enumerate(results["points"]) if found["rule"] == "topk:4")
    assert tested == {0, also, *named}
    assert len(tested) < len(results["points"]) == 7
    assert all("selection" in found for found in results["points"])
    assert first["computed"]["results"] == 7 + 2 * len({0, *named})
    assert results["computed"]["results"] == 2 * (also not in named)
    assert len(list((out / "results" / "test").rglob("*.json.gz"))) == 2 * len(tested)


def test_selection_items_are_scored_at_once_and_test_items_are_not(chosen):
    _, first, on, results = chosen
    assert first["computed"]["scored"] == 7
    assert len(on) == 2  # the selection items
    items = results["conditions"]["items"]
    assert list(items["selection"]) == [WORDS]
    assert list(items["test"]) == [WORDS, OPEN]
    assert results["conditions"]["shared_prompts"] == 0


def test_the_outputs_show_what_was_tested(chosen):
    out, _, _, results = chosen
    files = report(results, out)
    assert [path.name for path in files] == ["compare.json", "compare.csv", "tradeoff.png", "index.html"]
    rows = list(csv.DictReader((out / "compare.csv").read_text().splitlines()))
    tested = [found for found in results["points"] if "test" in found]
    assert len([row for row in rows if row["set"] == "test"]) == 3 * len(tested)
    assert len([row for row in rows if row["set"] == "selection"]) == 2 * 7
    page = (out / "index.html").read_text()
    assert "selection items, pooled; those not chosen were not tested" in page
    assert "tasks of their own" in page
    for entry in results["matched"]["within"]["methods"].values():
        assert entry["test"] == results["points"][entry["point"]]["test"]["pooled"]
    assert point(results, "exact")["phases"]["seconds"] > 0


def test_all_points_are_tested_unless_asked_otherwise(tmp_path):
    settings = replace(CHOSEN, rules=("topk:2",), tasks=(f"{WORDS}:1",), test="all", resamples=10)
    found = compare(settings, tmp_path, progress=False)
    assert all("test" in one for one in found["points"])
    assert found["computed"]["results"] == 4


def test_items_in_both_sets_are_told(tmp_path, caplog):
    rows = [{"question": f"What is {n} + 1?", "answer": f"#### {n + 1}"} for n in range(6)]
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    same = replace(CHOSEN, tasks=(f"lm_eval/gsm8k={file}:5",), selection_tasks=(f"lm_eval/gsm8k={file}:4",))
    assert make_plan(same, tmp_path).shared_prompts in (3, 4)
    assert "both selection and test items" in caplog.text


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"select_on": "held-out"}, "selection-tasks are given and select-on is 'held-out'"),
        ({"selection_tasks": (), "select_on": "test"}, "chosen before they are tested"),
        ({"test": "all", "also": ("topk:9",)}, "every rule is tested"),
        ({"test": "some"}, "test is 'some', expected one of all, chosen"),
        ({"max_prompt_tokens": 0}, "max-prompt-tokens is 0"),
        ({"score_workers": -1}, "score-workers is -1"),
    ],
)
def test_what_contradicts_itself_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        replace(CHOSEN, **changes)


def test_tasks_without_a_score_cannot_choose(tmp_path):
    settings = replace(CHOSEN, rules=("topk:2",), tasks=(f"{WORDS}:1",), selection_tasks=(f"{OPEN}:1",))
    with pytest.raises(ValueError, match="No selection task has a score"):
        compare(settings, tmp_path, progress=False)


def test_the_selection_alone_and_the_verdicts_points_alone(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(BriefTask, "score", lambda self, index, text: 1.0 if len(text) % 2 else 0.5)
    none = replace(CHOSEN, test="none", resamples=20)
    found = compare(none, tmp_path, progress=False)
    assert [one["rule"] for one in found["selection"]["points"]][:3] == ["exact", "topk:2", "topk:3"]
    assert not (tmp_path / "results" / "test").exists()
    verdict = compare(replace(none, test="verdict"), tmp_path, progress=False)
    assert list(verdict["matched"]) == [none.criterion]
    chosen = {name: entry["point"] for name, entry in verdict["matched"][none.criterion]["methods"].items()}
    rules = {name: verdict["points"][index]["rule"] for name, index in chosen.items()}
    assert rules == found["selection"]["chosen"]
    tested = {index for index, one in enumerate(verdict["points"]) if "test" in one}
    assert tested == {0, *chosen.values()}


def test_shares_of_swept_judges():
    values = [at / 100 for at in range(101)]
    assert sweep_thetas(values, [0.33], shares=[0.25, 0.5]) == [0.75, 0.5]
    assert 0.33 in sweep_thetas(values, [0.33])
    with pytest.raises(ValueError, match=r"shares are \(1.5,\), expected numbers in \(0, 1\)"):
        replace(CHOSEN, shares=(1.5,))
