"""Which kind of cache the models of a call get, and why not the fast one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedModel

from ..engine.forward import why_too_large
from ..engine.suitability import why_not_static as why_not_by_model
from .cached_model import CachedModel
from .checks import other_inputs
from .drafting import DraftSettings
from .static_model import StaticModel

GROWTH = 20
"""Tokens by which a schedule that grows may lengthen its blocks where caches are static."""


class NoStaticCaches(ValueError):
    """A call needs static caches and cannot have them."""


@dataclass(frozen=True)
class RowCaches:
    """Which kind of cache the models of a call get."""

    padding: list[int]
    static: bool
    settings: DraftSettings
    max_length: int

    @property
    def granule(self) -> int:
        """Blocks are filled up to multiples of this; a fixed gamma has one shape."""
        if not self.static:
            return 1
        return self.settings.num_assistant_tokens if self.settings.num_assistant_tokens_schedule == "constant" else 4

    @property
    def longest_draft(self) -> int:
        """Most tokens drafted in a block: transformers' schedules grow without end, and static caches do not."""
        grows = self.settings.num_assistant_tokens_schedule.startswith("heuristic")
        return self.settings.num_assistant_tokens + (GROWTH if grows else 0)

    @property
    def capacity(self) -> int:
        """Slots of a static cache: a row near its end is drafted for as long as the others are, and filled up."""
        return self.max_length + self.longest_draft + self.granule + 2

    def of(
        self, model: PreTrainedModel, vocab_size: int | None = None, with_hidden: bool = False
    ) -> CachedModel | StaticModel:
        """A cache for one of the models."""
        if not self.static:
            return CachedModel(model, self.padding, vocab_size, with_hidden, self.max_length)
        return StaticModel(model, self.padding, self.capacity, vocab_size)


def why_not_static(
    model: PreTrainedModel, draft: PreTrainedModel | None, model_kwargs: dict[str, Any], caches: RowCaches
) -> str | None:
    """What keeps a call from static caches, or None."""
    if draft is None:
        return "static caches need a draft model with the target's tokenizer"
    if model.device != draft.device:
        return f"the target is on {model.device} and the draft on {draft.device}"
    extra = other_inputs(model_kwargs)
    if extra:
        return f"the call has other inputs than token ids ({', '.join(extra)})"
    known = model_kwargs["past_key_values"].get_seq_length()
    if int(known) > 0:
        return f"past_key_values holds {int(known)} tokens already"
    reason = why_not_by_model(model, caches.capacity) or why_not_by_model(draft, caches.capacity)
    return reason or why_too_large((model, draft), len(caches.padding), caches.capacity)
