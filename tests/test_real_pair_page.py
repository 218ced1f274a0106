"""The blocks of the real pair's page say what the result files say."""

import argparse
import copy
import json
import runpy
import shlex
from pathlib import Path

import pytest
from real_pair import cards, consistency, tables
from tables_read import rows
from tiny import build_judge

from hf_selfjudge.config import JudgeConfig, ModelReference
from hf_selfjudge.evaluation.command import add_compare

ROOT = Path(__file__).parent.parent
MEANING = "95 % interval of the score difference from exact decoding reaches 0"


def bounded(value, spread=0.01):
    return {"estimate": value, "low": value - spread, "high": value + spread}


def figures(length, score, loss, spread=0.01):
    return {
        "score": bounded(score),
        "score_difference": bounded(loss, spread),
        "accepted_per_cycle": bounded(length),
        "length_ratio": bounded(length / 10),
        "tokens_per_target_forward": length + 0.95,
    }


def point(method, rule, length, loss, spread=0.01):
    """A point with two tasks: nothing is lost on the first, all on the second."""
    tasks = {
        "lm_eval/sums": figures(length - 1, 0.7, 0.0),
        "lm_eval/code": figures(length + 1, 0.5 + 2 * loss, 2 * loss, spread),
    }
    pooled = figures(length, 0.6 + loss, loss, spread)
    return {"rule": rule, "spec": rule, "method": method, "test": {"tasks": tasks, "pooled": pooled}}


@pytest.fixture
def results():
    points = [
        point("exact", "exact", 10.0, 0.0, 0.0),
        point("floor with guard", "floor:0.1+digits", 12.0, -0.005),
        point("floor with guard", "floor:0.01+digits", 16.0, -0.08),
        point("paper", "judge:paper@0.123456789", 10.4, -0.03),
        point("paper", "judge:paper@0.05", 15.0, -0.2),
        point("ours", "judge:rejoin@0.3&floor:0.03|topk:2", 13.0, 0.002),
    ]
    chosen = {"exact": 0, "floor with guard": 1, "paper": 0, "ours": 5}
    methods = {
        name: {"point": at, "none_matched": name == "paper", "test": points[at]["test"]["pooled"]}
        for name, at in chosen.items()
    }
    for name in ("exact", "floor with guard", "paper"):
        methods[name]["ours_minus_this"] = {"accepted_per_cycle": bounded(13.0 - 10.0 - 2.0 * (name[0] == "f"))}
    bench = {"target": "/models/Big", "draft": "/models/Small", "mode": "two-stage", "gamma": 20, "dtype": "bfloat16"}
    return {
        "settings": {
            "bench": {**bench, "device": "cuda", "batch_size": 256, "workers": 1, "max_new_tokens": 512},
            "rules": ["topk:2,paper=judge:/models/judges/paper@0.1,paper=judge:/models/judges/paper@0.05"],
            "tasks": ["lm_eval/sums=/models/sums.jsonl.gz:1319,lm_eval/code=code.jsonl", "lm_eval/plain:7"],
            "max_prompt_tokens": 1100,
            "select_on": "test",
            "test": "all",
            "seed": 0,
            "resamples": 1000,
            "criterion": "within",
            "margin": 1.0,
            "ours": "ours with guard",
        },
        "conditions": {
            "hardware": "NVIDIA X",
            "torch": "2.99",
            "transformers": "5.98",
            "items": {"test": {"lm_eval/sums": {"count": 1319}, "lm_eval/code": {"count": 164}}},
        },
        "judges": {"paper": "judges/paper", "rejoin": "judges/rejoin"},
        "pooled_over": ["lm_eval/sums", "lm_eval/code"],
        "methods": {"exact": [0], "floor with guard": [1, 2], "paper": [3, 4], "ours": [5]},
        "points": points,
        "matched": {"indistinguishable": {"meaning": MEANING, "ours": "ours", "methods": methods}},
    }


