"""Drafters: our own with schedules, confidence and padded vocabularies, and transformers' others."""

import pytest
import torch
from tiny import VOCAB_SIZE, Always, build_draft, build_judge, build_model, build_tokenizer, prompts
from transformers import GenerationConfig, LogitsProcessorList

from hf_selfjudge.decoding.drafting import DraftModelGenerator, DraftSettings
from hf_selfjudge.decoding.texts import Texts

LENGTH = 16
REPEATING = torch.tensor([[5, 9, 14, 5, 9, 14, 5, 9, 14, 5, 9]])


def generate(target, prompt, judge, **kwargs):
    settings = {"max_new_tokens": LENGTH, "do_sample": False, "return_dict_in_generate": True}
    return target.generate(prompt, attention_mask=torch.ones_like(prompt), judge=judge, **(settings | kwargs))


@pytest.mark.parametrize("family", ["llama", "mistral"])
def test_prompt_lookup(pairs, family):
    target, drafted = pairs[family].target, 0
    for prompt in (REPEATING, *prompts(2, seed=40)):
        out = generate(target, prompt, Always(False), prompt_lookup_num_tokens=4)
        assert torch.equal(out.sequences, pairs[family].plain(prompt, LENGTH))
        drafted += out.judge_stats.drafted
        relaxed = generate(target, prompt, build_judge(("hidden", "log_p"), threshold=0.0), prompt_lookup_num_tokens=4)
        assert relaxed.judge_stats.rejected == 0
        assert relaxed.judge_stats.new_tokens == LENGTH
    assert drafted > 0


def test_prompt_lookup_takes_what_a_rule_accepts(pair):
    out = generate(pair.target, REPEATING, Always(True), prompt_lookup_num_tokens=3, max_new_tokens=8)
    assert out.sequences[0, 11:14].tolist() == [14, 5, 9]
    assert out.judge_stats.accepted >= 3


def test_early_exit(pair):
    for prompt in prompts(3, seed=41):
        exact = generate(pair.target, prompt, Always(False), assistant_early_exit=1)
        assert torch.equal(exact.sequences, pair.plain(prompt, LENGTH))
        assert exact.judge_stats.drafted > 0
        accepting = generate(pair.target, prompt, Always(True), assistant_early_exit=1)
        assert accepting.judge_stats.rejected == 0


@pytest.fixture(scope="module")
def translated():
    """A target and a draft whose tokenizers give the same text different ids."""
    return build_tokenizer(), build_tokenizer(shift=9)


def test_different_tokenizers(pair, translated):
    tokenizer, other = translated
    settings = {"assistant_model": pair.draft, "tokenizer": tokenizer, "assistant_tokenizer": other}
    drafted = 0
    for text in ("the cat and the dog", "one two three", "then a line"):
        prompt = tokenizer(text, return_tensors="pt").input_ids
        exact = generate(pair.target, prompt, Always(False), **settings)
        assert torch.equal(exact.sequences, pair.plain(prompt, LENGTH))
        relaxed = generate(pair.target, prompt, "topk:20", **settings)
        assert relaxed.judge_stats.new_tokens == LENGTH
        drafted += relaxed.judge_stats.drafted
    assert drafted > 0


@pytest.mark.parametrize("drafter", ["different tokenizers", "early exit"])
def test_gamma_holds_for_transformers_drafters(pair, translated, drafter):
    """They read the assistant's own config only; what the call asks for must reach them."""
    tokenizer, other = translated
    prompt = tokenizer("the cat and the dog", return_tensors="pt").input_ids
    settings = {"assistant_early_exit": 1}
    if drafter == "different tokenizers":
        settings = {"assistant_model": pair.draft, "tokenizer": tokenizer, "assistant_tokenizer": other}
    drafted = {}
    for gamma in (2, 9):
        out = generate(pair.target, prompt, Always(False), num_assistant_tokens=gamma, **settings)
        drafted[gamma] = len(out.judge_stats.drafted_by_position)
    assert drafted[2] <= 4 < drafted[9]  # re-encoding may change the number of tokens a little


