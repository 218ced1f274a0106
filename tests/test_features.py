"""Each feature against a plain float64 computation, one position at a time."""

from collections import Counter

import numpy as np
import pytest
import reference
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from hf_selfjudge.config import (
    AHEAD_FEATURES,
    DRAFT_FEATURES,
    FEATURES,
    LOOK_AHEAD_FEATURES,
    SCALAR_FEATURES,
    VECTOR_FEATURES,
    JudgeConfig,
)
from hf_selfjudge.features import _FEATURES, AHEAD, LOG_FLOOR, Block, judge_features
from hf_selfjudge.rules import NeverRelax, ProbabilityFloor

BATCH, GAMMA, VOCAB, WIDTH = 3, 7, 17, 6


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
    """A row of a block as the reference sees it: without the filling behind it."""
    count = GAMMA if block.lengths is None else int(block.lengths[row])
    logits, draft = block.target_logits[row, : count + 1].numpy(), block.draft_logits[row, :count].numpy()
    return reference.View(
        block.draft_tokens[row, :count].tolist(),
        list(logits),
        list(block.hidden[row].numpy()),
        list(draft),
        list(logits),
        draft,
    )


def test_every_configurable_feature_is_implemented():
    assert set(_FEATURES) == set(FEATURES) == {*VECTOR_FEATURES, *SCALAR_FEATURES, *AHEAD_FEATURES}
    assert len(set(FEATURES)) == len(FEATURES)
    assert set(FEATURES) > DRAFT_FEATURES | LOOK_AHEAD_FEATURES


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


def agreeable_block(**changes):
    """A block in which the target agrees with every drafted token but the last but one."""
    block = random_block(**changes)
    agrees = torch.arange(GAMMA) != GAMMA - 2
    tokens = torch.where(agrees, block.target_logits[:, :-1].argmax(-1), block.draft_tokens)
    return random_block(**(changes | {"draft_tokens": tokens}))


def test_look_ahead_respects_the_length_of_each_row():
    lengths = torch.tensor([GAMMA, 3, 1])
    block = agreeable_block(lengths=lengths)
    found = judge_features(block, FEATURES)
    matches = set()
    for row in range(BATCH):
        for j in range(int(lengths[row])):
            expected = reference.features(view_of(block, row), j, FEATURES)
            np.testing.assert_allclose(found[row, j].numpy(), expected, rtol=2e-5, atol=2e-5)
            matches.add(expected[FEATURES.index("ahead_matches") - len(FEATURES)])
    assert matches == set(range(AHEAD + 1))  # none, some and all have been compared


def test_the_filling_behind_a_row_cannot_be_seen():
    lengths = torch.tensor([5, 3, 1])
    block = agreeable_block(lengths=lengths)
    filling = torch.arange(GAMMA)[None] >= lengths[:, None]
    behind = (
        torch.arange(GAMMA + 1)[None] > lengths[:, None]
    )  # the row after the last drafted token is the bonus token's
    changed = random_block(
        lengths=lengths,
        draft_tokens=torch.where(filling, 0, block.draft_tokens),
        target_logits=torch.where(behind[..., None], float("nan"), block.target_logits),
        hidden=torch.where(behind[..., None], float("nan"), block.hidden),
    )
    names = tuple(LOOK_AHEAD_FEATURES)
    found, expected = judge_features(changed, names), judge_features(block, names)
    assert torch.equal(found[~filling], expected[~filling])


@pytest.mark.parametrize("known", range(AHEAD + 2))
def test_a_cut_block_has_the_same_columns(known):
    """What scoring builds (the token and what is known behind it) against the whole block, bit for bit."""
    block, at = agreeable_block(), 1
    end = at + 1 + known
    whole = judge_features(Block(**(vars(block) | {"lengths": torch.full((BATCH,), end)})), FEATURES)[:, at]
    cut = Block(
        block.draft_tokens[:, at:end],
        block.target_logits[:, at : end + 1],
        block.hidden[:, at : end + 1],
        block.draft_logits[:, at:end],
    )
    assert torch.equal(judge_features(cut, FEATURES)[:, 0], whole)


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
    assert found[..., 3 * WIDTH].min() >= LOG_FLOOR  # log_p


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


class Counted(TorchDispatchMode):
    """Counts the operations that run inside it."""

    def __init__(self):
        super().__init__()
        self.names = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names[func.overloadpacket.__name__] += 1
        return func(*args, **(kwargs or {}))


def test_a_judge_beside_a_guarded_floor_takes_few_operations():
    """On a GPU each of them is a launch, of which a block of a few milliseconds has not many to spare."""
    block, rule = random_block(), NeverRelax(ProbabilityFloor(0.1), torch.tensor([1, 2]))
    with Counted() as counted:
        judge_features(block, FEATURES)
        rule.accept(block)
    assert counted.names["_log_softmax"] == 2, "each model's whole distribution is made once"
    assert counted.names["argmax"] == 1
    assert counted.names["topk"] == 0, "slow over a vocabulary"
    assert counted.names.total() <= 95
