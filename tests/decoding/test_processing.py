"""Logits processors, masks and returned scores: the same as plain `generate`'s wherever decoding is exact."""

import pytest
import torch
from tiny import FAMILIES, VOCAB_SIZE, Always, prompts
from transformers import DynamicCache, LogitsProcessor, LogitsProcessorList

from hf_selfjudge.decoding.processing import ROW_WISE, process_scores

LENGTH = 16


class ByLastToken(LogitsProcessor):
    """A user's processor: what follows depends on the last token and on the length."""

    def __call__(self, input_ids, scores):
        shift = (input_ids[:, -1:] * 7 + input_ids.shape[1]) % VOCAB_SIZE
        return scores.scatter_add(1, shift, torch.full_like(scores[:, :1], 8.0))


PROCESSORS = {
    "repetition": {"repetition_penalty": 1.5},
    "ngram": {"no_repeat_ngram_size": 2},
    "suppress": {"suppress_tokens": list(range(3, 60))},
    "begin_suppress": {"begin_suppress_tokens": list(range(3, 90))},
    "bad_words": {"bad_words_ids": [[token] for token in range(3, 60)] + [[61, 62]]},
    "bias": {"sequence_bias": [[[token], 9.0] for token in (11, 12, 13)]},
    "forced_eos": {"forced_eos_token_id": 5},
    "decay": {"exponential_decay_length_penalty": (3, 1.5), "eos_token_id": 17},
    "custom": {"logits_processor": LogitsProcessorList([ByLastToken()])},
    "prefix": {"prefix_allowed_tokens_fn": lambda _, text: range(int(text[-1]) % 3, VOCAB_SIZE, 3)},
    "several": {"repetition_penalty": 1.3, "no_repeat_ngram_size": 3, "suppress_tokens": [7, 8, 9]},
}


@pytest.mark.parametrize("name", PROCESSORS)
@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_processors_equal_plain_generate(pairs, family, name):
    pair, changed = pairs[family], 0
    for gamma, prompt in zip((1, 3, 8), prompts(3, seed=9), strict=True):
        plain = pair.plain(prompt, LENGTH, **PROCESSORS[name])
        assert torch.equal(pair.judged(prompt, Always(False), LENGTH, gamma, **PROCESSORS[name]).sequences, plain)
        changed += not torch.equal(plain, pair.plain(prompt, LENGTH))
    assert changed > 0  # the processor mattered


@pytest.mark.parametrize("option", ["min_new_tokens", "min_length"])
def test_minimal_lengths_hold_eos_back(pair, option):
    for prompt in prompts(4, seed=10):
        eos = int(pair.plain(prompt, LENGTH)[0, prompt.shape[1] + 2])
        limit = {option: 9 if option == "min_new_tokens" else prompt.shape[1] + 9, "eos_token_id": eos}
        plain = pair.plain(prompt, LENGTH, **limit)
        assert plain.shape[1] >= prompt.shape[1] + 9
        assert torch.equal(pair.judged(prompt, Always(False), LENGTH, 8, **limit).sequences, plain)
        judged = pair.judged(prompt, Always(True), LENGTH, 8, **limit).sequences[0, prompt.shape[1] :]
        assert eos not in judged[:9].tolist()


@pytest.mark.parametrize("family", FAMILIES)
def test_left_padded_prompts_equal_plain_generate(pairs, family):
    pair = pairs[family]
    for gamma, prompt in zip((1, 3, 8), prompts(3, seed=11), strict=True):
        padded = torch.nn.functional.pad(prompt, (5, 0), value=0)
        mask = (torch.arange(padded.shape[1]) >= 5).long()[None]
        plain = pair.plain(padded, LENGTH, attention_mask=mask)
        out = pair.judged(padded, Always(False), LENGTH, gamma, attention_mask=mask)
        assert torch.equal(out.sequences, plain)
        # the padding changes nothing: the response and the drafts are those of the bare prompt
        bare = pair.judged(prompt, Always(False), LENGTH, gamma)
        assert torch.equal(out.sequences[:, 5:], bare.sequences)
        assert out.judge_stats.sources == bare.judge_stats.sources