@pytest.mark.parametrize("difference", [3, -3])
def test_padded_vocabularies(pair, difference):
    """Equal tokenizers, but one model's embeddings are padded: ids mean the same, the rest is ruled out."""
    draft = build_draft(pair.target)
    draft.resize_token_embeddings(VOCAB_SIZE + difference)
    tokenizer, accepted = build_tokenizer(), 0
    settings = {"assistant_model": draft, "tokenizer": tokenizer, "assistant_tokenizer": tokenizer}
    for prompt in prompts(3, seed=42):
        exact = generate(pair.target, prompt, Always(False), **settings)
        assert torch.equal(exact.sequences, pair.plain(prompt, LENGTH))
        accepted += exact.judge_stats.accepted
        for judge in (build_judge(threshold=0.2), "kl:0.5", "ensemble:0.5"):
            relaxed = generate(pair.target, prompt, judge, **settings)
            assert int(relaxed.sequences.max()) < VOCAB_SIZE
    assert accepted > 0
    padded_prompt = torch.tensor([[5, VOCAB_SIZE - 1, VOCAB_SIZE - 2]])  # ids that a smaller draft does not have
    assert torch.equal(
        generate(pair.target, padded_prompt, Always(False), **settings).sequences, pair.plain(padded_prompt, LENGTH)
    )


def draft_lengths(pair, prompt, judge, **kwargs):
    """How many tokens each cycle drafted, watched from outside."""
    seen = []
    original = DraftModelGenerator.propose

    def propose(self, input_ids, budget, target=None):
        draft = original(self, input_ids, budget, target)
        seen.append(draft.tokens.shape[1])
        return draft

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DraftModelGenerator, "propose", propose)
        out = generate(pair.target, prompt, judge, assistant_model=pair.draft, **kwargs)
    return seen, out


def test_gamma_is_fixed_unless_asked_otherwise(pair):
    seen, _ = draft_lengths(pair, prompts(1)[0], Always(False), num_assistant_tokens=3, max_new_tokens=30)
    assert set(seen[:-3]) == {3}
    seen, _ = draft_lengths(pair, prompts(1)[0], Always(True), max_new_tokens=50)
    assert seen[:2] == [20, 20]  # transformers' default


@pytest.mark.parametrize("schedule", ["heuristic", "heuristic_transient"])
def test_heuristic_schedules(pair, schedule, monkeypatch):
    monkeypatch.setattr(pair.draft, "generation_config", GenerationConfig())
    settings = {"num_assistant_tokens_schedule": schedule, "max_new_tokens": 40}
    seen, _ = draft_lengths(pair, prompts(1)[0], Always(True), num_assistant_tokens=3, **settings)
    assert seen[:3] == [3, 5, 7]
    kept = pair.draft.generation_config.num_assistant_tokens
    assert kept == (3 + 2 * len(seen) if schedule == "heuristic" else None)
    # nothing accepted and the judge alone: one less each cycle, but never none
    down, _ = draft_lengths(
        pair, prompts(1)[0], Always(False), num_assistant_tokens=3, judge_mode="judge-only", **settings
    )
    assert down[:5] == [3, 2, 1, 1, 1]


def test_a_heuristic_gamma_is_used_by_the_next_call(pair, monkeypatch):
    monkeypatch.setattr(pair.draft, "generation_config", GenerationConfig(num_assistant_tokens=4))
    settings = {"num_assistant_tokens_schedule": "heuristic"}
    seen, _ = draft_lengths(pair, prompts(1)[0], Always(True), max_new_tokens=5, **settings)
    again, _ = draft_lengths(pair, prompts(1)[0], Always(True), max_new_tokens=30, **settings)
    assert (seen[0], again[0]) == (4, 6)


def test_confidence_ends_a_block(pair):
    prompt = prompts(1, seed=43)[0]
    seen, out = draft_lengths(
        pair, prompt, Always(False), num_assistant_tokens=8, assistant_confidence_threshold=0.3, max_new_tokens=24
    )
    assert torch.equal(out.sequences, pair.plain(prompt, 24))
    assert min(seen[:-1]) < 8
    text = prompt[0].tolist()
    p = torch.ones(1)
    while p.max() >= 0.3 and len(text) < prompt.shape[1] + 8:  # the first block by hand
        p = pair.draft(torch.tensor([text]), use_cache=False).logits[0, -1].softmax(-1)
        text.append(int(p.argmax()))
    assert seen[0] == len(text) - prompt.shape[1]


