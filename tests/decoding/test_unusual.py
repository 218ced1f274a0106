"""Unusual models and calls: the target's own tokens, or one clear refusal."""

import pytest
import torch
from tiny import build_draft, build_model, prompts
from transformers import (
    AutoModelForCausalLM,
    FalconConfig,
    GPTNeoConfig,
    Phi3Config,
    StoppingCriteriaList,
)
from transformers.generation.stopping_criteria import MaxLengthCriteria

from hf_selfjudge.decoding.caches import NoStaticCaches

SMALL = {"vocab_size": 101, "hidden_size": 32, "initializer_range": 0.3, "pad_token_id": 0, "bos_token_id": 1,
         "eos_token_id": None}  # fmt: skip
LAYERS = {"num_hidden_layers": 2, "num_attention_heads": 4}


def of(config, spread=0.05):
    torch.manual_seed(0)
    target = AutoModelForCausalLM.from_config(config).eval().requires_grad_(False)
    target.generation_config.pad_token_id = 0
    return target, build_draft(target, spread)


def known(name, spread=0.03, **config):
    target = build_model(name, **config)
    return target, build_draft(target, spread)


def batch(texts):
    width = max(text.shape[1] for text in texts)
    pads = [width - text.shape[1] for text in texts]
    return {
        "input_ids": torch.cat(
            [torch.nn.functional.pad(text, (pad, 0)) for text, pad in zip(texts, pads, strict=True)]
        ),
        "attention_mask": torch.stack([(torch.arange(width) >= pad).long() for pad in pads]),
    }


def same(models, inputs, new=12, gamma=4, **options):
    """Whether exact judge decoding gives what the target alone gives; `judged` are options of the former only."""
    target, draft = models
    judged = {name: options.pop(name) for name in ("cache_implementation", "judge_rows_at_once", "schedule")
              if name in options}  # fmt: skip
    if "schedule" in judged:
        judged["num_assistant_tokens_schedule"] = judged.pop("schedule")
    call = {"do_sample": False, **({} if "max_length" in options else {"max_new_tokens": new}), **inputs, **options}
    plain = target.generate(**call)
    found = target.generate(**call, assistant_model=draft, judge="exact", num_assistant_tokens=gamma, **judged)
    return torch.equal(plain, found)


def test_a_batch_takes_nothing_but_token_ids():
    inputs = batch(prompts(3, 8, seed=4))
    with pytest.raises(ValueError, match=r"other inputs than token ids \(token_type_ids\)"):
        same(known("gpt2"), {**inputs, "token_type_ids": torch.full_like(inputs["input_ids"], 7)})
    one = batch(prompts(1, 8, seed=4))
    assert same(known("gpt2"), {**one, "token_type_ids": torch.full_like(one["input_ids"], 7)})


def test_positions_of_the_users_own():
    one, models = batch(prompts(1, 9)), known("llama")
    own = {"position_ids": torch.arange(9)[None] * 3}
    assert same(models, one | own)
    with pytest.raises(NoStaticCaches, match="position_ids"):
        same(models, one | own, cache_implementation="static")
    several = batch(prompts(3, seed=3))
    usual = {"position_ids": (several["attention_mask"].cumsum(-1) - 1).clamp(min=0)}
    assert same(models, several | usual, cache_implementation="static")
    with pytest.raises(ValueError, match="position_ids"):
        same(models, several | {"position_ids": usual["position_ids"] * 2})


@pytest.mark.parametrize(
    "option",
    [
        {"prefix_allowed_tokens_fn": lambda row, _: list(range(3 + 20 * row, 23 + 20 * row))},
        {"encoder_repetition_penalty": 1.5},
        {"encoder_no_repeat_ngram_size": 2},
    ],
    ids=lambda option: next(iter(option)),
)
def test_processors_that_go_by_the_row_take_one_sequence(option):
    assert same(known("llama"), batch(prompts(1, seed=3)), **option)
    with pytest.raises(ValueError, match="one sequence at a time, not for a batch"):
        same(known("llama"), batch(prompts(3, seed=3)), **option)


