"""How far the target comes back to its own text, against a slow loop and hand-made texts."""

import pytest
import torch
from tiny import VOCAB_SIZE, build_model

from hf_selfjudge.pipeline import rejoin as module
from hf_selfjudge.pipeline.records import Mismatches, Response, Substitutions
from hf_selfjudge.pipeline.rejoin import NOTHING, longest_common, rejoin, similarity
from hf_selfjudge.pipeline.settings import MineSettings

EOS = 7
LENGTHS = (0, 3, 8)
DIGITS = set(range(40, 60))


class Tokens:
    """A tokenizer in which some ids are digits."""

    def __len__(self):
        return VOCAB_SIZE

    def batch_decode(self, rows):
        return [str(row[0] % 10) if row[0] in DIGITS else "word" for row in rows]


def slow_common(a, b):
    """The textbook's table."""
    table = [[0] * (len(b) + 1) for _ in range(len(a) + 1)]
    for i, x in enumerate(a):
        for j, y in enumerate(b):
            table[i + 1][j + 1] = table[i][j] + 1 if x == y else max(table[i][j + 1], table[i + 1][j])
    return table


def slow_score(new, old, length):
    new, old = new[: length + 1], old[: length + 1]
    ratio = 2 * slow_common(new, old)[-1][-1] / (len(new) + len(old))
    a, b = ([token for token in text if token in DIGITS] for text in (new, old))
    shorter = min(len(a), len(b))
    return ratio if a[:shorter] == b[:shorter] else ratio - 1


def greedy(model, ids, count):
    new = []
    while len(new) < count and EOS not in new[-1:]:
        new.append(int(model(torch.tensor([ids + new])).logits[0, -1].argmax()))
    return new


def test_longest_common_subsequence():
    torch.manual_seed(0)
    a, b = torch.randint(0, 4, (40, 7)), torch.randint(0, 4, (40, 9))
    found = longest_common(a, b)
    for row in range(40):
        assert found[row].tolist() == slow_common(a[row].tolist(), b[row].tolist())
    filled = torch.full((1, 3), NOTHING)
    assert int(longest_common(filled, filled).max()) == 0  # what fills up is not shared


@pytest.mark.parametrize(
    ("new", "old", "expected"),
    [
        ([1, 2, 3, 4], [1, 2, 3, 4], 1.0),
        ([9, 2, 3, 4], [1, 2, 3, 4], 0.75),  # another token, the same text after it
        ([9, 8, 1, 2], [1, 2, 3, 4], 0.5),  # two words more
        ([41, 2, 3, 4], [42, 2, 3, 4], -0.25),  # another digit
        ([1, 2, 3, 4], [1, 2, 3, 42], 0.75),  # a digit that may still come
        ([42, 2], [42, 2, 41, 3], 4 / 6),
        ([41, 42, 3], [42, 41, 3], 4 / 6 - 1),  # the same digits in another order
    ],
)
def test_similarity(new, old, expected):
    width = max(len(new), len(old))
    rows = [torch.tensor([text + [NOTHING] * (width - len(text))]) for text in (new, old)]
    assert similarity(*rows, [3], torch.tensor(sorted(DIGITS))).item() == pytest.approx(expected)


@pytest.mark.parametrize("fast", [False, True])
@pytest.mark.parametrize("follow", [0, 2])
def test_equals_a_slow_loop(monkeypatch, fast, follow):
    monkeypatch.setattr(module, "is_fast", lambda model: fast)
    model = build_model("llama")
    model.generation_config.eos_token_id = EOS
    generator = torch.Generator().manual_seed(1)
    responses = []
    for prompt_id, length in enumerate((4, 9, 6)):
        prompt = torch.randint(10, VOCAB_SIZE, (length,), generator=generator).tolist()
        answer = greedy(model, prompt, 14)
        responses.append(Response(prompt_id, prompt, answer if prompt_id == 1 else [*answer, EOS]))
    entries = [(0, 0, 50), (0, 5, 61), (0, 12, 70), (0, 14, 33), (1, 3, 45), (1, 13, 62), (2, 2, EOS), (2, 9, 20)]
    owners, positions, tokens = (torch.tensor(column) for column in zip(*entries, strict=True))
    behind = torch.randint(10, VOCAB_SIZE, (len(entries), 3), generator=generator)
    behind[3, 1:] = -1
    behind[3, 0] = EOS
    behind[6] = -1
    table = Mismatches(owners, positions, 0 * tokens, tokens, 0 * tokens, torch.zeros(len(entries)), behind)
    found = rejoin(model, Tokens(), responses, table, LENGTHS, 3, follow)
    assert found.shape == (len(entries), len(LENGTHS))
    for row, (owner, position, token) in enumerate(entries):
        response = responses[owner]
        new = [token, *(t for t in behind[row, :follow].tolist() if t >= 0)]
        if new[-1] != EOS:
            start = response.prompt + response.answer[:position] + new
            new += greedy(model, start, max(LENGTHS) + 1 - len(new))
        old = response.answer[position : position + max(LENGTHS) + 1]
        if old[-1] != EOS:
            new = new[: len(old)]
        expected = [slow_score(new, old, length) for length in LENGTHS]
        assert found[row].tolist() == pytest.approx(expected)


def test_a_score_that_was_not_made_is_refused():
    nothing = torch.empty((0, 1))
    empty = torch.empty(0, dtype=torch.long)
    rows = Substitutions(empty, empty, empty, empty, empty, torch.empty(0), nothing, nothing, nothing, lengths=(5,))
    with pytest.raises(ValueError, match="score with rejoin=True"):
        rows.score(5, "rejoin")
    assert ("rejoin" in {suffix for _, suffix, _ in rows.variants}) is False


def test_no_more_follows_than_is_known():
    with pytest.raises(ValueError, match="an int up to look_ahead, 4"):
        MineSettings(follow=5)