@pytest.mark.parametrize("family", ["mistral", "gemma3"])
def test_the_draft_forgets_what_was_rejected(pairs, family):
    """Drafts after rejections equal those of a fresh generator, also far beyond a sliding window."""
    draft, settings = pairs[family].draft, DraftSettings(num_assistant_tokens=6)
    used = DraftModelGenerator(draft, settings, VOCAB_SIZE, LogitsProcessorList())
    text = prompts(1, length=5)[0]
    for step in range(8):
        proposal = used.propose(Texts(text), [100])
        fresh = DraftModelGenerator(draft, settings, VOCAB_SIZE, LogitsProcessorList()).propose(Texts(text), [100])
        assert torch.equal(proposal.tokens, fresh.tokens)
        torch.testing.assert_close(proposal.logits, fresh.logits, rtol=1e-4, atol=1e-5)
        accepted = step % 7
        text = torch.cat([text, proposal.tokens[:, :accepted], torch.tensor([[40 + step]])], dim=1)
        used.observe(Texts(text), torch.zeros(1, 7, VOCAB_SIZE), [accepted], [6])


def test_our_generator_speaks_transformers_interface(pair):
    prompt = prompts(1, seed=44)[0]
    settings = DraftSettings(num_assistant_tokens=4, num_assistant_tokens_schedule="heuristic")
    generator = DraftModelGenerator(pair.draft, settings, VOCAB_SIZE, LogitsProcessorList())
    candidates, scores = generator.get_candidates(prompt)
    assert candidates.shape == (1, prompt.shape[1] + 4)
    assert scores.shape == (1, 4, VOCAB_SIZE)
    assert torch.equal(scores.argmax(-1), candidates[:, -4:])
    generator.update_candidate_strategy(candidates, torch.zeros(1, 5, VOCAB_SIZE), 4)
    assert generator.gamma == 6
    generator.update_candidate_strategy(candidates, torch.zeros(1, 5, VOCAB_SIZE), 1)
    assert generator.gamma == 5


def test_a_budget_of_nothing_drafts_nothing(pair):
    generator = DraftModelGenerator(pair.draft, DraftSettings(), VOCAB_SIZE, LogitsProcessorList())
    draft = generator.propose(Texts(prompts(1)[0]), [0])
    assert draft.tokens.shape == (1, 0)
    assert draft.logits is None


@pytest.mark.parametrize("settings", [{"num_assistant_tokens": True}, {"assistant_confidence_threshold": -0.1}])
def test_bad_settings(settings):
    with pytest.raises(ValueError, match=next(iter(settings))):
        DraftSettings(**settings)


def test_settings_come_from_the_call_then_its_config_then_the_draft():
    draft = build_model()
    draft.generation_config.num_assistant_tokens = 7
    draft.generation_config.assistant_confidence_threshold = 0.2
    default = GenerationConfig()
    assert DraftSettings.resolve({}, default, None) == DraftSettings()
    assert DraftSettings.resolve({}, default, draft) == DraftSettings(7, "constant", 0.2)
    call = GenerationConfig(num_assistant_tokens=9)
    assert DraftSettings.resolve({}, call, draft).num_assistant_tokens == 9
    assert DraftSettings.resolve({"num_assistant_tokens": 20}, call, draft).num_assistant_tokens == 20


@pytest.mark.parametrize(
    ("rule", "sampled", "kept"),
    [("exact", False, False), ("floor:0.1", False, False), ("kl:0.5", False, True), ("floor:0.1", True, True)],
)
def test_draft_logits_are_kept_only_for_those_who_read_them(pair, monkeypatch, rule, sampled, kept):
    seen = []
    propose = DraftModelGenerator.propose

    def watching(self, *args):
        draft = propose(self, *args)
        seen.append(draft.logits is not None)
        return draft

    monkeypatch.setattr(DraftModelGenerator, "propose", watching)
    ids = prompts(1, seed=3)[0]
    pair.target.generate(
        input_ids=ids,
        attention_mask=torch.ones_like(ids),
        assistant_model=pair.draft,
        judge=rule,
        num_assistant_tokens=4,
        do_sample=sampled,
        max_new_tokens=8,
    )
    assert set(seen) == {kept}
