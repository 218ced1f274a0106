"""The embedded draft as vLLM's CPU attention can read it."""

from hf_selfjudge.playground.wide_heads import HEAD_DIM, widened

__all__ = ["HEAD_DIM", "widened"]
