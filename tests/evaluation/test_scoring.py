"""Longest answers and prompts, figures beside the score, and answers scored again by another scorer."""

import csv
import json
from dataclasses import replace
from pathlib import Path

import pytest
from brief_tasks import BriefTask
from comparing import BENCH, SETTINGS, WORDS, point, stored

from hf_selfjudge import checkers
from hf_selfjudge.evaluation import lengths as lengths_module
from hf_selfjudge.evaluation import workers as bench_module
from hf_selfjudge.evaluation.compare import compare
from hf_selfjudge.evaluation.decode import tokenize
from hf_selfjudge.evaluation.page import report
from hf_selfjudge.evaluation.providers import Part, TaskRequest
from hf_selfjudge.evaluation.scoring import score_jobs
from hf_selfjudge.lm_eval import factual_consistency, provider, scorers
from hf_selfjudge.lm_eval.scorers import rouge

ONE = replace(SETTINGS, rules=("topk:2",), tasks=(f"{WORDS}:4",), select_on="test", resamples=20)


def test_longer_prompts_are_left_out_for_all_rules(tmp_path, embedded, monkeypatch):
    task = TaskRequest("brief", "word_problems", 4).load()
    sizes = [*map(len, tokenize(embedded[2], task))]
    most = sorted(sizes)[1]
    kept = [index for index, size in enumerate(sizes) if size <= most]
    assert len(kept) in (2, 3)
    whole, short = (compare(replace(ONE, max_prompt_tokens=limit), tmp_path, progress=False) for limit in (None, most))
    assert short["conditions"]["items"]["test"][WORDS]["left_out"] == 4 - len(kept)
    assert "prompts were too long)" in report(short, tmp_path)[-1].read_text()
    folder = tmp_path / "results" / "test" / "brief-word_problems"
    for rule in ("exact", "topk-2"):
        few, all_ = sorted(
            (stored(path) for path in folder.glob(f"{rule}-*.json.gz")), key=lambda one: len(one["texts"])
        )
        assert few["texts"] == [all_["texts"][index] for index in kept]
    scores = [
        BriefTask(WORDS, task.items).score(index, all_["texts"][index]) for index in kept
    ]  # items keep their index
    assert point(short, "topk:2")["test"]["tasks"][WORDS]["score"]["estimate"] == pytest.approx(
        sum(scores) / len(kept), abs=1e-6
    )
    assert point(whole, "topk:2")["test"]["tasks"][WORDS]["items"] == 4
    # the lengths are known from now on
    monkeypatch.setattr(lengths_module, "tokenize", None)
    assert compare(replace(ONE, max_prompt_tokens=most), tmp_path, progress=False)["computed"]["results"] == 0
    with pytest.raises(ValueError, match="max-prompt-tokens is 2; give a larger number"):
        compare(replace(ONE, max_prompt_tokens=2), tmp_path, progress=False)


def test_the_longest_answer_is_part_of_what_is_asked_for(tmp_path):
    settings = replace(ONE, bench=replace(BENCH, max_new_tokens=3), tasks=(f"{WORDS}:2",))
    assert compare(settings, tmp_path, progress=False)["computed"]["results"] == 2
    for path in tmp_path.rglob("*.json.gz"):
        assert max(stored(path)["new_tokens"]) <= 3
    longer = replace(settings, bench=replace(BENCH, max_new_tokens=4))
    assert compare(longer, tmp_path, progress=False)["computed"]["results"] == 2


