"""The module that turns hidden states into logits, and the states it reads: what a judge sees."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor, nn
from transformers import PreTrainedModel


def output_head(model: PreTrainedModel) -> nn.Module:
    """The output embeddings of a causal LM."""
    head = model.get_output_embeddings()
    if head is None:
        raise ValueError(
            f"{type(model).__name__} has no output embeddings; judge decoding needs a causal language model."
        )
    return head


def head_width(model: PreTrainedModel) -> int:
    """The size of the hidden states that the output head reads."""
    weight = output_head(model).weight
    return int(weight.shape[-1])  # type: ignore[index]


@contextmanager
def head_inputs(model: PreTrainedModel, positions: Tensor | None = None) -> Iterator[list[Tensor]]:
    """Catch what the output head reads during the body: the very tensor the logits are made of.

    Cheaper than asking for all hidden states, and right for every model that calls its output embeddings.

    With `positions` (indices into the flattened batch and sequence) the head reads only those, and the model's logits
    are (1, positions, vocab), with whatever scaling or capping the model applies; all states are caught as ever.
    """
    caught: list[Tensor] = []

    def catch(module: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
        caught.append(args[0])
        if positions is None:
            return None
        return (args[0].flatten(0, 1)[positions.to(args[0].device)][None], *args[1:])

    hook = output_head(model).register_forward_pre_hook(catch)
    try:
        yield caught
    finally:
        hook.remove()
    if not caught:
        raise RuntimeError(
            f"{type(model).__name__} computed logits without calling its output embeddings, so the judge's hidden "
            "states cannot be had. Turn off whatever replaces the lm_head (a fused kernel, an adapter)."
        )
