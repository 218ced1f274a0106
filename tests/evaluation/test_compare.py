"""A whole small comparison on the embedded pair: figures against `generate` itself, resuming, outputs, command line."""

import argparse
import gzip
import json
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from brief_tasks import LONGEST, BriefTask
from comparing import BENCH, OPEN, RULES, SETTINGS, WORDS, point, stored
from tiny import build_judge

from hf_selfjudge import SelfJudgeVerifier
from hf_selfjudge.evaluation import judges
from hf_selfjudge.evaluation import workers as bench_module
from hf_selfjudge.evaluation.command import add_compare, run_compare
from hf_selfjudge.evaluation.compare import compare
from hf_selfjudge.evaluation.decode import decode, tokenize
from hf_selfjudge.evaluation.providers import TaskRequest, parse_tasks
from hf_selfjudge.evaluation.settings import CompareSettings
from hf_selfjudge.evaluation.workers import Bench, BenchSettings
from hf_selfjudge.playground import ASSETS
from hf_selfjudge.playground.tasks import load_task
from hf_selfjudge.playground.world import generate, score
from hf_selfjudge.rules import parse_rule


def answers(pair, items, **call):
    """One item after the other, straight through `generate`."""
    target, _, tokenizer = pair
    found = []
    for item in items:
        chat = [{"role": "user", "content": item.prompt}]
        ids = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt", return_dict=True)
        out = target.generate(**ids, do_sample=False, max_new_tokens=LONGEST, return_dict_in_generate=True, **call)
        text = tokenizer.decode(out.sequences[0, ids["input_ids"].shape[1] :], skip_special_tokens=True)
        found.append((text, getattr(out, "judge_stats", None)))
    return found


# -- what is measured -------------------------------------------------------------------------------------------------


def test_exact_is_the_target_alone(embedded, compared):
    out, results, _ = compared
    items = generate("word_problems", "test", 4, 0)
    plain = answers(embedded, items)
    folder = out / "results" / "test" / "brief-word_problems"
    (kept,), (scores,) = folder.glob("exact-*.json.gz"), folder.glob("exact-*.scores-*.json")
    task = BriefTask(WORDS, items)
    assert stored(kept)["texts"] == [text for text, _ in plain]
    found = json.loads(scores.read_text())["figures"]["score"]
    assert found == [task.score(index, text) for index, (text, _) in enumerate(plain)]
    row = point(results, "exact")["test"]["tasks"][WORDS]
    assert row["score"]["estimate"] == sum(found) / 4
    assert row["relaxed_share"] == row["lost"] == row["gained"] == 0


def test_figures_are_those_of_generate(embedded, compared):
    _, results, _ = compared
    items = generate("word_problems", "test", 4, 0)
    found = answers(embedded, items, assistant_model=embedded[1], judge="topk:2", num_assistant_tokens=4)
    total = sum((stats for _, stats in found[1:]), found[0][1])
    row = point(results, "topk:2")["test"]["tasks"][WORDS]
    assert total.judged_in > 0
    assert row["accepted_per_cycle"]["estimate"] == pytest.approx(total.accepted_per_cycle, abs=1e-6)
    assert row["tokens_per_target_forward"] == pytest.approx(total.tokens_per_target_forward, abs=1e-6)
    assert row["acceptance_rate"] == pytest.approx(total.acceptance_rate, abs=1e-6)
    assert row["forwards_per_answer"] == total.cycles / 4
    assert row["relaxed_share"] == pytest.approx(total.judged_in / total.new_tokens, abs=1e-6)
    scores = [BriefTask(WORDS, items).score(index, text) for index, (text, _) in enumerate(found)]
    assert row["score"]["estimate"] == pytest.approx(sum(scores) / 4)


