"""Plain decoding on static caches writes what transformers' generate writes, with and without shared beginnings."""

from __future__ import annotations

import pytest
import torch

from hf_selfjudge.decoding.continuation import Trunks, continue_texts
from tests.tiny import FAMILIES, build_model, prompts

ROOM = 21


def plain(model, text, room, ends=()):
    """The reference: one text at a time, no static cache."""
    ids = torch.tensor([text])
    out = model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=room, do_sample=False)
    new = out[0, len(text) :].tolist()
    for place, token in enumerate(new):
        if token in ends:
            return new[: place + 1]
    return new


def texts(count, seed=0):
    return [prompt[0].tolist() for prompt in prompts(count, seed=seed)]


@pytest.mark.parametrize("family", FAMILIES)
def test_equals_generate(family):
    model, given = build_model(family), texts(7)
    expected = [plain(model, text, ROOM) for text in given]
    ends = [expected[2][4], expected[5][11]]  # some texts end early, in the middle of a look
    expected = [plain(model, text, ROOM, ends) for text in given]
    assert len({len(answer) for answer in expected}) > 1
    for rows in (1, 3, 16):
        assert continue_texts(model, given, [ROOM] * 7, ends, rows) == expected


def test_rooms_are_kept():
    model, given = build_model("llama"), texts(5)
    rooms = [0, 1, 8, 9, 17]
    found = continue_texts(model, given, rooms, [], 3)
    assert found == [plain(model, text, room) if room else [] for text, room in zip(given, rooms, strict=True)]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("rows", [2, 16])
def test_shared_beginnings(family, rows):
    model = build_model(family)
    trunks = [text + plain(model, text, 12) for text in texts(3, seed=4)]
    branches, of = [], []
    for number, trunk in enumerate(trunks):
        for cut in (1, len(trunk) // 2, len(trunk) - 1):
            branches.append([*trunk[:cut], (trunk[cut] + 1) % 90])
            of.append(number)
        branches.append(list(trunk))  # all of it is shared
        branches.append([*trunk, 5, 6, 7])  # longer than the trunk
        of += [number, number]
    rooms = [4 + at % 9 for at in range(len(branches))]
    expected = [plain(model, text, room) for text, room in zip(branches, rooms, strict=True)]
    assert continue_texts(model, branches, rooms, [], rows, Trunks(trunks, of)) == expected


def test_samples_follow_the_distribution_and_the_seed():
    model, text = build_model("llama"), texts(1)[0]
    given = [text] * 4000

    def first(seed):
        return [answer[0] for answer in continue_texts(model, given, [1] * 4000, [], 4000, temperature=0.7, seed=seed)]

    found = first(3)
    assert found == first(3) != first(4)
    logits = model(input_ids=torch.tensor([text])).logits[0, -1].float()
    p = (logits / 0.7).softmax(-1)
    counts = torch.bincount(torch.tensor(found), minlength=len(p)).float()
    common = p * 4000 >= 5
    statistic = ((counts - 4000 * p).square() / (4000 * p))[common].sum()
    degrees = int(common.sum())
    assert statistic < degrees + 5 * (2 * degrees) ** 0.5  # five standard deviations of chi-square
    wrong = logits.softmax(-1)  # temperature 1 must be told apart
    assert ((counts - 4000 * wrong).square() / (4000 * wrong))[wrong * 4000 >= 5].sum() > 2 * statistic


def test_nothing_to_write():
    assert continue_texts(build_model("llama"), [], [], []) == []