def test_the_main_table(results):
    head, found = rows(tables.main_table(results))
    assert head[2:4] == ["sums", "code"]
    assert [row[0] for row in found] == ["floor with guard", "paper", "**ours**", "**floor with guard**", "paper",
                                         "**exact**"]  # fmt: skip
    assert found[2][1:] == ["`judge:rejoin@0.3&floor:0.03/topk:2`", "12.00 / 70.0", "14.00 / 50.4", "**13.00**", "1.30",
                            "13.95", "+0.20 [-0.80, +1.20]"]  # fmt: skip
    assert found[4][1] == "`judge:paper@0.1235`"
    text = tables.main_table(results)
    for part in (
        "NVIDIA X", "gamma 20", "bfloat16", "torch 2.99", "transformers 5.98", "sums 1319", "code 164", MEANING,
        "At most 512 new tokens", "Target Big, draft Small", "the 2 tasks with a score",
    ):  # fmt: skip
        assert part in text
    assert "/models" not in text


def test_the_short_table_of_the_readme(results):
    other = copy.deepcopy(results)
    other["settings"]["bench"]["gamma"] = 8
    other["points"] = [other["points"][at] for at in (0, 1, 3)]
    other["points"][1]["test"]["pooled"] = figures(6.0, 0.6, -0.05)
    results["conditions"]["items"]["test"]["lm_eval/code"]["left_out"] = 4
    text = tables.short_table([results, other])
    head, found = rows(text)
    assert [head[1], head[4]] == ["gamma 20: accepted per cycle", "gamma 8: accepted per cycle"]
    assert found == [
        ["`floor:0.1+digits`", "12.00", "1.20", "**-0.50 [-1.50, +0.50]**", "6.00", "0.60", "-5.00 [-6.00, -4.00]"],
        ["`judge:paper@0.1235`", *2 * ("10.40", "1.04", "-3.00 [-4.00, -2.00]")],
        ["`exact`", *2 * ("10.00", "1.00", "**+0.00 [+0.00, +0.00]**")],
    ]
    for part in ("sums (1,319), code (160)", MEANING, "Big with Small", "bfloat16, batch 256, NVIDIA X"):
        assert part in text
    assert "/models" not in text


def test_a_task_without_a_score_and_points_that_were_not_tested(results):
    for one in results["points"]:
        one["test"]["tasks"]["lm_eval/code"] |= {"score": None, "score_difference": None}
    del results["points"][4]["test"]
    results["settings"]["bench"]["max_new_tokens"] = None
    text = tables.main_table(results)
    assert "14.00 / - |" in text
    assert "new tokens" not in text
    assert len(rows(text)[1]) == 5
    _, found = rows(tables.task_table(results))
    assert [row[3] for row in found] == ["-", "-", "-"]


def test_matched_score(results):
    _, found = rows(tables.matched_table(results))
    assert [row[0] for row in found] == ["**ours**", "floor with guard", "exact"]  # no point of the paper's keeps it
    assert [row[-1] for row in found] == ["", "+1.00 [+0.99, +1.01]", "+3.00 [+2.99, +3.01]"]
    text = tables.matched_text(results)
    assert "the longest is ours, `judge:rejoin@0.3&floor:0.03\\|topk:2` with 13.00 " in text
    assert "1.30 times exact decoding (+0.20 [-0.80, +1.20] points)" in text
    assert "Ours, ours" not in text
    assert "The paper's judge: no point keeps the score; the one that loses least is `judge:paper@0.1235`" in text
    assert "10.40 draft tokens accepted per cycle, 1.04 times exact" in text
    assert "The longest rule without a judge, floor with guard: `floor:0.1+digits` with 12.00" in text
    assert "No point kept the score: paper." in text


def test_matched_score_where_ours_is_not_the_longest(results):
    methods = results["matched"]["indistinguishable"]["methods"]
    methods["floor with guard"] |= {"point": 2, "test": results["points"][2]["test"]["pooled"]}
    methods["paper"] |= {"point": 3, "none_matched": False, "test": results["points"][3]["test"]["pooled"]}
    text = tables.matched_text(results)
    assert "the longest is floor with guard, `floor:0.01+digits` with 16.00" in text
    assert "Ours, ours: `judge:rejoin@0.3" in text
    assert "The paper's judge: `judge:paper@0.1235` with 10.40" in text
    assert "without a judge" not in text
    assert "No point" not in text