def test_a_judge_at_theta_one_is_exact(compared):
    _, results, _ = compared
    ours, exact = point(results, "judge:playground@1.0&floor:0.01+digits"), point(results, "exact")
    for task, row in ours["test"]["tasks"].items():
        same = exact["test"]["tasks"][task]
        assert {**row, "seconds": 0} == {**same, "seconds": 0}
    assert ours["test"]["pooled"]["length_ratio"] == {"estimate": 1.0, "low": 1.0, "high": 1.0}


def test_selection_items_are_others_than_test_items(compared):
    _, results, _ = compared
    items = results["conditions"]["items"]
    assert items["test"][WORDS] == {"count": 4, "split": "test", "seed": 0, "skip": 0, "left_out": 0}
    assert items["selection"][WORDS] == {
        "count": 2, "split": "train", "seed": 2000, "skip": 0, "left_out": 0,
    }  # fmt: skip
    for found in results["points"]:
        assert found["selection"]["tasks"][WORDS]["items"] == 2
    first, second = (load_task("news", 3, "test", 0, skip).prompts for skip in (0, 3))
    assert not set(first) & set(second)
    assert first + second == load_task("news", 6, "test", 0).prompts


def test_tasks_without_a_score_are_not_pooled(compared):
    _, results, _ = compared
    assert results["pooled_over"] == [WORDS]
    found = point(results, "topk:2")["test"]
    assert found["tasks"][OPEN]["score"] is None
    assert found["pooled"]["accepted_per_cycle"] == found["tasks"][WORDS]["accepted_per_cycle"]


def test_ready_text_is_not_put_into_the_chat_template(embedded):
    task = replace(load_task("news", 2, "test", 0), chat=False)
    advanced = []
    prompts = tokenize(embedded[2], task)
    found = decode(
        embedded, prompts, parse_rule("exact"), gamma=3, max_new_tokens=5, batch_size=1, advance=advanced.append
    )
    assert advanced == [1, 1]
    ids = embedded[2](task.prompts[1], return_tensors="pt")
    out = embedded[0].generate(**ids, do_sample=False, max_new_tokens=5)
    text = embedded[2].decode(out[0, ids["input_ids"].shape[1] :], skip_special_tokens=True)
    assert found.texts[1] == text


def test_whole_answers_of_the_playground_are_the_targets_own_with_their_scores(embedded):
    items = generate("word_problems", "test", 2, 0)
    target, _, tokenizer = embedded
    task = load_task("word_problems", 2, "test", 0)
    found = decode(embedded, tokenize(tokenizer, task), parse_rule("exact"), gamma=7, max_new_tokens=160, batch_size=2)
    for index, item in enumerate(items):
        chat = [{"role": "user", "content": item.prompt}]
        ids = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt", return_dict=True)
        out = target.generate(**ids, do_sample=False, max_new_tokens=160)[0, ids["input_ids"].shape[1] :]
        text = tokenizer.decode(out, skip_special_tokens=True)
        assert found.texts[index] == text
        assert task.figures([(index, text)]) == [{"score": score(item, text)}]
        assert found.new_tokens[index] == len(out)
    assert found.judged_in == [0, 0]


# -- resuming ---------------------------------------------------------------------------------------------------------


def test_finished_results_are_not_computed_again(compared, monkeypatch):
    out, results, _ = compared
    assert results["computed"]["results"] == 4 * 2 * 2
    monkeypatch.setattr(bench_module, "Bench", None)  # nothing may be loaded
    again = compare(SETTINGS, out, progress=False)
    assert again.pop("computed")["results"] == 0
    assert again == {key: value for key, value in results.items() if key != "computed"}


