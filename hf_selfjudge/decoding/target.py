"""The target model during one call: verification forwards, the lm_head's input, and a cache that can be cut back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.generation.candidate_generator import (
    _prepare_attention_mask,
    _prepare_position_ids,
    _prepare_token_type_ids,
)

from ..lm_head import head_inputs
from .cached_model import CachedModel
from .static_model import StaticModel
from .texts import Texts


@dataclass(frozen=True)
class Verification:
    """One forward over [x_t, d_1 .. d_gamma] of every row."""

    logits: Tensor  # (rows, gamma + 1, vocab) float32
    hidden: Tensor  # (rows, gamma + 1, hidden_size)


class SingleTarget:
    """One row, through transformers' own generation protocol, so that any causal LM with any inputs works."""

    def __init__(self, model: PreTrainedModel, model_kwargs: dict[str, Any], overrides: dict[str, Any]) -> None:
        self.model = model
        self.model_kwargs = model_kwargs
        self.outputs: Any = None
        self._overrides = overrides
        self._first = True
        model_kwargs["past_key_values"].activate_past_recording()

    @property
    def past_key_values(self) -> Any:
        """The cache, of the whole text but its last token."""
        return self.model_kwargs["past_key_values"]

    def forward(self, texts: Texts, draft_tokens: Tensor) -> Verification:
        """Read the tokens not in the cache and the drafted ones."""
        gamma = draft_tokens.shape[1]
        candidates = torch.cat([texts[0], draft_tokens], dim=1)
        known = self.past_key_values.get_seq_length() if self._first else candidates.shape[1] - gamma - 1
        inputs = self.model.prepare_inputs_for_generation(
            candidates,
            next_sequence_length=candidates.shape[1] - known,
            is_first_iteration=self._first,
            **self._extended_kwargs(candidates.shape[1], gamma),
        )
        if "logits_to_keep" in inputs:
            inputs["logits_to_keep"] = gamma + 1
        with head_inputs(self.model) as caught:
            self.outputs = self.model(**{**inputs, **self._overrides})
        self._first = False
        device = draft_tokens.device
        return Verification(
            self.outputs.logits[:, -(gamma + 1) :].to(device=device, dtype=torch.float32),
            caught[-1][:, -(gamma + 1) :].to(device),
        )

    def keep(self, new_tokens: list[int], drafted: int) -> None:
        """Keep `new_tokens` of the last forward: the cache forgets the drafts behind them."""
        self.outputs.past_key_values.crop(-(drafted + 1 - new_tokens[0]))
        self.model_kwargs = self.model._update_model_kwargs_for_generation(
            self.outputs, self.model_kwargs, is_encoder_decoder=False, num_new_tokens=new_tokens[0]
        )

    def select(self, rows: list[int]) -> None:
        """A single row is never dropped before the end."""

    def renew(self, rows: list[int], padding: list[int]) -> None:
        """Nobody waits for a single row's place."""

    def finish(self) -> None:
        """The call is over; the cache is the caller's."""

    def _extended_kwargs(self, length: int, gamma: int) -> dict[str, Any]:
        """The model's keyword arguments with masks and positions reaching over the drafted tokens."""
        kwargs = _prepare_token_type_ids(_prepare_attention_mask(dict(self.model_kwargs), length, False), length)
        position_ids = kwargs.get("position_ids")
        if position_ids is not None and gamma > 0:
            kwargs = _prepare_position_ids(kwargs, position_ids.shape[-1] + gamma, False)
        return kwargs


class RowsTarget:
    """Rows of text, each with its own length in the cache.

    Args:
        cached: the model with its cache.
        granule: blocks are filled up to a multiple of this many tokens, so that forwards have few shapes.
    """

    past_key_values = None  # rows of different length: nothing that transformers could go on with

    def __init__(self, cached: CachedModel | StaticModel, granule: int = 1) -> None:
        self._cached = cached
        self._lengths: list[int] = []
        self._granule = granule

    def forward(self, texts: Texts, draft_tokens: Tensor) -> Verification:
        """Read each row's tokens not in the cache (the prompt, later one token) and the drafted ones."""
        self._lengths = list(texts.lengths)
        gamma = draft_tokens.shape[1]
        filled = torch.nn.functional.pad(draft_tokens, (0, -gamma % self._granule))
        logits = self._cached.read(texts.followed_by(filled), filled.shape[1] + 1)
        if self._cached.hidden is None:
            raise RuntimeError("The target's cache was made without hidden states.")
        return Verification(logits[:, : gamma + 1], self._cached.hidden[:, : gamma + 1])

    def keep(self, new_tokens: list[int], drafted: int) -> None:
        """Keep `new_tokens[row]` of each row's last forward; the last of them is read by the next one."""
        self._cached.forget([length + new - 1 for length, new in zip(self._lengths, new_tokens, strict=True)])

    def select(self, rows: list[int]) -> None:
        """Go on with some of the rows."""
        self._cached.select(rows)

    def renew(self, rows: list[int], padding: list[int]) -> None:
        """Go on with some of the rows, and with new texts of this left padding."""
        self._cached.renew(rows, padding)

    def finish(self) -> None:
        """The call is over."""
        self._cached.finish()