def test_equal_answers_are_scored_once(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(BriefTask, "score", lambda self, index, text: asked.append((index, text)) or 1.0)
    compare(replace(ONE, rules=("topk:2,judge:playground@1.0",)), tmp_path, progress=False)
    assert len(asked) == len(set(asked)) < 3 * 4


@pytest.fixture
def news(tmp_path):
    """A comparison on two articles, scored by ROUGE."""
    rows = [
        {"article": f"A dog ran in town {n}. It was true.", "highlights": f"Dog runs in town {n} ."} for n in (1, 2)
    ]
    file = tmp_path / "news.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return replace(ONE, tasks=(f"lm_eval/cnn_dailymail_rouge={file}:2",), bench=replace(BENCH, max_new_tokens=12))


def test_figures_beside_the_score_are_kept_and_reported(news, tmp_path):
    out = tmp_path / "out"
    results = compare(news, out, progress=False)
    row = point(results, "topk:2")["test"]["tasks"]["lm_eval/cnn_dailymail_rouge"]
    assert list(row["figures"]) == ["rouge1", "rouge2"]
    (path,) = (out / "results" / "test" / "lm_eval-cnn_dailymail").glob("topk-2-*.json.gz")
    task = TaskRequest("lm_eval", news.tasks[0].removeprefix("lm_eval/").removesuffix(":2"), 2).load()
    expected = [
        rouge(json.loads(document["reference"])["highlights"], text)
        for document, text in zip(task.documents, stored(path)["texts"], strict=True)
    ]
    for name, found in (("rougeL", row["score"]), ("rouge1", row["figures"]["rouge1"]["score"])):
        assert found["estimate"] == pytest.approx(sum(one[name] for one in expected) / 2, abs=1e-6)
    report(results, out)
    rows = list(csv.DictReader((out / "compare.csv").read_text().splitlines()))
    assert f"rouge1={row['figures']['rouge1']['score']['estimate']}" in {
        part for one in rows if one["rule"] == "topk:2" for part in one["other_figures"].split()
    }
    assert "rouge2: difference, points" in (out / "index.html").read_text()


def test_answers_are_scored_again_by_another_scorer(news, tmp_path, monkeypatch):
    out = tmp_path / "out"
    compare(news, out, progress=False, report=False)
    monkeypatch.setattr(bench_module, "Bench", None)
    asked = []

    def classify(pairs, model):
        asked.append((len(pairs), model))
        return [(1.0, 0.5)] * len(pairs)

    monkeypatch.setattr(factual_consistency, "_classify", classify)
    consistent = replace(news, tasks=(news.tasks[0].replace("rouge", "fc"),), nli_model="mine")
    found = compare(consistent, out, progress=False, decode=False, report=False)
    assert (found["computed"]["scored"], found["computed"]["missing"]) == (2, 0)
    assert {model for _, model in asked} == {"mine"}
    results = compare(consistent, out, progress=False)
    assert (results["computed"]["results"], results["computed"]["scored"]) == (0, 0)
    row = point(results, "exact")["test"]["tasks"]["lm_eval/cnn_dailymail_fc"]
    assert (row["score"]["estimate"], row["figures"]["fc_probability"]["score"]["estimate"]) == (1.0, 0.5)
    assert compare(news, out, progress=False)["computed"]["scored"] == 2  # ROUGE beside it
    other = replace(consistent, nli_model="no/such/model")
    with pytest.raises(ValueError, match="NLI model 'no/such/model' cannot be read"):
        compare(other, out, progress=False)
    monkeypatch.setattr(provider, "check_model", lambda model: None)
    assert compare(other, out, progress=False)["computed"]["scored"] == 2
    monkeypatch.setattr(scorers, "version", lambda: "newer")
    assert compare(news, out, progress=False)["computed"]["scored"] == 2  # the scorers changed
    assert compare(other, out, progress=False)["computed"]["scored"] == 0  # which are not the model


def test_the_scorers_version_is_that_of_their_code(tmp_path, monkeypatch):
    def versions():
        checkers.version.cache_clear()
        scorers.version.cache_clear()
        return checkers.version(), scorers.version()

    first = versions()
    for path in Path(checkers.__file__).parent.glob("*.py"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    monkeypatch.setattr(checkers, "__file__", str(tmp_path / "__init__.py"))
    assert versions() == first
    (tmp_path / "latex.py").write_text("# better\n")
    assert not set(versions()) & set(first)
    monkeypatch.undo()
    assert versions() == first


def test_part_of_a_task_counts_anew():
    whole = TaskRequest("brief", "word_problems", 4).load()
    part = Part(whole, (1, 3))
    assert part.prompts == [whole.prompts[1], whole.prompts[3]]
    assert part.figures([(1, "abc")]) == whole.figures([(3, "abc")])
    assert (part.name, part.source, part.chat, part.max_new_tokens) == (WORDS, WORDS, True, whole.max_new_tokens)


@pytest.mark.slow
def test_scores_of_two_processes_are_those_of_one(tmp_path):
    settings = replace(ONE, tasks=("playground/news:2",), bench=replace(BENCH, max_new_tokens=8))
    one, two = (
        compare(replace(settings, score_workers=count), tmp_path / str(count), progress=False) for count in (1, 2)
    )
    assert one["computed"]["scored"] == two["computed"]["scored"] == 2
    for a, b in zip(one["points"], two["points"], strict=True):
        assert a["test"]["pooled"] | {"seconds": 0} == b["test"]["pooled"] | {"seconds": 0}
    assert score_jobs([], {}, 2, False) == 0
