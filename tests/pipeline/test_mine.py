"""Mismatches and the draft's continuations against cache-free, one-text-at-a-time forwards."""

import pytest
import torch
from tiny import VOCAB_SIZE, build_draft, build_model

from hf_selfjudge.pipeline.mine import mine
from hf_selfjudge.pipeline.records import Mismatches, Response
from hf_selfjudge.pipeline.settings import MineSettings

FAMILIES = ("llama", "qwen2", "qwen3", "mistral", "gemma2", "gemma3")


def draw(count: int, seed: int) -> list[int]:
    return torch.randint(3, VOCAB_SIZE, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


def greedy(model, ids: list[int], count: int) -> list[int]:
    """Cache-free greedy decoding."""
    new: list[int] = []
    while len(new) < count:
        new.append(int(model(torch.tensor([ids + new])).logits[0, -1].argmax()))
    return new


def answers(model, lengths=((4, 6), (11, 9), (7, 1), (2, 0), (5, 8))) -> list[Response]:
    """The model's own text after prompts of unequal length; one answer has a single token, one none."""
    prompts = [draw(length, seed) for seed, (length, _) in enumerate(lengths)]
    return [
        Response(10 - i, p, greedy(model, p, n)) for i, (p, (_, n)) in enumerate(zip(prompts, lengths, strict=True))
    ]


def expected(draft, responses, alternatives: int, look_ahead: int, ends: tuple[int, ...]) -> list[tuple]:
    """(prompt, position, target's token, draft's token, rank, log q, continuation), in order."""
    rows = []
    for response in sorted(responses, key=lambda response: response.prompt_id):
        for position, token in enumerate(response.answer):
            text = response.prompt + response.answer[:position]
            log_q = draft(torch.tensor([text])).logits[0, -1].float().log_softmax(-1)
            order = [int(t) for t in log_q.argsort(descending=True)]
            if order[0] == token:
                continue
            others = [t for t in order if t != token][:alternatives]
            for rank, z in enumerate(others):
                goes_on = greedy(draft, [*text, z], look_ahead)
                stop = next((at for at, t in enumerate([z, *goes_on]) if t in ends), look_ahead)
                goes_on = goes_on[:stop] + [-1] * (look_ahead - stop)
                rows.append((response.prompt_id, position, token, z, rank, float(log_q[z]), goes_on))
    return rows


def rows_of(found: Mismatches) -> list[tuple]:
    columns = [column.tolist() for column in found.columns.values()]
    return list(zip(*columns, strict=True))


def compare(found: Mismatches, rows: list[tuple]) -> None:
    got = rows_of(found)
    assert [(*row[:5], row[6]) for row in got] == [(*row[:5], row[6]) for row in rows]
    assert [row[5] for row in got] == pytest.approx([row[5] for row in rows], abs=1e-4)


@pytest.mark.parametrize(
    ("family", "alternatives", "look_ahead", "batch_size"),
    [*((family, 3, 2, 2) for family in FAMILIES), ("llama", 1, 4, 16), ("mistral", 2, 0, 3)],
)
def test_mismatches_equal_single_forwards(family, alternatives, look_ahead, batch_size):
    target = build_model(family)
    draft, responses = build_draft(target, noise=0.15), answers(target)
    found = mine(draft, responses, MineSettings(alternatives, look_ahead, batch_size))
    rows = expected(draft, responses, alternatives, look_ahead, ())
    assert len(rows) > 4 * alternatives
    compare(found, rows)
    assert found.continuations.shape == (len(rows), look_ahead)


def test_a_continuation_ends_with_an_end_token():
    target = build_model("llama")
    draft, responses = build_draft(target, noise=0.15), answers(target)
    plain = mine(draft, responses, MineSettings(look_ahead=4))
    # tokens that the draft says itself: as its own choice, early and late in a continuation
    ends = (int(plain.draft_tokens[1]), int(plain.continuations[0, 1]), int(plain.continuations[2, 3]))
    found = mine(draft, responses, MineSettings(look_ahead=4), ends)
    compare(found, expected(draft, responses, 1, 4, ends))
    lengths = set((found.continuations >= 0).sum(1).tolist())
    assert {0, 4} < lengths  # z ends the text, nothing does, and something in between


@pytest.mark.parametrize("size", [VOCAB_SIZE - 9, VOCAB_SIZE + 9])
def test_another_padding_of_the_vocabulary(size):
    """The draft has fewer or more tokens than the target: it never says one that the target lacks."""
    draft = build_model("llama", seed=4, vocab_size=size)
    responses = [Response(0, draw(5, 0), draw(12, 1)), Response(1, draw(3, 2), [*draw(4, 3), VOCAB_SIZE - 1])]
    found = mine(draft, responses, MineSettings(alternatives=2, look_ahead=2), vocab_size=VOCAB_SIZE)

    class Fitted:
        def __call__(self, ids):
            output = draft(ids.clamp(max=size - 1))
            output.logits = torch.nn.functional.pad(output.logits, (0, VOCAB_SIZE - size), value=float("-inf"))
            return output

    compare(found, expected(Fitted(), responses, 2, 2, ()))
    assert found.draft_tokens.max() < min(size, VOCAB_SIZE)


def test_a_tie_is_broken_as_in_decoding():
    """Of equally likely tokens argmax takes the first."""
    draft = build_model("llama")
    draft.lm_head.weight.zero_()
    found = mine(draft, [Response(0, [5, 6], [7, 0, 1])], MineSettings(alternatives=2, look_ahead=1))
    assert found.positions.tolist() == [0, 0, 2, 2]
    assert found.draft_tokens.tolist() == [0, 1, 0, 2]
    assert found.continuations.flatten().tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize("look_ahead", [0, 4])
def test_nothing_to_mine(look_ahead):
    draft = build_model("llama")
    for responses in ([], [Response(0, [5], [])], [Response(0, [5, 6], greedy(draft, [5, 6], 4))]):
        found = mine(draft, responses, MineSettings(look_ahead=look_ahead))
        assert len(found) == 0
        assert found.continuations.shape == (0, look_ahead)


def test_an_empty_prompt_is_refused():
    with pytest.raises(ValueError, match="no tokens"):
        mine(build_model("llama"), [Response(3, [], [5])], MineSettings())


@pytest.mark.parametrize("family", ["lfm2", "bloom", "llama4"])
def test_models_that_cannot_branch_are_refused(family):
    model = build_model(family)
    with pytest.raises(ValueError, match="branches"):
        mine(model, [Response(0, [5, 6], [7, 8])], MineSettings())


@pytest.mark.parametrize("family", FAMILIES)
def test_going_on_with_static_caches_gives_the_same(monkeypatch, family):
    target = build_model(family)
    draft = build_draft(target, 0.2)
    responses = answers(target)
    settings = MineSettings(alternatives=2, look_ahead=5, mine_batch_size=2)
    expected_rows = mine(draft, responses, settings)
    ends = (int(expected_rows.continuations[0, 1]), int(expected_rows.draft_tokens[2]))  # some end at once, some later
    slow = mine(draft, responses, settings, ends)
    monkeypatch.setattr("hf_selfjudge.pipeline.mine.is_fast", lambda model: True)
    fast = mine(draft, responses, settings, ends)
    assert rows_of(fast) == rows_of(slow)
    assert bool((fast.continuations == -1).any())