def test_only_lost_or_broken_answers_are_computed_again(compared):
    out, results, _ = compared
    paths = sorted((out / "results" / "test").rglob("*.json.gz"))
    every = sorted((out / "results" / "test").rglob("*.json*"))
    before = {path: stored(path) for path in paths}
    lost, broken, short = paths[0], paths[3], paths[-1]
    lost.unlink()
    broken.write_bytes(broken.read_bytes()[:-20])
    short.write_bytes(gzip.compress(json.dumps({**before[short], "texts": before[short]["texts"][:1]}).encode()))
    again = compare(SETTINGS, out, progress=False)
    # the answers are the same, and so are their scores
    assert (again["computed"]["results"], again["computed"]["scored"]) == (3, 0)
    for path in paths:
        new, old = stored(path), before[path]
        assert (new == old) == (path not in (lost, broken, short))
        assert {**new, "seconds": 0, "phases": 0} == {**old, "seconds": 0, "phases": 0}
    assert again["matched"]["within"]["methods"]["topk"]["test"] | {"seconds": 0} == (
        results["matched"]["within"]["methods"]["topk"]["test"] | {"seconds": 0}
    )
    assert sorted((out / "results" / "test").rglob("*.json*")) == every  # nothing doubled


def test_only_lost_or_strange_scores_are_made_again(compared, monkeypatch):
    out, _, _ = compared
    paths = sorted((out / "results" / "test").rglob("*.scores-*.json"))
    before = {path: path.read_bytes() for path in paths}
    lost, broken, short, other = paths[0], paths[1], paths[2], paths[-1]
    lost.unlink()
    broken.write_bytes(before[broken][:-9])
    found = json.loads(before[short])
    short.write_text(json.dumps({**found, "figures": {name: v[:1] for name, v in found["figures"].items()} or 3}))
    other.write_text(json.dumps({**json.loads(before[other]), "answers": 1}))  # of other answers
    monkeypatch.setattr(bench_module, "Bench", None)
    again = compare(SETTINGS, out, progress=False)
    assert (again["computed"]["results"], again["computed"]["scored"]) == (0, 4)
    assert {path: path.read_bytes() for path in paths} == before


def test_an_interrupted_run_keeps_what_is_finished(tmp_path, monkeypatch):
    settings = replace(SETTINGS, tasks=(f"{WORDS}:1",), select_on="test", rules=("topk:2",), resamples=10)
    measure = Bench.measure

    def interrupted(self, job, advance):
        if job.point.spec == "topk:2":
            raise KeyboardInterrupt
        return measure(self, job, advance)

    monkeypatch.setattr(Bench, "measure", interrupted)
    with pytest.raises(KeyboardInterrupt):
        compare(settings, tmp_path, progress=False)
    monkeypatch.undo()
    assert compare(settings, tmp_path, progress=False)["computed"]["results"] == 1


def test_other_settings_are_other_results(compared, tmp_path, monkeypatch):
    out, _, _ = compared
    due = []
    monkeypatch.setattr(bench_module.Inline, "run", lambda self, jobs, advance: due.append(len(jobs)) or 1 / 0)
    for changed in (
        replace(SETTINGS, bench=replace(BENCH, gamma=3)),
        replace(SETTINGS, bench=replace(BENCH, mode="judge-only")),
        replace(SETTINGS, bench=replace(BENCH, dtype="bfloat16")),
        replace(SETTINGS, seed=1, select_on="test"),
    ):
        with pytest.raises(ZeroDivisionError):
            compare(changed, out, progress=False)
    with pytest.raises(ZeroDivisionError):
        compare(replace(SETTINGS, rules=("topk:3", *RULES)), out, progress=False)
    assert due == [16, 16, 16, 8, 4]


