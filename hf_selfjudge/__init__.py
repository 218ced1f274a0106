"""Judge decoding for Hugging Face transformers: speculative decoding that also accepts drafts which keep the meaning.

Importing this package teaches `model.generate` the keyword `judge=` (see `decoding.hook`; `uninstall()` takes it back).
Everything else is loaded on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from .decoding.hook import install, uninstall

if TYPE_CHECKING:
    from .config import JudgeConfig, ModelReference
    from .decoding.judge_decoding import JudgeDecoding
    from .decoding.rendering import render_response
    from .decoding.statistics import JudgeStats
    from .features import Block
    from .judge import SelfJudgeVerifier
    from .rules import never_relax

__version__ = "0.1.0"

_LAZY = {
    "Block": "features",
    "JudgeConfig": "config",
    "JudgeDecoding": "decoding.judge_decoding",
    "JudgeStats": "decoding.statistics",
    "ModelReference": "config",
    "SelfJudgeVerifier": "judge",
    "never_relax": "rules",
    "render_response": "decoding.rendering",
}

__all__ = [
    "Block",
    "JudgeConfig",
    "JudgeDecoding",
    "JudgeStats",
    "ModelReference",
    "SelfJudgeVerifier",
    "install",
    "never_relax",
    "render_response",
    "uninstall",
]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(importlib.import_module(f".{_LAZY[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)


install()
