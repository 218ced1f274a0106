"""The pair: where target and draft come from, what identifies them, and loading them when a stage has work for them.

Knows nothing of torch until something is loaded, so that the command line can show its options at once.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..config import EMBEDDED
from ..devices import usable_device
from ..fingerprint import folder_fingerprint
from .settings import Settings, option

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

ROLES = ("target", "draft")
DTYPES = ("auto", "float32", "bfloat16", "float16")
PLAYGROUND = "playground"
"""The word that names the embedded pair."""


@dataclass(frozen=True)
class ModelSettings(Settings):
    """The pair of models and how they are loaded."""

    target: str | None = option(None, "the large model: Hub id or folder; `playground` is the embedded one")
    draft: str | None = option(None, "the small model: Hub id or folder; `playground` is the embedded one")
    target_revision: str | None = option(None, "branch, tag or commit of the target on the Hub")
    draft_revision: str | None = option(None, "branch, tag or commit of the draft on the Hub")
    dtype: str = option("auto", "of the weights; auto: as stored, but float32 on a CPU", DTYPES)
    attn_implementation: str = option("sdpa", "attention of transformers; packed scoring needs sdpa or eager")
    device: str | None = option(None, "such as cuda:1 or cpu; default: a GPU if there is one, one for each process")
    device_map: str | None = option(None, "spread a model over devices as in transformers, such as auto")
    tp_plan: str | None = option(None, "auto: tensor parallel target; all processes then work on the same prompts")
    trust_remote_code: bool = option(False, "run code that comes with the models")

    def __post_init__(self) -> None:
        """Refuse two ways of spreading a model at once."""
        super().__post_init__()
        if self.device_map is not None and self.tp_plan is not None:
            raise ValueError("device_map and tp_plan are both given; a model is spread in one way only: drop one.")

    def name(self, role: str) -> str:
        """What names a model in the judge's config.json; a folder in a way that no Hub id is written."""
        name = self._given(role)
        if name == PLAYGROUND:
            return f"{EMBEDDED}{role}"
        return f"./{name}" if Path(name).is_dir() and not name.startswith((".", "/", "~")) else name

    def location(self, role: str) -> str:
        """Where a model is loaded from: a folder or a Hub id."""
        name = self._given(role)
        if name != PLAYGROUND:
            return name
        from ..playground import ASSETS

        return str(ASSETS / role)

    def revision(self, role: str) -> str | None:
        """A model's revision on the Hub."""
        return self.target_revision if role == "target" else self.draft_revision

    def _given(self, role: str) -> str:
        name = self.target if role == "target" else self.draft
        if not name:
            raise ValueError(f"This needs the {role} model, and none was named: give --{role} (Hub id or folder).")
        return name


