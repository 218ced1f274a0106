"""The card of a judge: what it says, its YAML, what survives an update, and our own cards."""

import json
import re
from pathlib import Path

import pytest
import yaml
from huggingface_hub import EvalResultEntry, ModelCard
from tiny import build_judge

from hf_selfjudge import cli
from hf_selfjudge.config import ModelReference
from hf_selfjudge.hub.card import folder_card, hub_datasets, judge_card, read_report
from hf_selfjudge.hub.folder import renew_card
from hf_selfjudge.hub.handwritten import YOURS, is_edited, updated
from hf_selfjudge.hub.push import METHOD, eval_results, stage_judge
from hf_selfjudge.playground import ASSETS

ROOT = Path(__file__).parent.parent.parent
NASTY = 'a|b`c`<script>x</script>\n[l](http://x) *y* "'


def named_judge(**config):
    settings = {
        "thresholds": {"f1": 0.25, "recall": 0.75},
        "default_threshold": "recall",
        "target": ModelReference("org/target", "abc"),
        "draft": ModelReference("org/draft"),
        "labels": {"tau": -4.5, "prompts": {"gsm8k": 5, "livecodebench@fold0": 3, "mine.jsonl": 2}},
        "metrics": {"validation_auc": 0.8},
    }
    return build_judge(("hidden", "s_prefix"), **{**settings, **config})


def report(config):
    point = {"accepted": 0.5, "acceptable_accepted": 0.9, "wrong": 0.125, "bound": None}
    source = {"source": "gsm8k", "prompts": 5, "mismatches": 40, "acceptable": 0.7, "auc": 0.91234, "accepted": 0.6}
    entry = {"category": "words", "target": NASTY, "draft": " so\n", "count": 3, "acceptable": 2, "before": NASTY}
    return {
        "judge": {"features": list(config.features)},
        "models": {"target": {"dtype": "bfloat16"}, "draft": {"dtype": "bfloat16"}},
        "calibration": {
            "thresholds": config.thresholds,
            "points": [{"name": name, **point} for name in config.thresholds],
            "auc": 0.87654,
            "auc_interval": [0.85, 0.9],
            "rows": 123,
            "prompts": 17,
            "ece": 0.02,
            "notes": ["a note"],
        },
        "paper": {"calibration_auc": 0.81},
        "sources": [{**source, "wrong": 0.2}],
        "substitutions": {"accepted": [entry], "rejected": [entry]},
        "packages": {"torch": "2.13"},
    }


def test_a_judge_that_was_tuned_beside_a_rule_is_used_beside_it():
    card = str(judge_card(named_judge(labels={"rule": "floor:0.02+digits"}).config, repo_id="me/judge"))
    assert 'judge = "judge:me/judge@recall&floor:0.02+digits"' in card
    assert card.count("judge=judge, tokenizer=tokenizer, max_new_tokens=128)") == 1
    assert (
        '    judge="judge:me/judge@recall&floor:0.02+digits",\n    tokenizer=tokenizer,\n    max_new_tokens=128,'
        in card
    )
    assert 'from_pretrained("me/judge")' not in card
    plain = str(judge_card(named_judge().config, repo_id="me/judge"))
    assert 'SelfJudgeVerifier.from_pretrained("me/judge")' in plain
    assert "tokenizer=tokenizer" not in plain


@pytest.fixture
def folder(tmp_path):
    judge = named_judge()
    (tmp_path / "report").mkdir()
    (tmp_path / "report" / "report.json").write_text(json.dumps(report(judge.config)))
    (tmp_path / "report" / "roc.png").write_bytes(b"png")
    judge.save_pretrained(tmp_path)
    renew_card(tmp_path)
    return tmp_path


def test_the_card_of_a_config_alone():
    card = named_judge().generate_model_card()
    assert card.data.library_name == "hf-selfjudge"
    assert card.data.base_model == ["org/target", "org/draft"]
    assert card.data.to_dict()["base_model_relation"] == "adapter"
    assert card.data.datasets == ["livecodebench/code_generation_lite", "openai/gsm8k"]
    assert "custom_generate" in card.data.tags
    for part in (
        "| `recall` (default) | 0.7500 | 0.2500 |", "| `f1` | 0.2500 | 0.7500 |", "tau: -4.5",
        "the target `org/target`", "revision `abc`", "`hidden`, `s_prefix`", "not\nidentical",
        "# A judge for target with", "validation&#95;auc: 0.8",
    ):  # fmt: skip
        assert part in card.text


