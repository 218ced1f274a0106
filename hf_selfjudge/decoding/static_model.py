"""A causal LM with a static cache in which every row has a length of its own; the same interface as `CachedModel`.

A token's slot in the cache is its position in its text, so forgetting is a matter of lengths alone. Rows that are done
leave a gap; once half of the rows are gone, the rest moves together and forwards get smaller.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedModel

from ..engine.forward import Forward, borrow, give_back, rounded
from .texts import Texts


class StaticModel:
    """Reads texts into the cache and forgets parts of them again, row by row.

    Args:
        model: the model.
        padding: left padding of each row's text.
        max_length: tokens of the longest text there will be, padding and drafts included.
        vocab_size: of the other model, whose ids this one may lack.
    """

    def __init__(
        self, model: PreTrainedModel, padding: list[int], max_length: int, vocab_size: int | None = None
    ) -> None:
        self.model = model
        self.lengths = list(padding)
        self.hidden: Tensor | None = None  # (rows, keep, hidden_size): the lm_head's input in the last read
        self._padding = list(padding)
        self._forward = borrow(model, len(padding), max_length)
        self._reader: Forward | None = None  # reads the prompts of texts that come later
        self._slots = self._forward.slots(len(padding))  # rows of the cache in use
        self._slot = list(range(len(padding)))  # of each text
        self._index = torch.arange(len(padding), device=model.device)  # the same on the device
        self._positions = torch.zeros((self._slots, 1), dtype=torch.long, device=model.device)
        own = model.get_input_embeddings().weight.shape[0]
        self._largest_id = None if vocab_size is None or vocab_size <= own else own - 1

    def read(self, texts: Texts, keep: int) -> Tensor:
        """Read what the cache does not hold of each text; logits of the last `keep` tokens.

        Texts (1, length) each -> (rows, keep, vocab) float32

        Forwards have few shapes, so a little may be read again: the same tokens in the same slots.
        """
        count = max(2, keep)  # after a fully accepted block a draft has two unread tokens, else one
        ends = [length - pad for length, pad in zip(texts.lengths, self._padding, strict=True)]
        begins = [length - pad for length, pad in zip(self.lengths, self._padding, strict=True)]
        if any(begin < end - count for begin, end in zip(begins, ends, strict=True)):
            self._prefill(texts, begins, [max(begin, end - count) for begin, end in zip(begins, ends, strict=True)])
        positions = torch.tensor(ends)[:, None] - count + torch.arange(count)
        positions.clamp_(min=0)  # a text shorter than `count` reads its first token again, into its first slot
        places = torch.tensor(self._padding)[:, None] + positions
        tokens = texts.ids.gather(1, places.to(texts.device, non_blocking=True))
        self.lengths = list(texts.lengths)
        return self._run(tokens, positions, keep)

    def extend(self, tokens: Tensor) -> Tensor:
        """Read one more token in every row. (rows, 1) -> (rows, 1, vocab) float32"""
        self._positions = self._positions + 1
        self.lengths = [length + 1 for length in self.lengths]
        return self._run(tokens, None, 1)

    def forget(self, lengths: list[int]) -> None:
        """Keep at most the first `lengths[row]` tokens of each row's text."""
        self.lengths = [min(old, new) for old, new in zip(self.lengths, lengths, strict=True)]

    def adopt(self, other: StaticModel, rows: list[int], lengths: list[int]) -> None:
        """Take over the first `lengths[row]` tokens that another one has read of its texts `rows`; before any read."""
        slots = [other._slot[row] for row in rows]
        self._forward.cache.take_over(other._forward.cache, slots, list(range(len(rows))), max(lengths))
        self.lengths = [length + pad for length, pad in zip(lengths, self._padding, strict=True)]

    def select(self, rows: list[int]) -> None:
        """Go on with some of the rows."""
        self.lengths = [self.lengths[row] for row in rows]
        self._padding = [self._padding[row] for row in rows]
        self._slot = [self._slot[row] for row in rows]
        slots = self._forward.slots(len(rows))
        if slots < self._slots:
            self._forward.cache.move(self._slot)
            self._slots, self._slot = slots, list(range(len(rows)))
        self._index = torch.tensor(self._slot, device=self.model.device)

    def renew(self, rows: list[int], padding: list[int]) -> None:
        """Go on with some of the rows, and with new texts of this left padding in the places of others."""
        self.lengths = [*(self.lengths[row] for row in rows), *padding]
        self._padding = [*(self._padding[row] for row in rows), *padding]
        kept = [self._slot[row] for row in rows]
        self._slots = max(self._slots, self._forward.slots(len(self.lengths)))  # fewer were in use for a while
        free = sorted(set(range(self._slots)) - set(kept))
        self._slot = kept + free[: len(padding)]
        self._index = torch.tensor(self._slot, device=self.model.device)

    def finish(self) -> None:
        """The call is over: cache and graphs wait for the next one."""
        give_back(self.model, self._forward)

    def _prefill(self, texts: Texts, begins: list[int], ends: list[int]) -> None:
        """Read each text from `begins[row]` to `ends[row]`."""
        unread = [row for row in range(len(ends)) if begins[row] < ends[row]]
        new = [row for row in unread if begins[row] == 0]
        if new and any(begins):  # others have been going for a while
            self._read_apart(new, self._beginnings(texts, new, ends))
            unread = [row for row in unread if begins[row] > 0]
        if not unread:
            return
        width = max(ends[row] - begins[row] for row in unread)
        last = torch.tensor(ends)[:, None] - 1
        positions = torch.tensor(begins)[:, None] + torch.arange(width)
        positions = positions.minimum(last).clamp(min=0)  # who has less to read reads its last token again
        places = torch.tensor(self._padding)[:, None] + positions
        ids = self._known(texts.ids.gather(1, places.to(texts.device, non_blocking=True)))
        self._forward.prefill(self._in_slots(ids), self._in_slots(positions))

    def _beginnings(self, texts: Texts, rows: Sequence[int], ends: list[int]) -> Tensor:
        """Some rows' tokens up to `ends[row]`, padded on the right. (rows, most of them)"""
        width = max(ends[row] for row in rows)
        parts = []
        for row in rows:
            part = texts[row][:, self._padding[row] : self._padding[row] + ends[row]]
            parts.append(F.pad(part, (0, width - part.shape[1])))
        return self._known(torch.cat(parts))

    def _read_apart(self, rows: list[int], ids: Tensor) -> None:
        """Read the beginnings of some texts in a cache of their own, and take over what it holds: others wait."""
        count, width = ids.shape
        if self._reader is None or count > self._reader.cache.rows or width > self._reader.cache.capacity:
            self._reader = Forward(self.model, max(count, self._slots // 8), rounded(width))
        ids = ids.to(self.model.device)
        self._reader.prefill(ids, torch.arange(width, device=ids.device).expand(count, -1))
        slots = [self._slot[row] for row in rows]
        self._forward.cache.take_over(self._reader.cache, list(range(count)), slots, width)

    def _run(self, tokens: Tensor, positions: Tensor | None, keep: int) -> Tensor:
        """One forward over all slots; its logits for the rows at hand."""
        tokens = self._in_slots(self._known(tokens))
        if positions is None:
            positions = self._positions
        else:
            positions = self._in_slots(positions)
            self._positions = positions[:, -1:]
        logits, hidden = self._forward(tokens, positions, keep)
        if not self._in_order:
            logits, hidden = logits[self._index], hidden[self._index]
        self.hidden = hidden
        return logits.to(torch.float32, copy=True)  # a graph's output is overwritten by its next replay

    @property
    def _in_order(self) -> bool:
        """Whether every slot has a text, in the order of the texts."""
        return self._slot == list(range(self._slots))

    def _known(self, tokens: Tensor) -> Tensor:
        """Tokens with the other model's ids that this one lacks replaced by its last one."""
        return tokens if self._largest_id is None else tokens.clamp(max=self._largest_id)

    def _in_slots(self, part: Tensor) -> Tensor:
        """Tokens or positions of every slot; one without a text has zeros: it reads token 0 into its first slot."""
        part = part.to(self.model.device, non_blocking=True)
        if self._in_order:
            return part
        empty = torch.zeros((self._slots, part.shape[1]), dtype=torch.long, device=part.device)
        return empty.index_copy(0, self._index, part)
