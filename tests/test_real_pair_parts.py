"""The parts of the real pair's page that come from builds, tuning, checks and timings say what their files say."""

import copy
import gzip
import json
from pathlib import Path

import pytest
from real_pair import again, builds, consistency, costs, split, tables
from tables_read import rows

from hf_selfjudge.evaluation.providers import TaskRequest

ROOT = Path(__file__).parent.parent


def test_how_far_the_consistency_can_be_trusted():
    compared = {"items": 9, "supported": 0.25, "auc": 0.9, "low": 0.8, "high": 0.95, "paired": 0.75}
    found = {"nli_model": "prompt:T", "rows": 10, "real": {"supported": 0.9}, "other_article": compared}
    text = consistency.check_text({**found, "one_replaced": {**compared, "auc": 0.6}})
    for part in ("`prompt:T`", "90.0 %", "25.0 %", "0.900 [0.800, 0.950]", "0.600 [0.800", "75 % of 9 cases"):
        assert part in text


def test_rows_that_are_tuned_on_are_not_tested(tmp_path):
    problems, questions = ([json.dumps({"question": f"{kind} {n}"}) for n in range(7)] for kind in "pq")
    articles = [json.dumps({"article": f"Story {n}.", "highlights": f"Told {n}."}) for n in range(split.TESTED + 5)]
    for name, lines in (("p", problems), ("q", questions), ("a", articles)):
        (tmp_path / f"{name}.jsonl").write_text("".join(f"{line}\n" for line in lines))
    split.main(*(str(tmp_path / name) for name in ("p.jsonl", "q.jsonl", "a.jsonl", "out")))
    made = {
        path.name.split(".")[0]: gzip.decompress(path.read_bytes()).decode().splitlines()
        for path in (tmp_path / "out").iterdir()
    }
    assert made["gsm8k-build"] + made["gsm8k-selection"] == problems
    assert sorted(made["mmlu-build"] + made["mmlu-selection"]) == sorted(questions)
    tested = TaskRequest("lm_eval", f"cnn_dailymail_rouge={tmp_path / 'a.jsonl'}", split.TESTED).load().prompts
    assert len(made["cnn-build"]) == 5
    for line in made["cnn-build"]:
        assert not any(json.loads(line)["article"] in prompt for prompt in tested)


def write_run(out, name, gamma, batch, texts, scores, scored="aa"):
    """Exact decoding's answers to one task, as a comparison leaves them."""
    folder = out / "results" / "test" / name
    folder.mkdir(parents=True)
    task = {"source": name, "count": len(texts)}
    document = {"fingerprint": {"gamma": gamma, "task": task}, "texts": texts, "made_with": {"batch_size": batch}}
    (folder / f"exact-{gamma}.json.gz").write_bytes(gzip.compress(json.dumps(document).encode()))
    (folder / f"exact-{gamma}.scores-{scored}.json").write_text(json.dumps({"figures": {"score": scores, "x": [9]}}))


def test_exact_decoding_beside_itself(tmp_path, monkeypatch):
    first, other = tmp_path / "first", tmp_path / "other"
    write_run(first, "sums", 20, 256, ["a", "b", "c", "d"], [1.0, 0.0, 1.0, 0.0])
    write_run(other, "sums", 8, 96, ["a", "B", "C", "D"], [1.0, 1.0, 0.0, 1.0])
    write_run(first, "news", 20, 256, ["a", "b"], [0.3, 1.0])  # no right or wrong
    write_run(other, "news", 8, 96, ["a", "b"], [0.3, 1.0])
    write_run(first, "code", 20, 256, ["a"], [1.0])
    write_run(other, "code", 8, 96, ["a"], [0.0], scored="bb")  # scored in another way
    write_run(first, "more", 20, 256, ["a"], [1.0])  # not in the other run
    monkeypatch.setattr("sys.argv", ["again.py", str(first), str(other), str(tmp_path / "again.json")])
    again.main()
    found = json.loads((tmp_path / "again.json").read_text())
    assert found == {
        "base": {"gamma": 20, "batch_size": 256},
        "runs": [{"gamma": 8, "batch_size": 96, "answers": 7, "same": 4, "right_or_wrong": 4, "lost": 1, "gained": 2}],
    }
    text = tables.again_table(found)
    assert rows(text)[1] == [["8", "96", "57.1", "25.0", "50.0", "+25.00"]]
    assert "blocks of 20 and batches of 256; 7 answers together, 4 of them right or wrong" in text


