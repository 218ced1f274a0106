"""Bad input: one clear error, before any forward."""

import warnings

import pytest
import torch
from tiny import HIDDEN_SIZE, VOCAB_SIZE, Always, build_draft, build_judge, build_model, build_tokenizer, prompts
from transformers import (
    AutoModelForSeq2SeqLM,
    DynamicCache,
    GenerationConfig,
    StaticCache,
    T5Config,
    WatermarkingConfig,
)

from hf_selfjudge import JudgeDecoding, ModelReference, never_relax
from hf_selfjudge.decoding import checks
from hf_selfjudge.rules import TopK


@pytest.fixture(scope="module")
def frozen():
    """A pair that must not be run."""

    def refuse(*args, **kwargs):
        raise AssertionError("a forward before the error")

    target = build_model()
    draft = build_draft(target)
    target.forward = draft.forward = refuse
    return target, draft


@pytest.fixture(scope="module")
def other_vocabulary():
    return build_model(vocab_size=VOCAB_SIZE + 3)


def call(frozen, **kwargs):
    target, draft = frozen
    prompt = prompts(1)[0]
    settings = {"assistant_model": draft, "judge": Always(True), "max_new_tokens": 4, "do_sample": False}
    settings |= {"attention_mask": torch.ones_like(prompt), "input_ids": prompt} | kwargs
    return target.generate(**settings)


def pair_judge(**config):
    return build_judge(("hidden",), **config)