def test_a_swept_judge_gets_its_thetas_once(tmp_path, monkeypatch):
    monkeypatch.setattr(judges, "ACCEPTED_SHARES", (0.1, 0.9))
    settings = replace(
        SETTINGS, rules=("judge:playground@sweep",), tasks=(f"{WORDS}:2",), select_on="test", resamples=10
    )
    first = compare(settings, tmp_path, progress=False)
    thetas = [float(found["rule"].split("@")[1]) for found in first["points"][1:]]
    assert thetas == sorted(thetas, reverse=True)
    named = set(SelfJudgeVerifier.from_pretrained(ASSETS / "judge").config.thresholds.values())
    assert len(thetas) == 2 + len(named - {1.0})  # with those that the judge has names for; 1 accepts nothing
    (path,) = (tmp_path / "results").glob("thetas-*.json")
    assert json.loads(path.read_text()) == {"playground": thetas}
    lengths = [found["test"]["pooled"]["accepted_per_cycle"]["estimate"] for found in first["points"]]
    assert lengths[-1] > lengths[0]
    path.write_text(json.dumps({"playground": thetas[:1]}))
    assert len(compare(settings, tmp_path, progress=False)["points"]) == 2
    path.write_text(json.dumps({"playground": []}))
    with pytest.raises(ValueError, match="The sweep of judge:playground has no point"):
        compare(settings, tmp_path, progress=False)


def test_thetas_follow_the_judges_names(tmp_path, monkeypatch):
    monkeypatch.setattr(judges, "ACCEPTED_SHARES", (0.1, 0.9))
    judge = SelfJudgeVerifier.from_pretrained(ASSETS / "judge")
    judge.save_pretrained(tmp_path / "judge")
    rule = f"judge:{tmp_path / 'judge'}@sweep"
    settings = replace(SETTINGS, rules=(rule,), tasks=(f"{WORDS}:2",), select_on="test", resamples=10)
    compare(settings, tmp_path / "out", progress=False)
    judge.with_threshold(0.777777).save_pretrained(tmp_path / "judge")
    found = compare(settings, tmp_path / "out", progress=False)["points"]
    assert any(point["rule"].endswith("@0.777777") for point in found)


def test_a_judge_of_another_target_is_refused_before_any_model_is_loaded(tmp_path, monkeypatch):
    monkeypatch.setattr(bench_module, "Bench", None)
    build_judge(("hidden", "log_p")).save_pretrained(tmp_path / "states")
    settings = replace(SETTINGS, rules=(f"judge:{tmp_path / 'states'}@0.5",))
    with pytest.raises(ValueError, match="trained on hidden states of size 32, the target's have"):
        compare(settings, tmp_path / "out", progress=False)


# -- settings and command line ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rules": ("topp:2",)}, "Unknown rule"),
        ({"rules": ("judge:playground@best",)}, "no threshold named 'best'"),
        ({"tasks": ("gsm8k",)}, "no provider 'gsm8k'"),
        ({"tasks": ("playground/chess",)}, "has no task 'chess'"),
        ({"tasks": ("playground/news:0",)}, "count '0', expected an int >= 1"),
        ({"tasks": ("playground/news:2", "playground")}, "given twice"),
        ({"ours": "topp"}, "ours is 'topp', expected one of the methods exact, topk, ours"),
        ({"select_on": "dev"}, "select-on is 'dev'"),
        ({"criterion": "same"}, "criterion is 'same'"),
        ({"margin": -1.0}, "margin is -1.0"),
        ({"items": 0}, "items is 0"),
        ({"bench": replace(BENCH, mode="alignment-only")}, "mode is 'alignment-only'"),
        ({"bench": replace(BENCH, dtype="float31")}, "dtype is 'float31'"),
        ({"bench": replace(BENCH, dtype="int8")}, "dtype is 'int8'"),
        ({"bench": replace(BENCH, device="gpu")}, "device is 'gpu'"),
        ({"bench": replace(BENCH, device="meta")}, "device is 'meta'"),
        ({"seed": -1}, "seed is -1"),
    ],
)
def test_bad_settings_are_refused_before_any_model_is_loaded(changes, message, tmp_path, monkeypatch):
    monkeypatch.setattr(bench_module, "Bench", None)
    with pytest.raises(ValueError, match=message):
        compare(replace(SETTINGS, **changes), tmp_path, progress=False)


