"""The target model during one call: verification forwards, the lm_head's input, and a cache that can be cut back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.generation.candidate_generator import (
    _prepare_attention_mask,
    _prepare_position_ids,
    _prepare_token_type_ids,
)


@dataclass(frozen=True)
class Verification:
    """One forward over [x_t, d_1 .. d_gamma]."""

    logits: Tensor  # (1, gamma + 1, vocab) float32
    hidden: Tensor  # (1, gamma + 1, hidden_size)


class Target:
    """Runs the target through transformers' own generation protocol, so that any causal LM works.

    The hidden states are caught at the lm_head's input: the very tensor the logits are made of, without asking the
    model to keep every layer's states.
    """

    def __init__(self, model: PreTrainedModel, model_kwargs: dict[str, Any], overrides: dict[str, Any]) -> None:
        self.model = model
        self.model_kwargs = model_kwargs
        self.outputs: Any = None
        self._overrides = overrides
        self._first = True
        self._head_input: Tensor | None = None
        self._hook = output_head(model).register_forward_pre_hook(self._catch)
        model_kwargs["past_key_values"].activate_past_recording()

    def forward(self, input_ids: Tensor, draft_tokens: Tensor) -> Verification:
        """Read the tokens not in the cache and the drafted ones."""
        gamma = draft_tokens.shape[1]
        candidates = torch.cat([input_ids, draft_tokens], dim=1)
        inputs = self.model.prepare_inputs_for_generation(
            candidates,
            next_sequence_length=None if self._first else gamma + 1,
            is_first_iteration=self._first,
            **self._extended_kwargs(candidates.shape[1], gamma),
        )
        if "logits_to_keep" in inputs:
            inputs["logits_to_keep"] = gamma + 1
        self._head_input = None
        self.outputs = self.model(**{**inputs, **self._overrides})
        if self._head_input is None:
            raise RuntimeError(
                f"{type(self.model).__name__} computed logits without calling its output embeddings, so the judge's "
                "hidden states cannot be had. Turn off whatever replaces the lm_head (a fused kernel, an adapter)."
            )
        self._first = False
        device = input_ids.device
        return Verification(
            self.outputs.logits[:, -(gamma + 1) :].to(device=device, dtype=torch.float32),
            self._head_input[:, -(gamma + 1) :].to(device),
        )

    def keep(self, new_tokens: int, drafted: int) -> None:
        """Keep `new_tokens` of the last forward: the cache forgets the drafts behind them."""
        self.outputs.past_key_values.crop(-(drafted + 1 - new_tokens))
        self.model_kwargs = self.model._update_model_kwargs_for_generation(
            self.outputs, self.model_kwargs, is_encoder_decoder=False, num_new_tokens=new_tokens
        )

    def close(self) -> None:
        """Take the catch off the lm_head."""
        self._hook.remove()

    def _extended_kwargs(self, length: int, gamma: int) -> dict[str, Any]:
        """The model's keyword arguments with masks and positions reaching over the drafted tokens."""
        kwargs = _prepare_token_type_ids(_prepare_attention_mask(dict(self.model_kwargs), length, False), length)
        position_ids = kwargs.get("position_ids")
        if position_ids is not None and gamma > 0:
            kwargs = _prepare_position_ids(kwargs, position_ids.shape[-1] + gamma, False)
        return kwargs

    def _catch(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        self._head_input = args[0]


def output_head(model: PreTrainedModel) -> nn.Module:
    """The module that turns hidden states into logits."""
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