def test_the_card_of_a_build(folder):
    text = (folder / "README.md").read_text()
    for part in (
        "ROC-AUC 0.877 (95 % interval 0.850 to 0.900) on 123 mismatches of 17 held-out prompts", "reach 0.810 there",
        "| `f1` | 0.2500 | 0.7500 | 50.0 % | 90.0 % | 12.5 % | - |", "| `gsm8k` | 5 | 40 | 70.0 % | 0.912 | 60.0 % |",
        "(report/roc.png)", "(report/precision_recall.png)", "<code>␣so↵</code>", "2 of 3", "- a note", "torch 2.13",
        "On `gsm8k` 20.0 %",
    ):  # fmt: skip
        assert part in text
    assert "<script" not in text
    assert "](http" not in text


def test_a_report_of_another_judge_is_not_used(folder):
    judge = named_judge(thresholds={"recall": 0.5}, default_threshold="recall")
    judge.save_pretrained(folder)
    assert read_report(folder, judge.config) is None
    assert "ROC-AUC" not in folder_card(folder).text
    for text in ("{", "[]", '{"calibration": 3}', "[" * 100000):
        (folder / "report" / "report.json").write_text(text)
        assert read_report(folder, judge.config) is None


def test_a_judge_of_an_unnamed_or_local_pair():
    card = build_judge().generate_model_card()
    assert card.data.base_model is None
    assert "an unnamed pair" in card.text
    local = named_judge(target=ModelReference("/models/big"), draft=ModelReference("a/b/c")).generate_model_card()
    assert local.data.base_model is None  # the Hub refuses a card that names no Hub id there
    assert "`/models/big` and `a/b/c`: not on the Hub" in local.text


def test_names_cannot_break_the_page():
    judge = named_judge(target=ModelReference(NASTY), labels={NASTY: NASTY}, metrics={NASTY: {NASTY: 1.0}})
    assert judge.generate_model_card().text.count("```") == 2
    card = judge_card(judge.config, repo_id="me/it")
    assert card.text.count("```") == 4
    outside_code = re.sub(r"```.*?```|`[^`\n]*`", "", card.text, flags=re.DOTALL)
    for markup in ("<script", "](http", "*y*"):
        assert markup not in outside_code
    assert yaml.safe_load(card.content.split("---")[1])["library_name"] == "hf-selfjudge"


def test_evaluation_results_have_the_new_form(folder, tmp_path):
    config = named_judge().config
    (entry,) = yaml.safe_load(eval_results(config, report(config)))
    assert entry["dataset"] == {"id": "openai/gsm8k", "task_id": "selfjudge_mismatch_auc"}
    assert entry["value"] == 0.9123
    EvalResultEntry(entry["dataset"]["id"], entry["dataset"]["task_id"], entry["value"], notes=entry["notes"])
    assert eval_results(config, {}) == ""
    staging = tmp_path / "staging"
    staging.mkdir()
    stage_judge(folder, staging, "org/judge", None)
    found = {path.relative_to(staging).as_posix() for path in staging.rglob("*") if path.is_file()}
    assert found == {
        "README.md", "config.json", "model.safetensors", "report/report.json", "report/roc.png",
        "custom_generate/generate.py", "custom_generate/requirements.txt", ".eval_results/judge.yaml",
    }  # fmt: skip
    assert 'from_pretrained("org/judge")' in (staging / "README.md").read_text()
    (staging / "report" / "roc.png").unlink()
    (folder / "report" / "roc.png").unlink()
    (folder / "report" / "roc.png").symlink_to(Path(__file__))
    with pytest.raises(ValueError, match="link out of the judge's folder"):
        stage_judge(folder, staging, "org/judge", None)


