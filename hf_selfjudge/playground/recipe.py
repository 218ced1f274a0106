"""The settings of the playground's models: architecture, data and optimisation of target and draft, per preset."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from .tokenizer import VOCABULARY
from .wording import FIDELITY


@dataclass(frozen=True)
class Recipe:
    """How one model is built and trained."""

    name: str
    """`target` or `draft`; the folder its checkpoint is written to."""
    hidden_size: int
    """Width of the residual stream."""
    layers: int
    """Number of decoder layers."""
    heads: int
    """Query heads."""
    kv_heads: int
    """Key and value heads."""
    intermediate_size: int
    """Width of the feed-forward layers."""
    items: int
    """Conversations in the training data; they are read again when the steps outlast them."""
    fidelity: float
    """How often a styled slot of the training data follows the style table: the draft's writers keep to it less."""
    steps: int
    """Optimiser steps; the learning rate reaches its end there."""
    batch_tokens: int
    """Tokens per step, padding included."""
    learning_rate: float
    """Highest learning rate."""
    warmup_steps: int
    """Steps over which the learning rate rises to it."""
    weight_decay: float = 0.05
    """AdamW's weight decay, on matrices only."""
    beta2: float = 0.98
    """AdamW's second-moment decay."""
    clip: float = 1.0
    """Largest gradient norm."""
    prompt_weight: float = 0.0
    """Weight of prompt tokens in the loss; response tokens weigh 1."""
    max_minutes: float | None = None
    """Wall-clock budget of the training loop; the learning-rate schedule then ends with it if the steps do not."""
    log_every: int = 100
    """Steps between two lines of `history.jsonl`."""
    checkpoint_every: int = 2_000
    """Steps between two checkpoints to resume from."""
    seed: int = 0
    """Seed of the data, the weights and the order of the batches."""
    compile: bool = False
    """Whether to use torch.compile; pays off on long CUDA runs only."""

    def __post_init__(self) -> None:
        """Check what would otherwise fail late."""
        if self.hidden_size % self.heads or self.heads % self.kv_heads:
            raise ValueError(
                f"{self.name}: hidden_size {self.hidden_size}, heads {self.heads} and kv_heads {self.kv_heads} must "
                "divide one another"
            )
        if self.checkpoint_every % self.log_every:
            raise ValueError(
                f"{self.name}: checkpoint_every is {self.checkpoint_every}; it must be a multiple of log_every, "
                f"{self.log_every}"
            )
        if self.steps < 1 or self.learning_rate <= 0 or not 0.0 <= self.fidelity <= 1.0:
            raise ValueError(f"{self.name}: steps, learning_rate and fidelity must be positive (fidelity at most 1)")
        if self.max_minutes is not None and self.max_minutes <= 0:
            raise ValueError(f"{self.name}: max_minutes is {self.max_minutes}; leave it out for no limit")

    def rate(self, step: int, progress: float) -> float:
        """Learning rate of a step: linear warm-up, then cosine down to zero over `progress` from 0 to 1."""
        warm = min(1.0, (step + 1) / self.warmup_steps) if self.warmup_steps else 1.0
        return self.learning_rate * warm * 0.5 * (1.0 + math.cos(math.pi * min(1.0, progress)))


@dataclass(frozen=True)
class Preset:
    """A pair of recipes and the tokenizer they share."""

    vocabulary: int
    """Number of tokens."""
    tokenizer_items: int
    """Items of each task that the tokenizer learns from."""
    test_items: int
    """Held-out conversations whose loss is reported at the end."""
    target: Recipe
    """The model whose quality must be kept."""
    draft: Recipe
    """The model that proposes tokens."""


PRESETS: dict[str, Preset] = {
    "full": Preset(
        vocabulary=VOCABULARY,
        tokenizer_items=10_000,
        test_items=8_000,
        target=Recipe(
            name="target",
            hidden_size=256,
            layers=6,
            heads=8,
            kv_heads=4,
            intermediate_size=704,
            items=2_000_000,
            fidelity=1.0,
            steps=8_000,
            batch_tokens=65_536,
            learning_rate=2e-3,
            warmup_steps=400,
            max_minutes=4.8,
        ),
        draft=Recipe(
            name="draft",
            hidden_size=112,
            layers=2,
            heads=4,
            kv_heads=2,
            intermediate_size=288,
            items=400_000,
            fidelity=0.3,
            steps=1_800,
            batch_tokens=65_536,
            learning_rate=4e-3,
            warmup_steps=200,
        ),
    ),
    "tiny": Preset(
        vocabulary=1_024,
        tokenizer_items=200,
        test_items=64,
        target=Recipe(
            name="target",
            hidden_size=64,
            layers=2,
            heads=4,
            kv_heads=2,
            intermediate_size=128,
            items=600,
            fidelity=FIDELITY,
            steps=60,
            batch_tokens=2_048,
            learning_rate=4e-3,
            warmup_steps=10,
            log_every=10,
            checkpoint_every=20,
        ),
        draft=Recipe(
            name="draft",
            hidden_size=32,
            layers=1,
            heads=2,
            kv_heads=1,
            intermediate_size=64,
            items=400,
            fidelity=0.3,
            steps=30,
            batch_tokens=2_048,
            learning_rate=4e-3,
            warmup_steps=10,
            log_every=10,
            checkpoint_every=20,
        ),
    ),
}
"""`full` made the embedded pair (a test compares it with the assets' recipe.json), `tiny` is for tests on a CPU.

Why `full` is as it is: the target's data always follows the style table, so it is sure of its wording and gives the
harmless variants low probabilities. The draft's data follows the table only 30 % of the time, so it words things its
own way, and it is narrow and trained briefly, so that it also errs; a judge has to tell the two apart. Four drafts were
tried (two layers of width 96 with 1,200 and with 2,500 steps, one layer of width 128 with 2,500, and this one), and
this one was chosen by agreement and answer preservation on held-out items of another seed than the reported ones. The
target's time limit ended its run after 7,749 of the 8,000 steps; on another machine it ends elsewhere, and the weights
come out a little different.
"""


def build_model(recipe: Recipe, tokenizer: Any) -> Any:
    """A fresh Llama in float32 with the recipe's architecture and seed."""
    import torch
    from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

    special = {
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=recipe.hidden_size,
        num_hidden_layers=recipe.layers,
        num_attention_heads=recipe.heads,
        num_key_value_heads=recipe.kv_heads,
        intermediate_size=recipe.intermediate_size,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        **special,
    )
    torch.manual_seed(recipe.seed)
    model = LlamaForCausalLM(config)
    model.generation_config = GenerationConfig(do_sample=False, max_new_tokens=160, **special)
    return model
