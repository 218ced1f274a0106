"""Fixtures of the vLLM tests. What tests import by name is in vllm_engines: other folders have a conftest too."""

from vllm_engines import (  # noqa: F401
    draft_folder,
    embedded,
    guarded,
    hf_loop,
    hidden_judge,
    idle,
    judged,
    ngram,
    prompts,
    pytest_collection_modifyitems,
    stock,
)
