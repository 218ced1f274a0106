"""A response ends at exactly the token where plain `generate` ends it, wherever that is in a block."""

import pytest
import torch
from tiny import FAMILIES, Always, build_judge, prompts
from transformers import EosTokenCriteria, StoppingCriteria, StoppingCriteriaList

from hf_selfjudge import JudgeDecoding

REJECT = Always(False)
LENGTH = 18


def assert_same(pair, prompt, gamma, length=LENGTH, judge=REJECT, **kwargs):
    plain = pair.plain(prompt, length, **kwargs)
    out = pair.judged(prompt, judge, length, gamma, **kwargs)
    assert torch.equal(out.sequences, plain), kwargs
    stats = out.judge_stats
    assert stats.new_tokens == len(stats.sources) == plain.shape[1] - prompt.shape[1]
    assert stats.drafted == stats.matched + stats.rejected + stats.discarded
    return plain.shape[1] - prompt.shape[1], stats


@pytest.mark.parametrize("family", FAMILIES)
def test_eos_ends_the_response_anywhere_in_a_block(pairs, family):
    pair, sources = pairs[family], set()
    for gamma, prompt in zip((1, 3, 8, 20), prompts(4, seed=3), strict=True):
        response = pair.plain(prompt, LENGTH)[0, prompt.shape[1] :].tolist()
        for position in (3, 7, 8, 12):
            eos = response[position]
            length, stats = assert_same(pair, prompt, gamma, eos_token_id=eos)
            assert length == response.index(eos) + 1
            sources.add(stats.sources[-1])
    assert len(sources) > 1  # both drafted and target tokens have ended responses


def test_several_eos_tokens(pair):
    prompt = prompts(1, seed=3)[0]
    response = pair.plain(prompt, LENGTH)[0, prompt.shape[1] :].tolist()
    length, _ = assert_same(pair, prompt, 8, eos_token_id=[response[9], response[6]])
    assert length == min(response.index(response[6]), response.index(response[9])) + 1


def test_eos_criteria_of_the_user(pair):
    prompt = prompts(1, seed=3)[0]
    response = pair.plain(prompt, LENGTH)[0, prompt.shape[1] :].tolist()
    criteria = StoppingCriteriaList([EosTokenCriteria(response[6])])
    length, _ = assert_same(pair, prompt, 8, stopping_criteria=criteria)
    assert length == response.index(response[6]) + 1


@pytest.mark.parametrize("gamma", [3, 20])
def test_stop_strings_end_the_response_anywhere_in_a_block(pairs, tokenizer, gamma):
    pair, lengths = pairs["qwen2"], set()
    for prompt in prompts(3, seed=4):
        response = pair.plain(prompt, LENGTH)[0, prompt.shape[1] :].tolist()
        for position in range(2, LENGTH, 3):
            text = tokenizer.decode(response[position : position + 2])
            if "\ufffd" in text or "<" in text:
                continue
            strings = [text[-2:], "never generated"]
            length, _ = assert_same(pair, prompt, gamma, stop_strings=strings, tokenizer=tokenizer)
            lengths.add(length)
    assert len(lengths - {LENGTH}) > 3


def test_stop_strings_of_a_generation_config(pair, tokenizer):
    prompt = prompts(1, seed=4)[0]
    response = pair.plain(prompt, LENGTH)[0, prompt.shape[1] :].tolist()
    config = pair.target.generation_config.to_dict() | {"stop_strings": [tokenizer.decode(response[5:7])]}
    config = type(pair.target.generation_config)(**config)
    length, _ = assert_same(pair, prompt, 8, generation_config=config, tokenizer=tokenizer)
    assert length < LENGTH
    with pytest.raises(ValueError, match="needs tokenizer="):
        pair.judged(prompt, REJECT, LENGTH, 8, generation_config=config)
    assert config.stop_strings == [tokenizer.decode(response[5:7])]  # the caller's object is left as it was


def test_stop_strings_without_the_hook(pair, tokenizer):
    prompt = prompts(1, seed=4)[0]
    response = pair.plain(prompt, LENGTH)[0, prompt.shape[1] :].tolist()
    strings = [tokenizer.decode(response[5:7])]
    decoding = JudgeDecoding(pair.draft, None, stop_strings=strings, tokenizer=tokenizer)
    shared = {"attention_mask": torch.ones_like(prompt), "max_new_tokens": LENGTH, "do_sample": False}
    expected = pair.target.generate(prompt, stop_strings=strings, tokenizer=tokenizer, **shared)
    assert torch.equal(pair.target.generate(prompt, custom_generate=decoding, **shared), expected)
    assert expected.shape[1] < prompt.shape[1] + LENGTH


