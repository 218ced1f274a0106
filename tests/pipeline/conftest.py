"""Tokenizers for prompts, and one finished build of a tiny pair."""

import shutil

import pytest
from building import save_pair, tiny_settings, write_prompts
from tiny import build_tokenizer
from transformers import AutoTokenizer

from hf_selfjudge.pipeline.build import build
from hf_selfjudge.pipeline.models import Pair
from hf_selfjudge.playground import ASSETS

CHAT_TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}[{{ m['role'] }}]{{ m['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(ASSETS / "target")


@pytest.fixture(scope="module")
def plain_tokenizer():
    return build_tokenizer()


@pytest.fixture(scope="module")
def chat_tokenizer():
    tokenizer = build_tokenizer()
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


@pytest.fixture(scope="session")
def pair(tmp_path_factory):
    return save_pair(tmp_path_factory.mktemp("pair"))


@pytest.fixture(scope="session")
def prompts(tmp_path_factory):
    return write_prompts(tmp_path_factory.mktemp("prompts") / "my.jsonl")


@pytest.fixture(scope="session")
def settings(pair, prompts):
    return tiny_settings(pair, prompts)


@pytest.fixture(scope="session")
def plain(settings, tmp_path_factory):
    """A build without interruption."""
    out = tmp_path_factory.mktemp("plain") / "judge"
    build(settings, out)
    return out


@pytest.fixture
def copied(plain, tmp_path):
    """A finished build to damage."""
    return shutil.copytree(plain, tmp_path / "judge")


@pytest.fixture
def no_models(monkeypatch):
    def load(self, role):
        raise AssertionError(f"the {role} was loaded")

    monkeypatch.setattr(Pair, "_load", load)