def test_where_it_hurts(results):
    text = tables.task_table(results)
    head, found = rows(text)
    assert head == ["method", "rule", "sums", "code", "all tasks"]
    assert found[0] == ["ours", "`judge:rejoin@0.3&floor:0.03/topk:2`", "+0.00 [-1.00, +1.00]", "+0.40 [-0.60, +1.40]",
                        "+0.20 [-0.80, +1.20]"]  # fmt: skip
    assert [row[0] for row in found] == ["ours", "floor with guard", "paper"]
    assert found[2][3] == "-6.00 [-7.00, -5.00]"
    assert text.endswith("below 0: ours: none; floor with guard: none; paper: code.")


def test_the_command_is_one_of_the_cli(results):
    text = tables.command_text(results)
    assert "/models" not in text
    parser = argparse.ArgumentParser()
    add_compare(parser.add_subparsers())
    found = vars(parser.parse_args(shlex.split(text.strip("`").replace("\\\n", ""))[1:]))
    assert found["rules"] == ["topk:2", "paper=judge:JUDGES/paper@0.1,paper=judge:JUDGES/paper@0.05"]
    assert found["tasks"] == [
        "lm_eval/sums=DATA/sums.jsonl.gz:1319", "lm_eval/code=DATA/code.jsonl", "lm_eval/plain:7"
    ]  # fmt: skip
    known = {**results["settings"]["bench"], **results["settings"]}
    for name in {*found} & {*known} - {"rules", "tasks", "target", "draft"}:
        assert found[name] == known[name], name
    results["settings"]["max_prompt_tokens"] = None
    assert "--max-prompt-tokens" not in tables.command_text(results)
    results["settings"]["nli_model"] = f"prompt:{results['settings']['bench']['target']}"
    assert "--nli-model prompt:TARGET " in tables.command_text(results)


def test_the_sweep(results):
    text = tables.sweep_table(results)
    assert [row[0] for row in rows(text)[1]][-1] == "`exact`"
    assert "at most 6.5 points, 4 of 6." in text
    assert "| `judge:paper@0.1235` | 10.40 | 1.04 | -3.0 [-4.0, -2.0] |" in text


def test_what_relaxed_tokens_save_and_change(results):
    counts = [(40.0, 0.0, 1000, 0, 0), (30.0, 0.1, 1000, 12, 2), (20.0, 0.2, 2000, 4, 6)]
    points = [results["points"][at] for at in (0, 1, 5)]
    for one, (forwards, share, tokens, lost, gained) in zip(points, counts, strict=True):
        row = {"items": 50, "forwards_per_answer": forwards, "relaxed_share": share, "new_tokens": tokens,
               "lost": lost, "gained": gained}  # fmt: skip
        one["test"]["tasks"] = {"lm_eval/gsm8k": row, "lm_eval/humaneval": row, "lm_eval/other": {}}
    results["points"] = points
    text = tables.price_table(results)
    assert rows(text)[1] == [
        ["`judge:rejoin@0.3&floor:0.03/topk:2`", "8.0", "2.50", "8.0", "12.0", "-0.20"],
        ["`floor:0.1+digits`", "2.0", "5.00", "24.0", "4.0", "2.00"],
    ]
    assert "Over gsm8k, humaneval, all answers" in text


def test_the_consistency_of_summaries(results):
    for number, one in enumerate(results["points"]):
        told = {name: {"score_difference": bounded(0.01 * (at + number))} for at, name in enumerate(consistency.SHOWN)}
        one["test"]["tasks"] = {"lm_eval/news": {**one["test"]["tasks"]["lm_eval/code"], "figures": told}}
    text = consistency.consistency_table(results)
    assert rows(text)[1][-1] == [
        "`exact`", "11.00", "1.10", "50.0",
        "+0.00 [-1.00, +1.00]", "+1.00 [+0.00, +2.00]", "+2.00 [+1.00, +3.00]", "+3.00 [+2.00, +4.00]",
    ]  # fmt: skip
    assert tables.told_conditions(results) in text


