"""A causal LM with a KV cache in which every row has a length of its own.

Rows of a batch accept different numbers of tokens, so what one row keeps another must forget. Forgotten entries become
holes: the cache remembers the text position of each entry (-1 for a hole), and the attention mask is built from
positions, so that holes are never seen. Entries that every row has forgotten at the end are cut off; a single row never
has holes.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from ..attention import attention_masks
from ..lm_head import head_inputs
from .texts import Texts

ORDINARY_LAYERS = ("full_attention", "sliding_attention", "chunked_attention")


class CachedModel:
    """Reads texts into the cache and forgets parts of them again, row by row.

    Texts are given whole, with their left padding; lengths count it too, so that they are those of the text.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        padding: list[int],
        vocab_size: int | None = None,
        with_hidden: bool = False,
        max_length: int | None = None,
    ) -> None:
        self.model = model
        self._last_position = None if max_length is None else max_length - 1
        self.hidden: Tensor | None = None  # (rows, keep, hidden_size): the lm_head's input in the last read, if asked
        self._with_hidden = with_hidden
        self.lengths = list(padding)  # how much of each row's text is in the cache (or is padding, which never is)
        self._cache = rollback_cache(model)
        self._padding = list(padding)
        self._cached = 0
        # text position of each entry, (rows, cached) on the host; a single unpadded row is in order and needs none
        self._positions = None if self._padding == [0] else torch.zeros((len(padding), 0), dtype=torch.long)
        self._keeps_logits = model._supports_logits_to_keep()
        # vocabularies padded to different sizes: the other model may write ids that this one has no embedding for
        own = model.get_input_embeddings().weight.shape[0]
        self._largest_id = None if vocab_size is None or vocab_size <= own else own - 1

    def read(self, texts: Texts, keep: int) -> Tensor:
        """Read what the cache does not hold of each text; logits of the last `keep` tokens.

        Texts (1, length) each -> (rows, keep, vocab) float32
        """
        unread = [text[:, length:] for text, length in zip(texts, self.lengths, strict=True)]
        if self._positions is None:
            return self._forward(unread[0], None, keep)
        width = max(text.shape[1] for text in unread)
        tokens = torch.cat([torch.nn.functional.pad(text, (width - text.shape[1], 0)) for text in unread])
        ends = torch.tensor([length - pad for length, pad in zip(texts.lengths, self._padding, strict=True)])[:, None]
        counts = torch.tensor([text.shape[1] for text in unread])[:, None]
        index = torch.arange(width)[None]
        positions = torch.where(index >= width - counts, ends - width + index, -1)
        return self._forward(tokens, positions, keep)

    def extend(self, tokens: Tensor) -> Tensor:
        """Read one more token in every row. (rows, 1) -> (rows, 1, vocab) float32"""
        if self._positions is None:
            return self._forward(tokens, None, 1)
        positions = torch.tensor([length - pad for length, pad in zip(self.lengths, self._padding, strict=True)])
        return self._forward(tokens, positions[:, None], 1)

    def forget(self, lengths: list[int]) -> None:
        """Keep at most the first `lengths[row]` tokens of each row's text."""
        self.lengths = [min(old, new) for old, new in zip(self.lengths, lengths, strict=True)]
        if self._positions is None:
            surplus = self._cached - self.lengths[0]
        else:
            ends = torch.tensor([length - pad for length, pad in zip(self.lengths, self._padding, strict=True)])
            self._positions = self._positions.masked_fill(self._positions >= ends[:, None], -1)
            used = (self._positions >= 0).any(dim=0).nonzero()
            surplus = self._cached - (int(used[-1]) + 1 if len(used) else 0)
            self._positions = self._positions[:, : self._cached - surplus]
        if surplus:
            self._cache.crop(-surplus)
            self._cached -= surplus

    def select(self, rows: list[int]) -> None:
        """Go on with some of the rows."""
        if self._positions is None:
            return
        self._cache.batch_select_indices(torch.tensor(rows, device=self.model.device))
        self._positions = self._positions[rows]
        self.lengths = [self.lengths[row] for row in rows]
        self._padding = [self._padding[row] for row in rows]

    def renew(self, rows: list[int], padding: list[int]) -> None:
        """Texts cannot join others here."""
        raise TypeError("Texts can only join others in static caches.")

    def finish(self) -> None:
        """The call is over."""

    def _forward(self, tokens: Tensor, positions: Tensor | None, keep: int) -> Tensor:
        """Read tokens at their text positions (-1 for padding, None for a single row in order)."""
        extra: dict[str, Any] = {"logits_to_keep": keep} if self._keeps_logits else {}
        if self._positions is not None and positions is not None:
            self._positions = torch.cat([self._positions, positions], dim=1)
            extra |= self._ragged(self._positions.to(tokens.device), positions.to(tokens.device))
            self.lengths = [int(last) + 1 + pad for last, pad in zip(positions[:, -1], self._padding, strict=True)]
        else:
            self.lengths = [self.lengths[0] + tokens.shape[1]]
        if self._largest_id is not None:
            tokens = tokens.clamp(max=self._largest_id)
        catching: Any = head_inputs(self.model) if self._with_hidden else nullcontext([])
        with catching as caught:
            output = self.model(input_ids=tokens, past_key_values=self._cache, use_cache=True, **extra)
        self._cached += tokens.shape[1]
        self.hidden = caught[-1][:, -keep:] if caught else None
        return output.logits[:, -keep:].float()

    def _ragged(self, known: Tensor, new: Tensor) -> dict[str, Any]:
        """Positions and masks for a cache with holes."""
        back = new[:, :, None] - known[:, None, :]  # (rows, count, cached + count)
        index = torch.arange(known.shape[1], device=known.device)
        itself = index == index[-new.shape[1] :, None]
        visible = ((back >= 0) & (known >= 0)[:, None, :]) | itself  # padding must see something
        # what is filled in behind the longest text there may be is never used, and may have no position of its own
        places = new.clamp(min=0, max=self._last_position)
        return {"position_ids": places, "attention_mask": attention_masks(self.model, visible, back)}


def rollback_cache(model: PreTrainedModel) -> DynamicCache:
    """A cache that can be cut back by any number of tokens.

    Layers with a sliding window keep their whole past here (the mask still limits what they see), which makes every cut
    exact; only linear-attention models need the cache layers of their config.
    """
    kinds = getattr(model.config.get_text_config(), "layer_types", None) or ()
    if all(kind in ORDINARY_LAYERS for kind in kinds):
        return DynamicCache()
    cache = DynamicCache(config=model.config)
    cache.activate_past_recording()
    return cache
