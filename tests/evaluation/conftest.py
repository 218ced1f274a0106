"""The embedded pair, read once per session."""

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from hf_selfjudge.playground import ASSETS


@pytest.fixture(scope="session")
def embedded():
    """The embedded (target, draft, tokenizer)."""
    target, draft = (
        AutoModelForCausalLM.from_pretrained(ASSETS / name, dtype=torch.float32).eval() for name in ("target", "draft")
    )
    return target, draft, AutoTokenizer.from_pretrained(ASSETS / "target")
