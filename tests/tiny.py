"""Tiny random models, drafts that partly agree with them, judges and a tokenizer, built offline in milliseconds.

Most models are float64, so that cached, blockwise and cache-free forwards agree far below the margin of any decision.
"""

import copy

import torch
from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from transformers import (
    AutoModelForCausalLM,
    BloomConfig,
    Gemma2Config,
    Gemma3TextConfig,
    GPT2Config,
    GPTNeoXConfig,
    GptOssConfig,
    Lfm2Config,
    Llama4TextConfig,
    LlamaConfig,
    MistralConfig,
    PhiConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen3Config,
)

from hf_selfjudge.config import FEATURES, JudgeConfig
from hf_selfjudge.judge import SelfJudgeVerifier
from hf_selfjudge.rules import Rule

VOCAB_SIZE = 101
HIDDEN_SIZE = 32

_COMMON = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": HIDDEN_SIZE,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 256,
    "initializer_range": 0.3,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": None,
}
_GROUPED = {**_COMMON, "num_key_value_heads": 2, "head_dim": 8}
_GEMMA = {
    **_GROUPED,
    "layer_types": ["sliding_attention", "full_attention"],
    "sliding_window": 6,
    "query_pre_attn_scalar": 8,
    "tie_word_embeddings": False,  # tied random embeddings repeat one token for ever
}

CONFIGS = {
    "llama": (LlamaConfig, _GROUPED),
    "qwen2": (Qwen2Config, _GROUPED),
    "qwen3": (Qwen3Config, _GROUPED),
    "mistral": (MistralConfig, {**_GROUPED, "sliding_window": 8}),
    "gemma2": (Gemma2Config, _GEMMA),
    "gemma3": (Gemma3TextConfig, _GEMMA),
    "gpt_neox": (GPTNeoXConfig, _COMMON),
    "phi": (PhiConfig, _COMMON),
}
FAMILIES = tuple(CONFIGS)
"""The families that every exactness test runs."""

_GPT2 = {"vocab_size": VOCAB_SIZE, "n_embd": HIDDEN_SIZE, "n_layer": 2, "n_head": 4, "initializer_range": 0.3}
_ENDLESS = {"bos_token_id": 1, "eos_token_id": None, "pad_token_id": 0}
_CHUNKED = {"layer_types": ["chunked_attention", "full_attention"], "attention_chunk_size": 8, "num_local_experts": 2}
CONFIGS |= {
    "gpt2": (GPT2Config, {**_GPT2, **_ENDLESS}),
    "bloom": (BloomConfig, {**_GPT2, **_ENDLESS, "hidden_size": HIDDEN_SIZE}),
    "gpt_oss": (GptOssConfig, {**_GEMMA, "num_local_experts": 4, "num_experts_per_tok": 2}),
    "lfm2": (
        Lfm2Config,
        {**_COMMON, "num_key_value_heads": 2, "layer_types": ["conv", "full_attention"], "block_multiple_of": 16},
    ),
    "llama4": (Llama4TextConfig, {**_GROUPED, **_CHUNKED}),
}
OTHER_FAMILIES = tuple(CONFIGS)[len(FAMILIES) :]
"""Other kinds of positions, layers and attention: learned, ALiBi, sinks and experts, convolutions, chunks."""

FLOAT64 = frozenset(FAMILIES) - {"gemma2"}
"""Gemma2's eager attention puts float64's minimum through a float32 softmax: NaN where everything is masked."""


def build_model(family: str = "llama", seed: int = 0, **changes) -> PreTrainedModel:
    config_class, settings = CONFIGS[family]
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config_class(**{**settings, **changes})).eval()
    if family in FLOAT64:
        model = model.double()
    model.requires_grad_(False)
    model.generation_config.pad_token_id = 0
    return model


def build_draft(target: PreTrainedModel, noise: float = 0.03, seed: int = 1) -> PreTrainedModel:
    """The target with noise on every matrix: often, but not always, of the target's mind."""
    draft = copy.deepcopy(target)
    generator = torch.Generator().manual_seed(seed)
    for parameter in draft.parameters():
        if parameter.dim() > 1:
            parameter += (
                noise * parameter.std() * torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
            )
    return draft


def prompts(count: int, length: int | None = None, seed: int = 0) -> list[torch.Tensor]:
    """Random prompts of 3 to 14 tokens. Each (1, length)"""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(3, 15, (count,), generator=generator).tolist()
    return [torch.randint(3, VOCAB_SIZE, (1, length or n), generator=generator) for n in lengths]


def build_judge(
    features: tuple[str, ...] = FEATURES,
    threshold: float | None = None,
    seed: int = 0,
    hidden_size: int = HIDDEN_SIZE,
    **config,
) -> SelfJudgeVerifier:
    torch.manual_seed(seed)
    judge = SelfJudgeVerifier(JudgeConfig(hidden_size=hidden_size, features=tuple(features), **config))
    with torch.no_grad():
        for parameter in judge.parameters():
            parameter.copy_(torch.randn_like(parameter) / parameter.shape[-1] ** 0.5)
    return judge if threshold is None else judge.with_threshold(threshold)


class Always(Rule):
    """Accepts everything, or nothing."""

    def __init__(self, answer: bool) -> None:
        self.answer = answer

    def accept(self, block):
        return torch.full_like(block.draft_tokens, self.answer, dtype=torch.bool)


def build_tokenizer(shift: int = 0) -> PreTrainedTokenizerFast:
    """A byte-level tokenizer of 101 tokens; `shift` rotates the ids of the ordinary ones, giving another vocabulary."""
    letters = [chr(c) for c in range(ord("a"), ord("z") + 1)]
    single = [*letters, *"0123456789", "Ġ", "Ã", "©", *".,:;!?-+*/=()$"]
    merges = [(a, b) for a in "teaio" for b in "nrshdlmu" if a != b] + [("Ġ", "a"), ("Ġ", "t"), ("th", "e"), ("Ã", "©")]
    tokens = [*single, *("".join(pair) for pair in merges)]
    room = VOCAB_SIZE - 4
    tokens = tokens[:room]
    merges = [pair for pair in merges if "".join(pair) in tokens]
    ordered = tokens[shift:] + tokens[:shift]
    vocab = {token: index for index, token in enumerate(["<pad>", "<bos>", "<eos>", "<unk>", *ordered])}
    backend = Tokenizer(BPE(vocab, merges, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token="<pad>", bos_token="<bos>", eos_token="<eos>", unk_token="<unk>"
    )
