"""The recipe in its tiny setting: it trains, its checkpoints reload, and a run that was killed ends the same."""

import dataclasses
import json

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from hf_selfjudge.pipeline.mine import mine
from hf_selfjudge.pipeline.records import Mismatches, Response
from hf_selfjudge.pipeline.settings import MineSettings
from hf_selfjudge.playground import evaluate, load, train
from hf_selfjudge.playground.corpus import Batches
from hf_selfjudge.playground.recipe import PRESETS, build_model
from hf_selfjudge.playground.world import generate

TINY = dataclasses.replace(PRESETS["tiny"], test_items=16)
TARGET = dataclasses.replace(TINY.target, items=300, steps=30)
DRAFT = dataclasses.replace(TINY.draft, items=100, steps=10)


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """Folder of a trained tiny pair, and the target's report."""
    out = tmp_path_factory.mktemp("pair")
    report = train.train_model(TARGET, TINY, out)
    train.train_model(DRAFT, TINY, out)
    return out, report


def test_loss_falls_and_the_report_says_how(pair):
    out, report = pair
    lines = [json.loads(line) for line in (out / "target" / "history.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [10, 20, 30]
    assert lines[-1]["loss"] < 0.85 * lines[0]["loss"]
    assert json.loads((out / "target" / "recipe.json").read_text()) == report
    assert report["steps"] == 30
    assert report["train_loss"] == lines[-1]["loss"]
    assert report["data"]["conversations"] == 300
    assert {"torch", "transformers", "python"} <= set(report["versions"])
    assert (out / "target" / "loss.png").is_file()


def test_the_checkpoint_is_a_plain_bf16_llama(pair):
    out, report = pair
    model = AutoModelForCausalLM.from_pretrained(out / "target")
    assert type(model).__name__ == "LlamaForCausalLM"
    assert model.dtype == torch.bfloat16
    assert sum(p.numel() for p in model.parameters()) == report["parameters"]
    assert model.generation_config.eos_token_id == model.config.eos_token_id
    assert model.generation_config.do_sample is False
    assert not list((out / "target").glob("*.bin"))
    assert len(AutoTokenizer.from_pretrained(out / "target")) == model.config.vocab_size


def test_a_killed_run_resumes_to_the_same_weights(pair, tmp_path, monkeypatch):
    out, _ = pair
    original = Batches.__call__

    def killed(self, number):
        if number == 25:
            raise KeyboardInterrupt
        return original(self, number)

    monkeypatch.setattr(Batches, "__call__", killed)
    with pytest.raises(KeyboardInterrupt):
        train.train_model(TARGET, TINY, tmp_path)
    monkeypatch.setattr(Batches, "__call__", original)
    torch.manual_seed(123)
    report = train.train_model(TARGET, TINY, tmp_path, resume=True)
    assert report["steps"] == 30
    expected, found = (load_file(folder / "target" / "model.safetensors") for folder in (out, tmp_path))
    assert expected.keys() == found.keys()
    assert all(torch.equal(expected[name], found[name]) for name in expected)
    logs = [(folder / "target" / "history.jsonl").read_text().splitlines() for folder in (out, tmp_path)]
    expected_losses, found_losses = ([json.loads(line)["loss"] for line in log] for log in logs)
    assert expected_losses == found_losses


def test_resuming_with_other_settings_is_refused(pair):
    out, _ = pair
    with pytest.raises(ValueError, match="other learning_rate"):
        train.train_model(dataclasses.replace(TARGET, learning_rate=1.0), TINY, out, resume=True)


def test_the_time_limit_ends_the_schedule():
    timed = dataclasses.replace(TARGET, max_minutes=0.5, warmup_steps=0)
    assert train._progress(timed, 0, 15.0) == 0.5
    assert train._progress(timed, 30, 1.0) == 1.0
    assert timed.rate(0, 0.0) == timed.learning_rate
    assert timed.rate(0, 1.0) == pytest.approx(0.0)


def test_padding_and_prompts_do_not_count(pair):
    out, _ = pair
    model = AutoModelForCausalLM.from_pretrained(out / "target", dtype=torch.float32)
    ids = torch.randint(5, 500, (1, 12))
    answer = torch.zeros(1, 12, dtype=torch.bool)
    answer[:, 6:] = True
    plain = train._loss(model, ids, answer, 0.0, 0)
    labels = torch.where(answer, ids, -100)
    assert plain.item() == pytest.approx(model(ids, labels=labels).loss.item(), abs=1e-5)
    padded = torch.cat([ids, torch.zeros(1, 4, dtype=torch.long)], 1)
    more = torch.cat([answer, torch.zeros(1, 4, dtype=torch.bool)], 1)
    assert train._loss(model, padded, more, 0.0, 0).item() == pytest.approx(plain.item(), abs=1e-5)
    everything = train._loss(model, padded, more, 1.0, 0)
    assert everything.item() == pytest.approx(model(ids, labels=ids).loss.item(), abs=1e-5)


def test_full_sizes_are_within_the_budget():
    class Vocabulary:
        bos_token_id, eos_token_id, pad_token_id = 1, 4, 0

        def __len__(self):
            return PRESETS["full"].vocabulary

    sizes = {}
    for name in ("target", "draft"):
        with torch.device("meta"):
            model = build_model(getattr(PRESETS["full"], name), Vocabulary())
        sizes[name] = sum(p.numel() for p in model.parameters())
    assert 4e6 < sizes["target"] < 6e6
    assert 0.3e6 < sizes["draft"] < 0.8e6
    assert 2 * sum(sizes.values()) < 12e6


def test_bad_settings_are_refused():
    with pytest.raises(ValueError, match="divide"):
        dataclasses.replace(TARGET, heads=3)
    with pytest.raises(ValueError, match="multiple of log_every"):
        dataclasses.replace(TARGET, checkpoint_every=15)
    with pytest.raises(ValueError, match="max_minutes"):
        dataclasses.replace(TARGET, max_minutes=0)


def test_evaluation_compares_the_pair(pair, monkeypatch, capsys):
    out, _ = pair
    monkeypatch.setattr(evaluate, "MAX_NEW_TOKENS", 12)
    evaluate.main(["--models", str(out), "--items", "3", "--substitutions", "4", "--batch-size", "2"])
    results = json.loads(capsys.readouterr().out.strip().splitlines()[-1])
    assert json.loads((out / "evaluation.json").read_text()) == results
    for result in results.values():
        assert 0.0 <= result["agreement"] <= 1.0
        assert result["items"] == 3
    assert results["open_ended"]["target_score"] is None


def test_probabilities_and_preservation_on_a_model_that_knows_itself(pair):
    out, _ = pair
    model = AutoModelForCausalLM.from_pretrained(out / "target", dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(out / "target")
    items = generate("news", "test", 3)
    answers = [[5, 6, 7], [8, 9], [10, model.config.eos_token_id]]
    responses = [
        Response(i, evaluate.prompt_ids(tokenizer, item), answer)
        for i, (item, answer) in enumerate(zip(items, answers, strict=True))
    ]
    found = mine(model, responses, MineSettings(look_ahead=0))
    assert len(found) > 2
    probabilities = evaluate.target_probabilities(model, responses, found)
    for row, probability in enumerate(probabilities.tolist()):
        response = responses[int(found.prompt_ids[row])]
        prefix = torch.tensor([response.prompt + response.answer[: int(found.positions[row])]])
        expected = model(prefix).logits[0, -1].detach().softmax(-1)
        assert int(found.draft_tokens[row]) == int(expected.argmax())
        assert probability == pytest.approx(float(expected.max()), rel=1e-3)
    nothing = found.select(torch.zeros(len(found), dtype=torch.bool))
    assert len(evaluate.target_probabilities(model, responses, nothing)) == 0


def test_preservation_asks_whether_the_finished_answer_is_right(pair):
    out, _ = pair
    model = AutoModelForCausalLM.from_pretrained(out / "target", dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(out / "target")
    item = generate("word_problems", "test", 1)[0]
    # the end of the turn as the draft's token: what stands before it is the whole answer
    answer = tokenizer(item.response)["input_ids"]
    end = model.config.eos_token_id
    response = Response(0, evaluate.prompt_ids(tokenizer, item), [*answer, 5, end])
    ended = rows([0, 0], [0, len(answer)], [end, end])
    found = evaluate.preservation(model, tokenizer, [item], [response], ended, 2)
    assert found.kept.tolist() == [0, 1]
    wrong = Response(0, response.prompt, [5, end])  # cannot be spoilt
    assert len(evaluate.preservation(model, tokenizer, [item], [wrong], ended.select(torch.tensor([0])), 2)) == 0


def rows(prompt_ids: list[int], positions: list[int], tokens: list[int]) -> Mismatches:
    columns = [torch.tensor(column) for column in (prompt_ids, positions, tokens)]
    none = torch.zeros_like(columns[0])
    return Mismatches(columns[0], columns[1], none, columns[2], none, none.float(), torch.zeros(len(none), 0))


def test_the_pick_is_seeded_and_keeps_to_the_prompts_it_is_given():
    mismatches = rows([0, 0, 0, 2, 2, 2, 2], [0, 1, 2, 0, 1, 2, 3], [5] * 7)
    assert evaluate._pick(mismatches, [0, 1, 2], 100).tolist() == list(range(7))
    assert evaluate._pick(mismatches, [2], 100).tolist() == [3, 4, 5, 6]
    some = evaluate._pick(mismatches, [0, 2], 3)
    assert len(some) == 3
    assert torch.equal(some, evaluate._pick(mismatches, [0, 2], 3))
    assert len(evaluate._pick(mismatches, [1], 3)) == 0


def test_batched_answers_equal_single_ones(pair, monkeypatch):
    out, _ = pair
    monkeypatch.setattr(evaluate, "MAX_NEW_TOKENS", 8)
    model = AutoModelForCausalLM.from_pretrained(out / "target", dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(out / "target")
    items = generate("multiple_choice", "test", 3) + generate("open_ended", "test", 2)
    assert evaluate.greedy_answers(model, tokenizer, items, 5) == evaluate.greedy_answers(model, tokenizer, items, 1)


def test_ranking_auc():
    assert evaluate.ranking_auc([0.1, 0.4, 0.35, 0.8], [False, False, True, True]) == 0.75
    assert evaluate.ranking_auc([0.5, 0.5], [True, False]) == 0.5
    assert evaluate.ranking_auc([0.5], [True]) is None


def test_load_names_what_is_missing(tmp_path):
    with pytest.raises(FileNotFoundError, match="target, draft, judge"):
        load(tmp_path)
