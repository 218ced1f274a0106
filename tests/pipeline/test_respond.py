"""Responses are the target's greedy text; sampled completions are reproducible and follow the model's distribution."""

import pytest
import torch
from tiny import VOCAB_SIZE, build_model

from hf_selfjudge.pipeline.completion import complete
from hf_selfjudge.pipeline.records import Prompt
from hf_selfjudge.pipeline.respond import respond
from hf_selfjudge.pipeline.settings import RespondSettings


@pytest.fixture(scope="module")
def target():
    model = build_model("llama")
    model.generation_config.eos_token_id = 7
    return model


@pytest.fixture(scope="module")
def prompts():
    generator = torch.Generator().manual_seed(0)
    tokens = [torch.randint(8, VOCAB_SIZE, (n,), generator=generator).tolist() for n in (4, 11, 7, 5, 9)]
    return [Prompt(10 + place, "my", "train", "", ids) for place, ids in enumerate(tokens)]


def greedy(model, ids: list[int], count: int, eos: int) -> list[int]:
    """Cache-free greedy decoding."""
    new: list[int] = []
    while len(new) < count and (not new or new[-1] != eos):
        new.append(int(model(torch.tensor([ids + new])).logits[0, -1].argmax()))
    return new


@pytest.mark.parametrize("batch_size", [1, 2, 8])
def test_responses_are_the_targets_greedy_text(target, prompts, batch_size):
    found = respond(target, prompts, RespondSettings(max_new_tokens=24, batch_size=batch_size))
    assert [response.prompt_id for response in found] == [10, 11, 12, 13, 14]
    for prompt, response in zip(prompts, found, strict=True):
        assert response.prompt == prompt.tokens
        assert response.answer == greedy(target, prompt.tokens, 24, eos=7)


def test_responses_ignore_the_models_sampling_settings(target, prompts):
    settings = RespondSettings(max_new_tokens=24)
    before = respond(target, prompts[:1], settings)
    target.generation_config.repetition_penalty = 5.0
    try:
        assert respond(target, prompts[:1], settings) == before
    finally:
        target.generation_config.repetition_penalty = None


def test_samples_are_fixed_by_the_seed_and_leave_the_random_state_alone(target, prompts):
    prefixes = [prompt.tokens for prompt in prompts]

    def sample(seed: int, temperature: float = 1.0) -> dict[int, list[int]]:
        return dict(complete(target, prefixes, 12, batch_size=2, temperature=temperature, seed=seed))

    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    first = sample(1)
    assert torch.equal(torch.rand(3), expected)
    assert sample(1) == first
    assert sample(2) != first
    assert sample(1, temperature=1e-4) == sample(1, temperature=0.0)
    with pytest.raises(ValueError, match="temperature is -1"):
        sample(1, temperature=-1)


def test_samples_follow_the_models_whole_distribution(target, prompts):
    tokens = prompts[0].tokens
    logits = target(torch.tensor([tokens])).logits[0, -1]
    expected = (logits / 2.0).softmax(-1)
    drawn = [new[0] for _, new in complete(target, [tokens] * 4000, 1, batch_size=4000, temperature=2.0)]
    found = torch.bincount(torch.tensor(drawn), minlength=VOCAB_SIZE) / len(drawn)
    assert (found - expected).abs().max() < 0.03
    assert len(set(drawn)) > 60  # no top-k