CASES = {
    "another hidden size": (
        {"judge": build_judge(("hidden",), hidden_size=HIDDEN_SIZE + 1)},
        f"hidden states of size {HIDDEN_SIZE + 1}.*reads {HIDDEN_SIZE}",
    ),
    "inside a combination": (
        {"judge": TopK(2) | never_relax(build_judge(("log_p",), hidden_size=7), [1])},
        "hidden states of size 7",
    ),
    "beams": ({"num_beams": 2}, "num_beams is 2"),
    "no cache": ({"use_cache": False}, "use_cache=True"),
    "static cache object": (
        {"past_key_values": StaticCache(build_model().config, max_cache_len=32)},
        "makes its own static caches, found StaticCache",
    ),
    "mode": ({"judge_mode": "three-stage"}, "judge_mode is 'three-stage', expected one of two-stage"),
    "no drafter": ({"assistant_model": None}, "needs something that drafts"),
    "rule with prompt lookup": (
        {"assistant_model": None, "prompt_lookup_num_tokens": 3, "judge": "kl:0.5"},
        "prompt lookup has none",
    ),
    "judge with prompt lookup": (
        {"assistant_model": None, "prompt_lookup_num_tokens": 3, "judge": build_judge(("log_q",))},
        "prompt lookup has none",
    ),
    "two methods": ({"custom_generate": lambda *args, **kwargs: None}, "two decoding methods"),
    "ensemble": ({"assistant_ensemble_weight": 0.5}, "both acceptance rules"),
    "hidden states": ({"output_hidden_states": True, "return_dict_in_generate": True}, "attentions or hidden states"),
    "attentions": ({"output_attentions": True, "return_dict_in_generate": True}, "attentions or hidden states"),
    "guidance": ({"guidance_scale": 2.0}, "must see each emitted token once"),
    "rule": ({"judge": "topk:0"}, "k is 0"),
    "stop strings": ({"stop_strings": ["a"]}, "stop_strings needs tokenizer="),
    "gamma 0": ({"num_assistant_tokens": 0}, "num_assistant_tokens is 0"),
    "gamma 2.5": ({"num_assistant_tokens": 2.5}, "num_assistant_tokens is 2.5"),
    "schedule": ({"num_assistant_tokens_schedule": "linear"}, "schedule is 'linear'"),
    "confidence": ({"assistant_confidence_threshold": 1.5}, "threshold is 1.5"),
    "empty prompt": (
        {"input_ids": torch.zeros(1, 0, dtype=torch.long), "attention_mask": None, "bos_token_id": None},
        "at least one token|`bos_token_id` has to be defined",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_bad_calls(frozen, case):
    kwargs, message = CASES[case]
    with pytest.raises(ValueError, match=message):
        call(frozen, **kwargs)


@pytest.mark.parametrize("judge", [3, 0.5, object(), [TopK(2)], TopK])
def test_wrong_types_for_judge(frozen, judge):
    with pytest.raises(TypeError, match="judge= got"):
        call(frozen, judge=judge)


def test_a_judge_folder_that_is_not_there(frozen, tmp_path):
    with pytest.raises((ValueError, FileNotFoundError)):
        call(frozen, judge=str(tmp_path / "nothing"))


@pytest.mark.parametrize("theta", [-0.1, 1.1, float("nan")])
def test_thetas_outside_0_1(theta):
    with pytest.raises(ValueError, match=r"\[0, 1\]"):
        build_judge(threshold=theta)


def test_another_vocabulary_needs_both_tokenizers(frozen, other_vocabulary):
    for given in ({}, {"tokenizer": build_tokenizer()}, {"assistant_tokenizer": build_tokenizer()}):
        with pytest.raises(ValueError, match=r"101 tokens in its vocabulary and the draft 104.*assistant_tokenizer="):
            call(frozen, assistant_model=other_vocabulary, **given)


@pytest.mark.parametrize("judge", ["kl:0.5", build_judge(("log_q",))])
def test_draft_features_with_different_tokenizers(frozen, judge):
    """Re-encoded candidates carry no distribution over the target's vocabulary, like prompt lookup."""
    tokenizers = {"tokenizer": build_tokenizer(), "assistant_tokenizer": build_tokenizer(shift=9)}
    with pytest.raises(ValueError, match="draft's logits"):
        call(frozen, judge=judge, **tokenizers)


@pytest.fixture(scope="module")
def encoder_decoder():
    config = T5Config(vocab_size=VOCAB_SIZE, d_model=16, d_kv=4, d_ff=16, num_layers=1, num_heads=2)
    config.decoder_start_token_id = 0
    model = AutoModelForSeq2SeqLM.from_config(config).eval()

    def refuse(*args, **kwargs):
        raise AssertionError("a forward before the error")

    model.forward = model.get_encoder().forward = refuse
    return model


def test_encoder_decoder_models(frozen, encoder_decoder):
    with pytest.raises(ValueError, match="encoder-decoder model; judge decoding works with decoder-only"):
        call((encoder_decoder, frozen[1]))
    with pytest.raises(ValueError, match="expected a decoder-only one"):
        call(frozen, assistant_model=encoder_decoder)


@pytest.mark.parametrize(
    ("family", "message"),
    [("llama4", "chunked_attention layers"), ("lfm2", "conv layers"), ("bloom", "takes no position_ids")],
)
def test_models_that_cannot_hold_rows_of_different_length(frozen, family, message):
    """Alone they decode; in a batch they would see what other rows forgot."""
    model = build_model(family)
    batch = {"input_ids": torch.full((2, 4), 7), "attention_mask": torch.ones(2, 4, dtype=torch.long)}
    with pytest.raises(ValueError, match=message):
        call((model, model), **batch)
    with pytest.raises(ValueError, match=message):
        call(frozen, assistant_model=model, **batch)
    assert call((model, model)).shape[0] == 1


def test_watermarks_that_count_tokens(frozen):
    config = GenerationConfig(max_new_tokens=4, do_sample=False, pad_token_id=0)
    config.watermarking_config = WatermarkingConfig(greenlist_ratio=0.3)
    # the green list reads only the text before a row: nothing to refuse, so the forward is reached
    with pytest.raises(AssertionError, match="a forward"):
        call(frozen, generation_config=config)


def test_unknown_arguments(frozen):
    with pytest.raises(TypeError, match="unknown arguments"):
        JudgeDecoding(frozen[1], "topk", gamma=4)
    with pytest.raises(ValueError, match="model_kwargs"):
        call(frozen, judgemode="two-stage")


def test_a_cache_of_the_users_own(pair):
    """An empty dynamic cache is as good as none."""
    prompt = prompts(1, seed=30)[0]
    out = pair.judged(prompt, Always(False), 9, 4, past_key_values=DynamicCache(config=pair.target.config))
    assert torch.equal(out.sequences, pair.plain(prompt, 9))


@pytest.fixture
def named(pair, monkeypatch):
    monkeypatch.setattr(checks, "_warned", set())
    monkeypatch.setattr(pair.target, "name_or_path", "org/target-1b", raising=False)
    monkeypatch.setattr(pair.draft, "name_or_path", "/models/draft-100m", raising=False)
    return pair


OTHER = {"target": ModelReference("org/target-7b"), "draft": ModelReference("org/draft-100m")}


def test_another_pair_warns_once(named):
    judge, prompt = pair_judge(**OTHER), prompts(1)[0]
    with pytest.warns(UserWarning, match=r"trained for the target 'org/target-7b', but the target here is") as caught:
        named.judged(prompt, judge, 3, 2)
    assert len(caught) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        named.judged(prompt, judge, 3, 2)


def test_another_pair_is_an_error_if_strict(named):
    prompt = prompts(1)[0]
    with pytest.raises(ValueError, match=r"org/target-7b.*strict_pair=True"):
        named.judged(prompt, pair_judge(**OTHER), 3, 2, strict_pair=True)
    with pytest.raises(ValueError, match="the draft 'org/other'"):
        named.judged(prompt, pair_judge(draft=ModelReference("org/other")), 3, 2, strict_pair=True)


def test_the_right_pair_and_an_unnamed_judge_pass(named):
    right = {"target": ModelReference("other-org/Target-1B"), "draft": ModelReference("draft-100m")}
    for config in (right, {}):
        named.judged(prompts(1)[0], pair_judge(**config), 3, 2, strict_pair=True)