@pytest.mark.parametrize("family", ["llama", "gemma2", "mistral"])
def test_scores_logits_and_cache_equal_plain_generates(pairs, family):
    pair, prompt = pairs[family], prompts(1, seed=12)[0]
    eos = int(pair.plain(prompt, LENGTH)[0, prompt.shape[1] + 9])
    asked = {"output_scores": True, "output_logits": True, "repetition_penalty": 1.2, "eos_token_id": eos}
    plain = pair.plain(prompt, LENGTH, return_dict_in_generate=True, **asked)
    out = pair.judged(prompt, Always(False), LENGTH, 6, **asked)
    assert torch.equal(out.sequences, plain.sequences)
    for found, expected in ((out.scores, plain.scores), (out.logits, plain.logits)):
        assert len(found) == len(expected) == out.judge_stats.new_tokens
        for a, b in zip(found, expected, strict=True):
            assert a.shape == b.shape
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-4)
    assert out.past_key_values.get_seq_length() == plain.past_key_values.get_seq_length()
    for ours, theirs in zip(out.past_key_values.layers, plain.past_key_values.layers, strict=True):
        size = min(ours.keys.shape[-2], theirs.keys.shape[-2])  # a sliding layer may keep one state more
        torch.testing.assert_close(ours.keys[..., -size:, :], theirs.keys[..., -size:, :], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("family", ["llama", "mistral", "gemma3"])
def test_a_given_cache_is_continued(pairs, family):
    """A chat's next turn: the cache holds the first part of the text."""
    pair, prompt = pairs[family], prompts(1, length=14, seed=13)[0]

    def read(length):
        cache = DynamicCache(config=pair.target.config)
        pair.target(prompt[:, :length], past_key_values=cache, use_cache=True)
        return cache

    for length in (1, 9, 13):
        out = pair.judged(prompt, Always(False), LENGTH, 5, past_key_values=read(length))
        assert torch.equal(out.sequences, pair.plain(prompt, LENGTH))
    with pytest.raises(ValueError, match="whole text"):
        pair.judged(prompt, Always(False), LENGTH, 5, past_key_values=read(14))
    only_new = {"past_key_values": read(9), "attention_mask": torch.ones_like(prompt)}
    with pytest.raises(ValueError, match="whole text"):
        pair.judged(prompt[:, 9:], Always(False), LENGTH, 5, **only_new)


def test_scores_and_logits_only_where_asked_for(pair):
    out = pair.judged(prompts(1)[0], Always(False), 6, 3)
    assert out.scores is None
    assert out.logits is None
    assert isinstance(pair.target.generate(prompts(1)[0], assistant_model=pair.draft, judge="topk", max_new_tokens=2,
                                           do_sample=False), torch.Tensor)  # fmt: skip


def test_a_whole_block_is_processed_as_row_by_row():
    torch.manual_seed(3)
    text, drafts, logits = torch.randint(0, 20, (1, 5)), torch.randint(0, 20, (1, 4)), torch.randn(1, 5, 20) * 3
    for processors in (
        LogitsProcessorList([cls(0.5) for cls in ROW_WISE[:1]] + [ROW_WISE[1](5), ROW_WISE[2](0.8)]),
        LogitsProcessorList([ByRow()]),
    ):
        before = logits.clone()
        whole = process_scores(processors, [text], drafts, logits)
        both = torch.cat([text, drafts], dim=1)
        rows = [processors(both[:, : 5 + i], logits[:, i].clone()) for i in range(5)]
        assert torch.equal(whole, torch.stack(rows, dim=1))
        assert torch.equal(logits, before)  # the raw logits stay raw
        assert not torch.equal(whole, logits)


class ByRow(LogitsProcessor):
    """Changes its input in place, as several of transformers' own do."""

    def __call__(self, input_ids, scores):
        scores[:, int(input_ids[0, -1])] = float("-inf")
        return scores