@pytest.mark.parametrize("gamma", [1, 4, 9])
def test_the_length_limit_cuts_a_block(pair, gamma):
    prompt = prompts(1, seed=5)[0]
    for length in range(1, 12):
        assert assert_same(pair, prompt, gamma, length)[0] == length
        accepted = pair.judged(prompt, Always(True), length, gamma)
        assert accepted.sequences.shape[1] == prompt.shape[1] + length


def test_max_length_counts_the_prompt(pair):
    prompt = prompts(1, seed=5)[0]
    length = prompt.shape[1] + 7
    out = pair.judged(prompt, REJECT, None, 5, max_length=length)
    assert torch.equal(out.sequences, pair.plain(prompt, 7))


class SumCriterion(StoppingCriteria):
    """Ends a response by its last three tokens, and counts how often it was asked."""

    def __init__(self, modulus):
        self.modulus, self.calls = modulus, 0

    def __call__(self, input_ids, scores, **kwargs):
        self.calls += 1
        return input_ids[:, -3:].sum(-1) % self.modulus == 0


class ConfidenceCriterion(StoppingCriteria):
    """Ends a response where the target was sure of its last token."""

    def __init__(self, bound):
        self.bound = bound

    def __call__(self, input_ids, scores, **kwargs):
        return scores[-1].softmax(-1).amax(-1) > self.bound


@pytest.mark.parametrize("gamma", [1, 3, 8, 20])
def test_custom_criteria_are_asked_after_each_token(pairs, gamma):
    lengths = set()
    for prompt in prompts(6, seed=6):
        plain, ours = SumCriterion(5), SumCriterion(5)
        expected = pairs["mistral"].plain(prompt, LENGTH, stopping_criteria=StoppingCriteriaList([plain]))
        out = pairs["mistral"].judged(prompt, REJECT, LENGTH, gamma, stopping_criteria=StoppingCriteriaList([ours]))
        assert torch.equal(out.sequences, expected)
        assert ours.calls == plain.calls
        lengths.add(expected.shape[1] - prompt.shape[1])
    assert len(lengths) > 2


@pytest.mark.parametrize("gamma", [1, 8])
def test_custom_criteria_see_the_scores_up_to_their_token(pair, gamma):
    lengths = set()
    for prompt in prompts(6, seed=7):
        dictionary = {"output_scores": True, "stopping_criteria": StoppingCriteriaList([ConfidenceCriterion(0.3)])}
        expected = pair.plain(prompt, LENGTH, return_dict_in_generate=True, **dictionary)
        out = pair.judged(prompt, REJECT, LENGTH, gamma, **dictionary)
        assert torch.equal(out.sequences, expected.sequences)
        assert len(out.scores) == len(expected.scores)
        lengths.add(len(expected.scores))
    assert len(lengths) > 2


def test_a_stop_inside_a_judged_block_counts_only_what_stays(pair):
    prompt = prompts(1, seed=8)[0]
    whole = pair.judged(prompt, Always(True), LENGTH, 9)
    response = whole.sequences[0, prompt.shape[1] :].tolist()
    criterion = SumCriterion(sum(response[2:5]))
    out = pair.judged(prompt, Always(True), LENGTH, 9, stopping_criteria=StoppingCriteriaList([criterion]))
    stats = out.judge_stats
    assert out.sequences[0, prompt.shape[1] :].tolist() == response[: stats.new_tokens]
    assert (stats.new_tokens, stats.accepted, stats.rejected, stats.bonus) == (5, 5, 0, 0)
    assert stats.discarded == 9 - 5
    assert all(r.position < 5 for r in stats.replacements)


def test_theta_one_stops_alike(pair):
    prompt = prompts(1, seed=3)[0]
    eos = int(pair.plain(prompt, LENGTH)[0, prompt.shape[1] + 7])
    assert_same(pair, prompt, 8, judge=build_judge(threshold=1.0), eos_token_id=eos)
