"""What counts as a decision, and which answer it belongs to."""

import pytest
import torch
from tiny import Always, build_judge

from hf_selfjudge.features import Block, judge_features
from hf_selfjudge.rules import Rule, parse_rule
from hf_selfjudge.tuning.explorer import SCALARS, Explorer

VOCAB = 8


def block(choices, tokens, lengths=None):
    """Rows in which the target chooses `choices` and the draft `tokens`; states are the place's number."""
    rows, gamma = len(tokens), len(tokens[0])
    logits = torch.randn(rows, gamma + 1, VOCAB, generator=torch.Generator().manual_seed(0))
    for row in range(rows):
        for place in range(gamma):
            logits[row, place, choices[row][place]] = 9.0
    hidden = torch.arange(gamma + 1.0)[None, :, None].expand(rows, -1, 32)
    return Block(
        torch.tensor(tokens),
        logits,
        hidden,
        logits[:, :-1] * 0.5,
        lengths=None if lengths is None else torch.tensor(lengths),
        sequences=torch.arange(rows) * 10,
    )


def lots(seed, shape):
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("seed", range(12))
def test_decisions_are_the_mismatches_up_to_the_first_refusal(seed):
    choices = [[1, 1, 1, 1], [1, 1, 1, 1]]
    tokens = [[1, 2, 1, 2], [2, 2, 1, 1]]
    explorer = Explorer(Always(True), [], 0.5, seed)
    mask = explorer.accept(block(choices, tokens))
    drawn = lots(seed, (2, 4)) < 0.5
    assert torch.equal(mask, drawn)
    expected = []
    for row in range(2):
        kept = next((at for at in range(4) if tokens[row][at] != 1 and not drawn[row, at]), 4)
        for at in range(min(kept + 1, 4)):
            if tokens[row][at] != 1:
                taken = bool(drawn[row, at])
                expected.append((row * 10, taken, kept - at - 1 if taken else 0))
    found = explorer.decisions()
    assert list(zip(found.sequences.tolist(), found.taken.tolist(), found.gains.tolist(), strict=True)) == expected


def test_lots_go_on_from_call_to_call():
    asked = block([[1] * 4] * 2, [[2] * 4] * 2)
    explorer = Explorer(Always(True), [], 0.5, 3)
    masks = [explorer.to(torch.device("cpu")).accept(asked) for _ in range(3)]
    assert not torch.equal(masks[0], masks[1]) or not torch.equal(masks[1], masks[2])
    assert torch.equal(torch.cat(masks), lots(3, (6, 4)) < 0.5)


def test_what_the_rule_refuses_or_nobody_drafted_is_no_decision():
    explorer = Explorer(parse_rule("topk:1"), [], 0.5, 0)
    explorer.accept(block([[1, 1]], [[2, 2]]))
    assert len(explorer.decisions()) == 0
    explorer = Explorer(Always(True), [], 0.999, 0)
    explorer.accept(block([[1, 1, 1]], [[1, 2, 2]], lengths=[2]))
    assert explorer.decisions().gains.tolist() == [0]


def test_inputs_are_the_judges_log_odds_and_the_scalars():
    judge = build_judge()
    explorer, seen = Explorer(Always(True), [judge], 0.999, 1), block([[1, 1]], [[2, 1]])
    explorer.accept(seen)
    (inputs,) = explorer.decisions().inputs
    assert torch.sigmoid(inputs[0]) == pytest.approx(float(judge(seen)[0, 0]), abs=1e-6)
    assert torch.allclose(inputs[1:], judge_features(seen, SCALARS)[0, 0])


class Counting(Rule):
    """Accepts nothing; counts the drafted tokens of every sequence."""

    def __init__(self):
        self.drafted = {}

    def accept(self, block):
        for sequence, count in zip(block.sequences.tolist(), block.drafted.sum(1).tolist(), strict=True):
            self.drafted[sequence] = self.drafted.get(sequence, 0) + count
        return torch.zeros_like(block.draft_tokens, dtype=torch.bool)


def test_rows_keep_their_number_when_others_have_left(loose_pairs):
    pair = loose_pairs["llama"]
    prompts = torch.randint(2, 100, (6, 5), generator=torch.Generator().manual_seed(3))
    plain = pair.plain(prompts, 24)[:, 5:]
    end = int(plain[2, 3])  # ends one sequence early, and others wherever they say it
    rule = Counting()
    out = pair.judged(prompts, rule, 24, gamma=4, eos_token_id=end)
    rows = out.judge_stats.rows
    assert len({stats.new_tokens for stats in rows}) > 1
    assert rule.drafted == {index: stats.drafted for index, stats in enumerate(rows)}


@pytest.mark.parametrize("spec", ["floor:0.0001", "topk:5"])
def test_rules_by_place_are_asked_at_mismatches_only(spec):
    seen = block([[1, 1, 1, 1]] * 5, [[2, 1, 3, 2], [1, 1, 1, 1], [3, 3, 3, 3], [1, 4, 4, 1], [1, 1, 1, 5]])
    by_place, whole = (Explorer(parse_rule(spec), [build_judge()], 0.7, 4) for _ in range(2))
    whole._rule = Whole(parse_rule(spec))
    mismatch = seen.draft_tokens != seen.target_choice
    assert torch.equal(by_place.accept(seen) & mismatch, whole.accept(seen) & mismatch)
    for name in ("sequences", "taken", "gains", "inputs"):
        assert torch.equal(getattr(by_place.decisions(), name), getattr(whole.decisions(), name))
    assert len(by_place.decisions()) > 3


class Whole(Rule):
    """A rule that is asked about whole blocks."""

    def __init__(self, rule):
        self.rule = rule

    def accept(self, block):
        return self.rule.accept(block)
