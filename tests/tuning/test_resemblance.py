"""Against the textbook recursion on single pairs."""

import random
from functools import cache

import pytest

from hf_selfjudge.tuning.resemblance import resemblance


def slow(a, b):
    @cache
    def common(i, j):
        if not i or not j:
            return 0
        if a[i - 1] == b[j - 1]:
            return common(i - 1, j - 1) + 1
        return max(common(i - 1, j), common(i, j - 1))

    return 2 * common(len(a), len(b)) / (len(a) + len(b)) if a or b else 1.0


def test_many_pairs_of_all_sizes():
    rng = random.Random(0)
    texts = [[rng.randrange(6) for _ in range(rng.randrange(30))] for _ in range(700)]
    new, old = texts[:350], texts[350:]
    assert resemblance(new, old).tolist() == pytest.approx([slow(a, b) for a, b in zip(new, old, strict=True)])


def test_equal_different_and_empty_texts():
    assert resemblance([[1, 2, 3], [1, 2], [], []], [[1, 2, 3], [3, 4], [1], []]).tolist() == [1.0, 0.0, 0.0, 1.0]
    assert resemblance([], []).tolist() == []
