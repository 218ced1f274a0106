"""Which kind of cache the models of a call get, and why not the fast one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedModel

from ..engine import forward
from .cached_model import CachedModel
from .drafting import DraftSettings
from .static_model import StaticModel

PLAIN_INPUTS = frozenset({"attention_mask", "past_key_values", "use_cache", "logits_to_keep", "position_ids"})
"""What transformers hands over for a call with nothing but token ids."""


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
    def capacity(self) -> int:
        """Slots of a static cache: a row near its end is drafted for as long as the others are, and filled up."""
        return self.max_length + self.settings.num_assistant_tokens + self.granule + 2

    def of(
        self, model: PreTrainedModel, vocab_size: int | None = None, with_hidden: bool = False
    ) -> CachedModel | StaticModel:
        """A cache for one of the models."""
        if not self.static:
            return CachedModel(model, self.padding, vocab_size, with_hidden)
        return StaticModel(model, self.padding, self.capacity, vocab_size)


def why_not_static(
    model: PreTrainedModel, draft: PreTrainedModel | None, model_kwargs: dict[str, Any], caches: RowCaches
) -> str | None:
    """What keeps a call from static caches, or None."""
    if draft is None:
        return "static caches need a draft model with the target's tokenizer"
    if model.device != draft.device:
        return f"the target is on {model.device} and the draft on {draft.device}"
    extra = sorted(set(model_kwargs) - PLAIN_INPUTS)
    if extra:
        return f"the call has other inputs than token ids ({', '.join(extra)})"
    known = model_kwargs["past_key_values"].get_seq_length()
    if int(known) > 0:
        return f"past_key_values holds {int(known)} tokens already"
    reason = forward.why_not_static(model) or forward.why_not_static(draft)
    return reason or forward.why_too_large((model, draft), len(caches.padding), caches.capacity)