def test_only_named_sources_are_datasets():
    assert hub_datasets(named_judge(labels={"prompts": {"gsm8k=a.jsonl": 1, "x": 2}}).config) == {}
    assert hub_datasets(named_judge(labels={"prompts": 3}).config) == {}
    assert hub_datasets(named_judge(labels={"prompts": {"gsm8k?split=test": 3}}).config) == {
        "gsm8k?split=test": "openai/gsm8k"
    }


def test_an_update_replaces_only_the_generated_part():
    old, new = str(judge_card(named_judge().config)), str(judge_card(named_judge(thresholds={"recall": 0.5}).config))
    assert not is_edited(old)
    assert updated(old, new) == new
    mine = old.replace(YOURS, f"{YOURS}\nMine.") + "Behind.\n"
    assert is_edited(mine)
    kept = updated(mine, new)
    assert kept == new.replace(YOURS, f"{YOURS}\nMine.") + "Behind.\n"
    assert updated(kept, old) == mine
    assert updated(kept, new) == kept


def test_edits_inside_the_generated_part_are_kept():
    old, new = str(judge_card(named_judge().config)), str(judge_card(named_judge(thresholds={"recall": 0.5}).config))
    mine = old.replace("## Limits", "## Limits\n\n- my own")
    assert is_edited(mine)
    assert updated(mine, new) == mine
    assert updated(mine, new, overwrite=True) == new
    assert updated("all mine", new, overwrite=True) == "all mine"


def test_edited_yaml_is_merged():
    old = str(judge_card(named_judge().config))
    new = str(judge_card(named_judge(labels={"prompts": {"dolly": 3}}).config))
    mine = old.replace("library_name: hf-selfjudge", "library_name: hf-selfjudge\nlicense: mit").replace(
        "tags:\n", "tags:\n- my-tag\n"
    )
    merged = ModelCard(updated(mine, new)).data
    assert merged.license == "mit"
    assert {"my-tag", "selfjudge"} <= set(merged.tags)
    assert {"openai/gsm8k", "databricks/databricks-dolly-15k"} <= set(merged.datasets)
    with pytest.raises(ValueError, match="YAML cannot be read"):
        updated(old.replace("tags:", "tags: ["), new)


def test_a_hand_written_card_is_kept(tmp_path):
    judge = build_judge()
    (tmp_path / "README.md").write_text("mine")
    judge.save_pretrained(tmp_path)
    assert not renew_card(tmp_path)
    assert (tmp_path / "README.md").read_text() == "mine"


def test_the_commands(folder, capsys, tmp_path):
    cli.main(["card", str(folder)])
    assert "is up to date" in capsys.readouterr().out
    (folder / "README.md").unlink()
    cli.main(["card", str(folder), "--repo", "org/mine"])
    assert "written" in capsys.readouterr().out
    assert 'from_pretrained("org/mine")' in (folder / "README.md").read_text()
    cli.main(["card", str(folder), "--print"])
    assert capsys.readouterr().out == str(folder_card(folder))
    cli.main(["push", str(folder), "org/mine", "--dry-run"])
    shown = capsys.readouterr().out
    assert "report/report.json" in shown
    assert "nothing was uploaded" in shown
    cli.main(["push", "method", "org/mine", "--dry-run"])
    assert "config.json" not in capsys.readouterr().out
    for arguments in (["card", str(tmp_path / "no")], ["push", str(folder), "bad name!", "--dry-run"]):
        with pytest.raises(SystemExit) as end:
            cli.main(arguments)
        assert end.value.code == 2
        assert capsys.readouterr().err.count("\n") == 1


def test_our_own_cards_are_in_step():
    rendered = str(folder_card(ASSETS / "judge", "hf-selfjudge/playground-judge"))
    shown = (ROOT / "hub_cards" / "playground-judge.md").read_text(encoding="utf-8")
    assert shown == rendered, "run `selfjudge card hf_selfjudge/playground/assets/judge --print --repo ...`"
    assert (ASSETS / "judge" / "README.md").read_text(encoding="utf-8") == str(folder_card(ASSETS / "judge"))
    method = (ROOT / "hub_cards" / "selfjudge.md").read_text(encoding="utf-8")
    assert method == (METHOD / "README.md").read_text(encoding="utf-8")
    assert "custom_generate" in ModelCard(method).data.tags