@pytest.mark.parametrize("name", ["penalty_alpha", "dola_layers"])
def test_other_decoding_methods_are_refused(name):
    target, draft = known("llama")
    value = {"penalty_alpha": 0.6, "dola_layers": "low"}[name]
    with pytest.raises(ValueError, match=f"{name} asks for another decoding method"):
        target.generate(**batch(prompts(1)), assistant_model=draft, judge="exact", max_new_tokens=4, **{name: value})


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (GPTNeoConfig(**SMALL, num_layers=2, num_heads=4, attention_types=[[["global", "local"], 1]], window_size=6,
                      max_position_embeddings=256), "local attention"),
        (FalconConfig(**SMALL, **LAYERS, multi_query=False, alibi=True), "alibi"),
    ],
    ids=["gpt_neo", "alibi"],
)  # fmt: skip
def test_models_whose_rows_cannot_differ(config, reason):
    models = of(config)
    assert same(models, batch(prompts(1, 9)), new=24)
    with pytest.raises(ValueError, match=reason):
        same(models, batch(prompts(3, 9)), new=24)
    with pytest.raises(NoStaticCaches, match=reason):
        same(models, batch(prompts(1, 9)), new=24, cache_implementation="static")


def test_caches_of_another_shape_than_the_config_tells():
    models = of(FalconConfig(**SMALL, **LAYERS, multi_query=True, alibi=False))
    assert same(models, batch(prompts(3, 9)))
    with pytest.raises(NoStaticCaches, match="other shapes"):
        same(models, batch(prompts(1, 9)), cache_implementation="static")


def test_rotary_embeddings_that_change_with_the_length():
    rope = {"rope_type": "longrope", "short_factor": [1.0] * 4, "long_factor": [3.0] * 4, "rope_theta": 1e4,
            "original_max_position_embeddings": 600}  # fmt: skip
    models = of(
        Phi3Config(**SMALL, **LAYERS, intermediate_size=64, num_key_value_heads=2, max_position_embeddings=2048,
                   original_max_position_embeddings=600, tie_word_embeddings=False, rope_parameters=rope)
    )  # fmt: skip
    assert same(models, batch(prompts(1, 700)))
    assert same(models, batch(prompts(1, 300)), cache_implementation="static")
    with pytest.raises(NoStaticCaches, match="longrope"):
        same(models, batch(prompts(1, 700)), cache_implementation="static")


def test_hooks_run_also_with_static_caches():
    models, one = known("llama"), batch(prompts(1, 9))
    assert same(models, one, cache_implementation="static")
    layer = models[0].model.layers[1]
    hook = layer.register_forward_hook(lambda _, __, out: (-out[0], *out[1:]) if isinstance(out, tuple) else -out)
    assert same(models, one, cache_implementation="static")
    hook.remove()
    assert same(models, one, cache_implementation="static")


def test_waiting_rows_after_a_call_with_a_larger_cache():
    models, texts = known("llama", 0.1), prompts(40, seed=3)
    ends = models[0].generate(**batch(texts[:1]), do_sample=False, max_new_tokens=20)[0, -8:-5].tolist()
    static = {"new": 20, "eos_token_id": ends, "cache_implementation": "static"}
    assert same(models, batch(texts[:18]), **static)
    assert same(models, batch(texts[:30]), judge_rows_at_once=10, **static)


def test_a_growing_schedule_stays_inside_a_static_cache():
    models = known("llama", 0.0, max_position_embeddings=1024)
    static = {"new": 205, "gamma": 5, "eos_token_id": 0, "cache_implementation": "static", "judge_rows_at_once": 2}
    assert same(models, batch(prompts(6, 40, seed=3)), schedule="heuristic_transient", **static)


@pytest.mark.parametrize("end", [9, 61])
def test_rows_join_while_drafting_rests(end):
    target = build_model("llama", max_position_embeddings=1024)
    draft = build_model("llama", seed=9, max_position_embeddings=1024)
    static = {"new": 44, "gamma": 5, "eos_token_id": end, "cache_implementation": "static", "judge_rows_at_once": 3}
    assert same((target, draft), batch(prompts(8, 200, seed=3)), schedule="adaptive", **static)


def test_a_batch_fills_the_context_of_learned_positions():
    models, inputs = known("gpt2", 0.1, n_positions=32), batch(prompts(3, 10, seed=4))
    assert same(models, inputs, gamma=5, max_length=32)
    with pytest.raises(NoStaticCaches, match="32 positions"):
        same(models, inputs, gamma=5, max_length=32, cache_implementation="static")


def test_a_length_criterion_below_the_prompt():
    assert same(known("llama"), batch(prompts(1, 10)), stopping_criteria=StoppingCriteriaList([MaxLengthCriteria(5)]))