@pytest.mark.parametrize("name", ["gamma", "batch_size", "workers", "max_new_tokens"])
def test_a_pair_needs_counts(name):
    with pytest.raises(ValueError, match=f"{name.replace('_', '-')} is 0, expected at least 1"):
        replace(BENCH, **{name: 0})


def test_a_model_that_is_not_there_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"has no config.json"):
        compare(replace(SETTINGS, bench=replace(BENCH, target=str(tmp_path))), tmp_path, progress=False)
    with pytest.raises(FileNotFoundError, match="no/such/model is neither a folder nor a model on the Hub"):
        compare(replace(SETTINGS, bench=replace(BENCH, draft="no/such/model")), tmp_path, progress=False)


def test_tasks_by_name_and_count():
    assert parse_tasks(["playground/news,playground/word_problems:7"], 9) == [
        TaskRequest("playground", "news", 9),
        TaskRequest("playground", "word_problems", 7),
    ]
    assert len(parse_tasks(["playground:3"], 9)) == 4


def test_the_pair_of_a_provider_is_its_embedded_one(embedded):
    target = Bench(BENCH, {}).pair[0]
    assert torch.equal(target.lm_head.weight, embedded[0].lm_head.weight)


def parse(*argv):
    parser = argparse.ArgumentParser()
    add_compare(parser.add_subparsers(dest="command"))
    arguments = vars(parser.parse_args(["compare", *argv]))
    assert arguments.pop("run") is run_compare
    arguments.pop("command")
    return arguments


def test_the_command_ends_with_one_json_document(compared, capsys):
    out, results, _ = compared
    given = parse(
        "--rules", RULES[0], "--tasks", SETTINGS.tasks[0], "--gamma", "4", "--batch-size", "4", "--resamples", "200",
        "--selection-items", "2", "--out", str(out),
    )  # fmt: skip
    run_compare(**given)
    summary = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert summary["computed"]["results"] == 0
    assert summary["verdict"] == results["verdict"]
    run_compare(**parse("--rules", "-", "--redraw", "--intervals", "--out", str(out)))
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["verdict"] == results["verdict"]
    with pytest.raises(FileNotFoundError, match="without --redraw first"):
        run_compare(**parse("--rules", "-", "--redraw", "--out", str(out / "nowhere")))


def test_help_needs_nothing_heavy():
    code = (
        "import argparse, sys; from hf_selfjudge.evaluation.command import add_compare; p = argparse.ArgumentParser();"
        "add_compare(p.add_subparsers()); print([n for n in ('torch', 'transformers', 'numpy') if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.slow
def test_two_workers_give_the_results_of_one(tmp_path):
    settings = replace(SETTINGS, rules=("topk:2",), tasks=("playground/news:2,playground/word_problems:1",))
    one, two = (
        compare(replace(settings, bench=replace(BENCH, workers=workers)), tmp_path / str(workers), progress=False)
        for workers in (1, 2)
    )
    assert one["computed"]["results"] == two["computed"]["results"] == 8
    for a, b in zip(one["points"], two["points"], strict=True):
        assert a["test"]["pooled"] | {"seconds": 0} == b["test"]["pooled"] | {"seconds": 0}


def test_exact_decoding_tells_the_others_how_long_answers_take(compared, tmp_path, monkeypatch):
    seen, found = [], []

    def spy(*args, expected=None, **kwargs):
        seen.append(expected)
        found.append(decode(*args, expected=expected, **kwargs))
        return found[-1]

    monkeypatch.setattr("hf_selfjudge.evaluation.workers.decode", spy)
    bench = BenchSettings("playground", "playground", gamma=3, batch_size=4, max_new_tokens=6)
    settings = CompareSettings(bench, ("topk:2",), ("playground/news:4",), select_on="test", resamples=10)
    compare(settings, tmp_path, progress=False)
    assert seen == [None, found[0].cycles]
    assert sum(found[0].cycles) > 4
