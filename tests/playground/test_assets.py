"""The embedded pair and judge: they are what the recipe says, small, whole, and able to do their work."""

import json
from dataclasses import asdict

import pytest
import torch
from safetensors import safe_open

from hf_selfjudge import SelfJudgeVerifier
from hf_selfjudge.playground import ASSETS, load
from hf_selfjudge.playground.evaluate import greedy_answers
from hf_selfjudge.playground.recipe import PRESETS
from hf_selfjudge.playground.tokenizer import build_tokenizer
from hf_selfjudge.playground.world import generate, score


@pytest.mark.parametrize("name", ["target", "draft"])
def test_the_full_preset_made_the_embedded_model(name):
    report = json.loads((ASSETS / name / "recipe.json").read_text())
    assert asdict(getattr(PRESETS["full"], name)) == report["recipe"]
    assert report["vocabulary"] == PRESETS["full"].vocabulary
    config = json.loads((ASSETS / name / "config.json").read_text())
    for setting, field in (
        ("hidden_size", "hidden_size"),
        ("num_hidden_layers", "layers"),
        ("num_attention_heads", "heads"),
        ("num_key_value_heads", "kv_heads"),
        ("intermediate_size", "intermediate_size"),
    ):
        assert config[setting] == report["recipe"][field]


def test_the_tokenizer_is_made_again_from_the_preset(embedded):
    again = build_tokenizer(PRESETS["full"].vocabulary, PRESETS["full"].tokenizer_items)
    assert again.backend_tokenizer.to_str() == embedded[2].backend_tokenizer.to_str()
    assert again.chat_template == embedded[2].chat_template


def test_both_models_have_one_tokenizer():
    for file in ("tokenizer.json", "chat_template.jinja"):
        assert (ASSETS / "target" / file).read_bytes() == (ASSETS / "draft" / file).read_bytes()


def test_files_are_small_bf16_safetensors():
    files = [ASSETS / name / "model.safetensors" for name in ("target", "draft")]
    for file in files:
        with safe_open(file, "pt") as weights:
            assert {weights.get_slice(name).get_dtype() for name in weights.keys()} == {"BF16"}  # noqa: SIM118
    assert sum(file.stat().st_size for file in files) <= 12e6
    assert sum(file.stat().st_size for file in ASSETS.rglob("*") if file.is_file()) <= 13e6
    assert not [file for file in ASSETS.rglob("*") if file.suffix in (".bin", ".pt", ".pkl")]


def test_load_gives_the_pair_its_tokenizer_and_its_judge():
    target, draft, tokenizer, judge = load()
    assert (target.dtype, draft.dtype) == (torch.float32, torch.float32)
    assert not target.training
    assert not draft.training
    for name, model in (("target", target), ("draft", draft)):
        report = json.loads((ASSETS / name / "recipe.json").read_text())
        assert sum(value.numel() for value in model.parameters()) == report["parameters"]
        assert model.config.vocab_size == len(tokenizer)
    assert tokenizer.padding_side == "left"
    assert isinstance(judge, SelfJudgeVerifier)
    assert judge.config.hidden_size == target.config.hidden_size
    assert judge.config.default_threshold in judge.config.thresholds
    assert all(bool(value.isfinite().all()) for value in judge.state_dict().values())


@pytest.mark.parametrize("task", ["word_problems", "multiple_choice", "news"])
def test_the_target_solves_held_out_items(embedded, task):
    target, _, tokenizer = embedded
    items = generate(task, "test", 12, seed=7)
    answers = greedy_answers(target, tokenizer, items, batch_size=12)
    right = [score(item, answer) == 1.0 for item, answer in zip(items, answers, strict=True)]
    assert sum(right) >= 10, [answer for answer, good in zip(answers, right, strict=True) if not good]


def test_the_draft_writes_like_the_target_but_errs(embedded):
    _, draft, tokenizer = embedded
    items = generate("word_problems", "test", 12, seed=7)
    answers = greedy_answers(draft, tokenizer, items, batch_size=12)
    assert sum(score(item, answer) for item, answer in zip(items, answers, strict=True)) <= 6
    assert all("answer" in answer.lower() for answer in answers)


def test_the_readme_quotes_the_evaluation():
    text = (ASSETS.parent / "README.md").read_text()
    evaluation = json.loads((ASSETS / "evaluation.json").read_text())
    columns = ("target_score", "draft_score", "agreement", "preserved", "probability_auc", "mismatches_below_5_percent")
    for task, result in evaluation.items():
        assert result["items"] == 500
        shares = [result.get(name) for name in columns]
        cells = ["-" if share is None else f"{100 * share:.1f}" for share in shares]
        assert f"| `{task}` | {' | '.join(cells)} |" in text


@pytest.mark.parametrize("name", ["target", "draft"])
def test_the_readme_quotes_the_recipe(name):
    lines = (ASSETS.parent / "README.md").read_text().splitlines()
    report = json.loads((ASSETS / name / "recipe.json").read_text())
    column = 2 if name == "target" else 3
    table = {
        cells[1].strip(): cells[column].strip() for cells in (line.split("|") for line in lines) if len(cells) == 5
    }
    assert table["parameters"] == f"{report['parameters']:,}"
    assert table["conversations"] == f"{report['data']['conversations']:,}"
    assert table["steps of 65,536 tokens"] == f"{report['steps']:,}"
    seconds = f"{report['seconds_preparing']} + {report['seconds']}"
    assert table[f"seconds on one {report['hardware']} (preparing + training)"] == seconds
    assert table["last training loss per response token"] == f"{report['train_loss']:.3f}"
    assert next(value for key, value in table.items() if key.startswith("test loss")) == f"{report['test_loss']:.3f}"
    assert table["styled slots that follow the table"] == f"{100 * report['recipe']['fidelity']:.0f} %"
