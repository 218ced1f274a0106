"""Tiny pairs, judges and plain outputs, built once per session."""

import os

os.environ["HF_HUB_OFFLINE"] = "1"

import pytest
import torch
from reference import Reference
from tiny import build_draft, build_model, build_tokenizer

import hf_selfjudge  # noqa: F401  (teaches generate the keyword judge=)

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


class Pair:
    """A target, its draft, the slow reference of the two, and the target's plain greedy outputs."""

    def __init__(self, family: str, noise: float = 0.03) -> None:
        self.target = build_model(family)
        self.draft = build_draft(self.target, noise)
        self.reference = Reference(self.target, self.draft)
        self._plain: dict[tuple, torch.Tensor] = {}

    def plain(self, prompt: torch.Tensor, max_new_tokens: int, **kwargs) -> torch.Tensor:
        """What the target alone generates; remembered where only the prompt and the length matter."""
        if kwargs:
            return self.target.generate(prompt, do_sample=False, max_new_tokens=max_new_tokens, **mask(prompt, kwargs))
        key = (tuple(prompt[0].tolist()), max_new_tokens)
        if key not in self._plain:
            self._plain[key] = self.target.generate(
                prompt, do_sample=False, max_new_tokens=max_new_tokens, **mask(prompt, {})
            )
        return self._plain[key]

    def judged(self, prompt: torch.Tensor, judge, max_new_tokens: int, gamma: int = 5, **kwargs):
        """Judge decoding with this pair; the output with its statistics."""
        return self.target.generate(
            prompt,
            assistant_model=self.draft,
            judge=judge,
            max_new_tokens=max_new_tokens,
            num_assistant_tokens=gamma,
            return_dict_in_generate=True,
            **mask(prompt, {"do_sample": False, **kwargs}),
        )


def mask(prompt: torch.Tensor, kwargs: dict) -> dict:
    return {"attention_mask": torch.ones_like(prompt), **kwargs}


class Pairs(dict):
    """Pairs by family, each built on first use."""

    def __init__(self, noise: float) -> None:
        self._noise = noise

    def __missing__(self, family: str) -> Pair:
        self[family] = Pair(family, self._noise)
        return self[family]


@pytest.fixture(scope="session")
def pairs() -> Pairs:
    """Pairs that agree on about half of the tokens."""
    return Pairs(0.03)


@pytest.fixture(scope="session")
def loose_pairs() -> Pairs:
    """Pairs with more mismatches than matches: work for a rule."""
    return Pairs(0.1)


@pytest.fixture(scope="session")
def pair(pairs) -> Pair:
    return pairs["llama"]


@pytest.fixture(scope="session")
def tokenizer():
    return build_tokenizer()