class Pair:
    """Target, draft and tokenizer, each loaded on first use and then kept."""

    def __init__(self, settings: ModelSettings, device: torch.device | str | None = None) -> None:
        self.settings = settings
        self._device = settings.device or device
        self._described: dict[str, dict[str, Any]] = {}
        self.loading_seconds = 0.0
        """Spent on loading so far, which is not what a stage costs."""

    @cached_property
    def target(self) -> PreTrainedModel:
        """The large model."""
        from ..decoding.checks import check_target

        model = self._load("target")
        check_target(model)
        return model

    @cached_property
    def draft(self) -> PreTrainedModel:
        """The small model."""
        return self._load("draft")

    @cached_property
    def tokenizer(self) -> Any:
        """The target's tokenizer."""
        return self._tokenizer("target")

    @property
    def context(self) -> int | None:
        """The longest text both models can read; None if neither says."""
        limits = [getattr(self._text_config(role), "max_position_embeddings", None) for role in self._named()]
        known = [limit for limit in limits if isinstance(limit, int) and limit > 0]
        return min(known) if known else None

    @property
    def device(self) -> torch.device:
        """Where whole models are put."""
        import torch

        return usable_device(str(self._device or ("cuda" if torch.cuda.is_available() else "cpu")))

    @property
    def hidden_size(self) -> int:
        """Width of the target's hidden states."""
        return self._text_config("target").hidden_size

    @property
    def vocab_size(self) -> int:
        """The size of the target's vocabulary, padding included."""
        return self._text_config("target").vocab_size

    @cached_property
    def end_tokens(self) -> list[int]:
        """The target's end-of-sequence tokens, from its files alone."""
        from transformers import GenerationConfig

        try:
            found = GenerationConfig.from_pretrained(self.settings.location("target"), **self._source("target"))
        except OSError:
            found = GenerationConfig.from_model_config(self._config("target"))
        eos = found.eos_token_id
        return [] if eos is None else [eos] if isinstance(eos, int) else list(eos)

    def describe(self, role: str) -> dict[str, Any]:
        """What a model's results depend on, for the manifest; `fingerprint` tells whether it is the same model."""
        if role not in self._described:
            self._described[role] = self._describe(role)
        return dict(self._described[role])

    def _describe(self, role: str) -> dict[str, Any]:
        settings = self.settings
        config = self._config(role)
        commit = getattr(config, "_commit_hash", None)
        folder = Path(settings.location(role))
        return {
            "id": settings.name(role),
            "revision": commit or settings.revision(role),
            "fingerprint": folder_fingerprint(folder) if folder.is_dir() else f"commit {commit}",
            "dtype": settings.dtype,
            "attn_implementation": settings.attn_implementation,
        }

    def check(self) -> None:
        """Refuse a pair whose tokenizers differ: the draft's token ids would mean something else to the target."""
        from ..decoding.checks import same_vocabulary

        if same_vocabulary(self.tokenizer, other := self._tokenizer("draft")):
            return
        sizes = len(self.tokenizer.get_vocab()), len(other.get_vocab())
        differing = len(set(self.tokenizer.get_vocab().items()) ^ set(other.get_vocab().items()))
        raise ValueError(
            f"The target {self.settings.target} and the draft {self.settings.draft} have different vocabularies "
            f"({sizes[0]} and {sizes[1]} tokens, {differing} entries differ). A judge needs a pair with one tokenizer: "
            "choose a draft of the target's family."
        )

    # -- loading ------------------------------------------------------------------------------------------------------

    def _load(self, role: str) -> PreTrainedModel:
        from transformers import AutoModelForCausalLM

        started = time.perf_counter()
        settings = self.settings
        device = self.device
        auto = "float32" if device.type == "cpu" and settings.device_map is None else "auto"
        spread: dict[str, Any] = {}
        if settings.device_map is not None:
            spread["device_map"] = settings.device_map
        elif settings.tp_plan is not None and role == "target":
            from transformers.distributed import DistributedConfig

            spread["distributed_config"] = DistributedConfig(tp_plan=settings.tp_plan)
        model = AutoModelForCausalLM.from_pretrained(
            settings.location(role),
            dtype=auto if settings.dtype == "auto" else settings.dtype,
            attn_implementation=settings.attn_implementation,
            **self._source(role),
            **spread,
        )
        if not spread:
            model.to(device)
        self.loading_seconds += time.perf_counter() - started
        return model.eval().requires_grad_(False)

    def _tokenizer(self, role: str) -> Any:
        from transformers import AutoTokenizer

        return self._read(AutoTokenizer, role)

    def _config(self, role: str) -> Any:
        from transformers import AutoConfig

        return self._read(AutoConfig, role)

    def _read(self, kind: Any, role: str) -> Any:
        """Something small of a model; an error names the model."""
        try:
            return kind.from_pretrained(self.settings.location(role), **self._source(role))
        except (OSError, ValueError) as error:
            message = f"The {role} {self.settings.location(role)} cannot be read: {' '.join(str(error).split())}"
            raise type(error)(message) from None

    def _text_config(self, role: str) -> Any:
        return self._config(role).get_text_config()

    def _named(self) -> list[str]:
        return [role for role in ROLES if getattr(self.settings, role)]

    def _source(self, role: str) -> dict[str, Any]:
        found: dict[str, Any] = {"trust_remote_code": self.settings.trust_remote_code}
        revision = self.settings.revision(role)
        return found | ({"revision": revision} if revision else {})