def test_blocks_follow_the_result_files(results, tmp_path):
    script = runpy.run_path(str(ROOT / "benchmarks" / "readme.py"))
    render, name = script["render"], script["REAL_PAIR"]
    render.__globals__["RESULTS"] = tmp_path
    text = "<!-- main-8: from a file -->\nstale words\n<!-- end -->\n"
    with pytest.raises(ValueError, match="no result file makes: main-8"):
        render(text, name)
    (tmp_path / "real-pair" / "gamma8").mkdir(parents=True)
    (tmp_path / "real-pair" / "gamma8" / "compare.json").write_text(json.dumps(results))
    with pytest.raises(ValueError, match="0 blocks marked command-8"):
        render(text, name)
    text = "".join(text.replace("main", block) for block in tables.COMPARISON)
    made = render(text, name)
    assert tables.main_table(results) in made
    assert tables.task_table(results) in made
    assert "stale words" not in made
    assert render(made, name) == made


def test_cards_name_the_pair_and_no_path(results, tmp_path):
    folder = tmp_path / "judges" / "rejoin"
    make_judge(folder)
    results["points"][5]["spec"] = "judge:judges/rejoin@0.3&floor:0.03|topk:2"
    (tmp_path / "compare.json").write_text(json.dumps(results))
    results["judges"] = {"paper": "judges/paper"}
    (tmp_path / "other.json").write_text(json.dumps(results))  # does not ask this judge
    (tmp_path / "hub").mkdir()
    path = cards.make_card(folder, [tmp_path / "other.json"], tmp_path / "hub")
    assert path.name == "qwen2.5-coder-1.5b-0.5b-rejoin.md"
    assert "## Measured" not in path.read_text()
    cards.make_card(folder, [tmp_path / "compare.json", tmp_path / "other.json"], tmp_path / "hub")
    text = path.read_text()
    for part in (
        "## Measured",
        "`judge:rejoin@0.3&floor:0.03\\|topk:2` | 13.00 |",
        "Qwen/Qwen2.5-Coder-1.5B-Instruct",
        "dequantised",
        '"hf-selfjudge/qwen2.5',
    ):
        assert part in text
    kept = "".join(file.read_text() for file in (folder / "config.json", folder / "report" / "report.json", path))
    assert "/models" not in kept
    assert "gsm8k=rows.jsonl?prompt=a/b:5" in kept
    assert JudgeConfig.load(folder / "config.json").target.id == cards.PAIR["target"]
    before = {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()}
    cards.make_card(folder, [tmp_path / "compare.json"], tmp_path / "hub")
    assert before == {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()}


def make_judge(folder):
    """A judge of a local pair with a report."""
    judge = build_judge(target=ModelReference("/models/target"), draft=ModelReference("/models/draft"))
    judge.save_pretrained(folder)
    (folder / "report").mkdir()
    report = {
        "models": {"target": {"id": "/models/target"}, "draft": {"id": "/models/draft"}},
        "settings": {
            "models": {"target": "/models/target", "draft": "/models/draft"},
            "prompts": {"prompts": ["gsm8k=/models/rows.jsonl?prompt=a/b:5", "/models/x.jsonl:3", "dir/y.jsonl"]},
        },
    }
    (folder / "report" / "report.json").write_text(json.dumps(report))


@pytest.mark.parametrize(
    "path", sorted((ROOT / "hub_cards").glob(f"{cards.CARD.format('*')}.md")), ids=lambda p: p.stem
)
def test_cards_are_in_step_with_their_judges(path):
    folder = cards.RESULTS / "judges" / path.stem.removeprefix(cards.CARD.format(""))
    assert path.read_text(encoding="utf-8") == cards.hub_card(folder), "run benchmarks/real_pair/cards.py"