def test_the_speed():
    run = {"prompts": 24, "tokens": 4800, "seconds": 4.0, "tokens_per_s": 1200.0}
    lengths = {"accepted_per_cycle": 11.0, "tokens_per_target_forward": 12.0, "judged_in": 0}
    report = {
        "methods": {
            "plain": {**run, "prompts": 3, "tokens_per_s": 150.0},
            "stock assisted": {**run, "prompts": 3, "tokens_per_s": 200.0},
            "plain, same engine": {**run, "tokens_per_s": 600.0},
            "exact": {**run, **lengths},
            "judge": {**run, **lengths, "tokens_per_s": 1464.0, "accepted_per_cycle": 14.0,
                      "tokens_per_target_forward": 15.0},
        },
        "exact_over_stock_assisted": 6.0, "exact_over_plain": 8.0, "exact_over_plain_same_engine": 2.0,
        "judge_over_exact_by_round": [1.2, 1.24], "judge_over_exact": 1.22,
        "predicted_by_lengths": 1.25, "measured_over_predicted": 0.976, "gamma": 20,
        "rule": "judge:/models/judges/rejoin@0.3&floor:0.03+digits", "batch": 1, "new_tokens": 256,
        "device": "NVIDIA X", "dtype": "bfloat16", "torch": "2.99", "transformers": "5.98",
    }  # fmt: skip
    text = tables.speed_table(report)
    assert rows(text)[1] == [
        ["`generate`", "3", "150", "0.12x", "", ""],
        ["`generate(assistant_model=)`", "3", "200", "0.17x", "", ""],
        ["ours, target alone", "24", "600", "0.50x", "", ""],
        ["ours, exact", "24", "1200", "1.00x", "11.00", "12.00"],
        ["ours, `judge:rejoin@0.3&floor:0.03+digits`", "24", "1464", "1.22x", "14.00", "15.00"],
    ]
    for part in (
        "6.0 times stock", "8.0 times plain; 2.00 times the target alone", "1.20, 1.24",
        "1.22 times exact", "predict 1.25", "0.976",
        "NVIDIA X, bfloat16, batch 1", "gamma 20", "256 new tokens", "torch 2.99, transformers 5.98",
    ):  # fmt: skip
        assert part in text
    assert "upper bounds" in text
    assert "upper bounds" not in tables.speed_table({**report, "warmed_up": True})


@pytest.fixture
def found_builds():
    return json.loads((ROOT / "benchmarks/results/real-pair/build.json").read_text(encoding="utf-8"))


def test_the_features_of_the_judges(found_builds):
    wanted = {name: copy.deepcopy(found_builds[name]) for name in ("paper", "rejoin")}
    wanted["rejoin"]["judges"] = [
        {"feature_set": "scalars", "model": "logistic", "mean": 0.65, "sd": 0.0154},
        {"feature_set": "hidden+scalars", "model": "mlp", "mean": 0.7612, "sd": 0.002},
    ]
    wanted["rejoin"]["settings"]["label"]["labels"] = "hybrid"
    wanted["rejoin"]["settings"]["score"]["follow"] = 8
    wanted["paper"]["calibration_auc"] = 0.1234
    text = builds.feature_table(wanted)
    _, found = rows(text)
    hybrid = "answer preserved, else rejoin, N = 40, follow 8"
    assert found[0][:3] == ["paper", "likelihood, N = 20", "`paper`"]
    assert "±" not in found[0][3]  # one seed
    assert found[1:] == [["rejoin", hybrid, "`scalars`", "0.650 ± 0.015", "3"],
                         ["rejoin", hybrid, "`hidden+scalars, mlp`", "**0.761** ± 0.002", "3"]]  # fmt: skip
    assert "paper 0.123," in text


def test_stages_that_builds_share_count_once():
    mine = {"rows": 5, "seconds": 10.0}
    one = {"stages": {"mine": mine, "fit": {"rows": None, "seconds": 2.0}}}
    two = {"stages": {"mine": mine, "fit": {"rows": None, "seconds": 3.0}, "prompts": {"rows": 1, "seconds": None}}}
    assert builds.total_seconds({"one": one, "two": two}) == 15.0


def test_the_costs_along_predictions_and_inputs():
    def fifths(*points):
        return [
            {
                "decisions": 7 if point else 0,
                "gain": at,
                "most": at,
                "kept": point,
                "kept_error": 0.51,
                "resemblance": point / 2,
                "resemblance_error": 0.14,
            }
            for at, point in enumerate(points)
        ]

    text = costs.cost_table(
        {
            "effects": fifths(-2.42, -1.77, -1.01, 0.44, 0.02),
            "inputs": [
                {"input": "judge:rejoin", "cost": 0.1, "gain": 0.0, "effects": fifths(-1.0, -1.0, 0, 0, 0.5)},
                {"input": "rank", "cost": 0.1, "gain": 0.0, "effects": fifths(1, 1, 1, 1, 1)},
                {"input": "(all)", "cost": -0.0512, "gain": 6.44},
            ],
            "settings": {"share": 0.5, "rule": "floor:0.02+digits", "rollouts": 4},
            "answers": 6615,
            "decisions": 139475,
            "prompts": 1800,
            "new_tokens": 2600000,
            "kept": 0.645,
            "exact_kept": 0.7,
        }
    )
    _, found = rows(text)
    assert len(found) == 3
    assert found[0][1:] == ["-2.4 ± 0.5", "-1.8 ± 0.5", "-1.0 ± 0.5", "+0.4 ± 0.5", "+0.0 ± 0.5", "1.0, 5.0"]
    assert found[1][1:3] == ["-1.2 ± 0.1", "-0.9 ± 0.1"]
    assert found[2][0] == "opinion of the rejoin judge"
    assert found[2][1:] == ["-1.0 / -0.5", "-1.0 / -0.5", "-", "-", "+0.5 / +0.2", "1.0, 5.0"]
    assert "wins 7.4 tokens" in text
    assert "64.5 % of the explored answers, 70.0 % of exact" in text
