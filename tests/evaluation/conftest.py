"""The embedded pair, read once per session."""

import pytest
import torch
from comparing import SETTINGS
from transformers import AutoModelForCausalLM, AutoTokenizer

from hf_selfjudge.evaluation import providers
from hf_selfjudge.evaluation.compare import compare
from hf_selfjudge.evaluation.page import report
from hf_selfjudge.playground import ASSETS


@pytest.fixture(scope="session")
def embedded():
    """The embedded (target, draft, tokenizer)."""
    target, draft = (
        AutoModelForCausalLM.from_pretrained(ASSETS / name, dtype=torch.float32).eval() for name in ("target", "draft")
    )
    return target, draft, AutoTokenizer.from_pretrained(ASSETS / "target")


@pytest.fixture(scope="session", autouse=True)
def brief():
    """A provider of short tasks beside the package's own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(providers.PROVIDERS, "brief", "brief_tasks")
        yield


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    """Folder, results and files of one small comparison."""
    out = tmp_path_factory.mktemp("compare") / "new"
    results = compare(SETTINGS, out, progress=False)
    return out, results, report(results, out)
