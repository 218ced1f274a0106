"""Each feature against a plain float64 computation, one position at a time."""

import numpy as np
import pytest
import reference
import torch

from hf_selfjudge.config import DRAFT_FEATURES, FEATURES, SCALAR_FEATURES, VECTOR_FEATURES, JudgeConfig
from hf_selfjudge.features import _FEATURES, LOG_FLOOR, Block, judge_features

BATCH, GAMMA, VOCAB, WIDTH = 3, 4, 17, 6


def random_block(scale=3.0, dtype=torch.float32, **changes):
    torch.manual_seed(4)
    values = {
        "draft_tokens": torch.randint(0, VOCAB, (BATCH, GAMMA)),
        "target_logits": torch.randn(BATCH, GAMMA + 1, VOCAB) * scale,
        "hidden": torch.randn(BATCH, GAMMA + 1, WIDTH).to(dtype),
        "draft_logits": torch.randn(BATCH, GAMMA, VOCAB) * scale,
    }
    return Block(**(values | changes))


def view_of(block, row):
    """A row of a block as the reference sees it."""
    logits, draft = block.target_logits[row].numpy(), block.draft_logits[row].numpy()
    return reference.View(
        block.draft_tokens[row].tolist(),
        list(logits),
        list(block.hidden[row].numpy()),
        list(draft),
        list(logits),
        draft,
    )


def test_every_configurable_feature_is_implemented():
    assert set(_FEATURES) == set(FEATURES) == set(VECTOR_FEATURES) | set(SCALAR_FEATURES)
    assert len(set(FEATURES)) == len(FEATURES)
    assert set(FEATURES) > DRAFT_FEATURES


@pytest.mark.parametrize("names", [*((name,) for name in FEATURES), FEATURES, FEATURES[::-1]], ids=lambda n: n[0])
@pytest.mark.parametrize("scale", [0.01, 3.0, 60.0])
def test_features_equal_a_plain_computation(names, scale):
    block = random_block(scale)
    found = judge_features(block, names)
    assert found.dtype == torch.float32
    assert found.shape == (BATCH, GAMMA, JudgeConfig(hidden_size=WIDTH, features=names).input_size)
    for row in range(BATCH):
        for j in range(GAMMA):
            expected = reference.features(view_of(block, row), j, names)
            np.testing.assert_allclose(found[row, j].numpy(), expected, rtol=2e-5, atol=2e-5)


def test_features_read_logits_not_scores():
    block = random_block()
    scores = torch.randn(BATCH, GAMMA + 1, VOCAB)
    processed = random_block(target_scores=scores, draft_scores=scores[:, 1:])
    assert torch.equal(judge_features(block, FEATURES), judge_features(processed, FEATURES))


@pytest.mark.parametrize("where", ["target", "draft", "both"])
def test_features_are_finite_with_impossible_tokens(where):
    block = random_block()
    target, draft = block.target_logits.clone(), block.draft_logits.clone()
    for logits in {"target": [target], "draft": [draft], "both": [target, draft]}[where]:
        logits[torch.rand(logits.shape) < 0.5] = float("-inf")
        logits[0, 0] = float("-inf")
        logits[0, 0, 3] = 1.0  # one token is certain
    found = judge_features(random_block(target_logits=target, draft_logits=draft), FEATURES)
    assert torch.isfinite(found).all()
    assert found[..., 2 * WIDTH].min() >= LOG_FLOOR  # log_p


def test_low_precision_states_are_read_as_float32():
    block = random_block(dtype=torch.bfloat16)
    found = judge_features(block, ("hidden",))
    assert found.dtype == torch.float32
    assert torch.equal(found, block.hidden[:, 1:].float())


@pytest.mark.parametrize("name", sorted(DRAFT_FEATURES))
def test_draft_features_need_a_draft_distribution(name):
    with pytest.raises(ValueError, match="needs the draft's logits"):
        judge_features(random_block(draft_logits=None), (name,))


def test_the_other_features_do_not():
    names = tuple(name for name in FEATURES if name not in DRAFT_FEATURES)
    with_draft, without = judge_features(random_block(), names), judge_features(random_block(draft_logits=None), names)
    assert torch.equal(with_draft, without)
