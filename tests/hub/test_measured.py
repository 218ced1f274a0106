"""What comparisons measured with a judge: kept in its folder, shown on its card, published with it."""

import json

import pytest
from tiny import build_judge

from hf_selfjudge import cli
from hf_selfjudge.hub.card import folder_card
from hf_selfjudge.hub.measured import extract, record, rule_code, section
from hf_selfjudge.hub.push import stage_judge


def figures(length, loss):
    return {
        "score_difference": {"estimate": loss, "low": loss - 0.01, "high": loss + 0.01},
        "accepted_per_cycle": {"estimate": length},
        "length_ratio": {"estimate": length / 10},
        "tokens_per_target_forward": length + 1,
    }


def comparison(gamma=20):
    def point(rule, spec, length, loss):
        tasks = {"lm_eval/a": figures(length, 0.0), "lm_eval/b|c": figures(length, 2 * loss), "open": figures(1, -9)}
        return {"rule": rule, "spec": spec, "test": {"tasks": tasks, "pooled": figures(length, loss)}}

    return {
        "settings": {"bench": {"gamma": gamma, "dtype": "bfloat16", "max_new_tokens": 512}},
        "conditions": {"hardware": "NVIDIA X", "torch": "2.99", "transformers": "5.98",
                       "items": {"test": {"lm_eval/a": {"count": 7}, "lm_eval/b|c": {"count": 9}}}},
        "judges": {"mine": "some/where/mine", "mine-too": "some/where/mine-too"},
        "pooled_over": ["lm_eval/a", "lm_eval/b|c"],
        "points": [
            point("exact", "exact", 10.0, 0.0),
            point("judge:mine@0.123456+digits", "judge:some/where/mine@0.123456+digits", 13.0, -0.0125),
            point("judge:mine-too@0.5", "judge:some/where/mine-too@0.5", 14.0, -0.1),
            point("topk:2|judge:mine", "topk:2|judge:some/where/mine", 15.0, -0.2),
            {"rule": "judge:mine@0.9", "spec": "judge:some/where/mine@0.9"},
        ],
    }  # fmt: skip


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "mine"
    build_judge().save_pretrained(path)
    (tmp_path / "compare.json").write_text(json.dumps(comparison()))
    return path


def test_only_tested_points_of_this_judge_are_kept():
    found = extract(comparison(), "mine")
    assert [point["rule"] for point in found["points"]] == ["exact", "judge:mine@0.123456+digits", "topk:2|judge:mine"]
    assert found["points"][1]["worst"] == {"task": "lm_eval/b|c", "score_difference": -0.025}
    assert found["items"] == {"lm_eval/a": 7, "lm_eval/b|c": 9}
    with pytest.raises(ValueError, match="0 judges named other"):
        extract(comparison(), "other")
    known = {**comparison(), "weights": {"some/where/mine": "abc"}}
    known["conditions"]["items"]["test"]["lm_eval/a"]["left_out"] = 2
    assert extract(known, "mine", "abc")["items"] == {"lm_eval/a": 5, "lm_eval/b|c": 9}
    with pytest.raises(ValueError, match="with other weights than this one"):
        extract(known, "mine", "abd")


def test_the_section(folder):
    assert section(folder) == ""
    (folder.parent / "eight.json").write_text(json.dumps(comparison(8)))
    record(folder, [folder.parent / "compare.json", folder.parent / "eight.json"])
    text = section(folder)
    lines = [line for line in text.splitlines() if line.startswith("| `")]
    assert lines[:3] == lines[3:] == [
        "| `topk:2\\|judge:mine` | 15.00 | 1.50 | 16.00 | -20.00 [-21.00, -19.00] | b&#124;c -40.00 |",
        "| `judge:mine@0.1235+digits` | 13.00 | 1.30 | 14.00 | -1.25 [-2.25, -0.25] | b&#124;c -2.50 |",
        "| `exact` | 10.00 | 1.00 | 11.00 | +0.00 [-1.00, +1.00] | a +0.00 |",
    ]  # fmt: skip
    for part in (
        "Gamma 20, greedy, at most 512 new tokens, bfloat16, NVIDIA X, torch 2.99",
        "Gamma 8,",
        "a 7, b&#124;c 9",
    ):
        assert part in text
    assert f"{text}\n\n## What it accepts" in folder_card(folder).text


def test_figures_of_other_weights_or_broken_files_are_left_out(folder):
    record(folder, [folder.parent / "compare.json"])
    assert section(folder)
    kept = (folder / "measured.json").read_text()
    for text in ("{", "[]", "3", json.dumps({**json.loads(kept), "comparisons": [3]}), "[" * 100000):
        (folder / "measured.json").write_text(text)
        assert section(folder) == ""
    (folder / "measured.json").write_text(kept)
    with (folder / "model.safetensors").open("ab") as file:
        file.write(b" ")
    assert section(folder) == ""


def test_the_command_and_what_is_published(folder, capsys, tmp_path):
    before = sorted(folder.iterdir())
    cli.main(["card", str(folder), "--compare", str(tmp_path / "compare.json"), "--print"])
    assert "## Measured" in capsys.readouterr().out
    assert sorted(folder.iterdir()) == before, "printing writes nothing"
    cli.main(["card", str(folder), "--compare", str(tmp_path / "compare.json")])
    assert "written" in capsys.readouterr().out
    assert "## Measured" in (folder / "README.md").read_text()
    staging = tmp_path / "staging"
    staging.mkdir()
    stage_judge(folder, staging, "org/mine", None)
    assert (staging / "measured.json").read_bytes() == (folder / "measured.json").read_bytes()
    assert "## Measured" in (staging / "README.md").read_text()
    for text in ("{}", "{", "[]"):
        (tmp_path / "compare.json").write_text(text)
        with pytest.raises(SystemExit) as end:
            cli.main(["card", str(folder), "--compare", str(tmp_path / "compare.json")])
        assert end.value.code == 2
        assert "compare.json of a finished comparison" in capsys.readouterr().err


def test_rules_as_code():
    assert rule_code("judge:a/b/mine@0.1234567&floor:0.03") == "`judge:mine@0.1235&floor:0.03`"
    assert rule_code("judge:mine@0.99998765") == "`judge:mine@0.99998765`"  # not 1, which would be exact
    assert rule_code("a`b|c") == "`a b\\|c`"
