"""The playground's tokenizer: byte-level BPE over generated text, with single digits and a chat template."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

from .world import TASKS, stream

PAD, BOS, USER, ASSISTANT, END = "<|pad|>", "<|bos|>", "<|user|>", "<|assistant|>", "<|end|>"
SPECIAL_TOKENS = (PAD, BOS, USER, ASSISTANT, END)
VOCABULARY = 2048

CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if message['role'] not in ['user', 'assistant'] %}"
    "{{ raise_exception('the playground knows the roles user and assistant, not ' + message['role']) }}{% endif %}"
    "{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)

# GPT-2's pattern, but a digit is always a piece of its own (with the space before it, if there is one): a model that
# sees numbers digit by digit can learn to calculate, and a wrong digit is one wrong token.
_PIECES = r"'(?:s|t|re|ve|m|ll|d)| ?\p{L}+| ?\p{N}| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


def chat(prompt: str, response: str) -> str:
    """A whole conversation as the chat template writes it; the fast path for training data (a test compares them)."""
    return f"{BOS}{USER}{prompt}{END}{ASSISTANT}{response}{END}"


def _sample(per_task: int, seed: int) -> Iterator[str]:
    """Training text for the tokenizer: the same number of items of every task."""
    for task in TASKS:
        for _, prompt, response in islice(stream(task, "train", f"tokenizer-{seed}"), per_task):
            yield f"{prompt}\n{response}"


def build_tokenizer(vocabulary: int = VOCABULARY, per_task: int = 10_000, seed: int = 0) -> Any:
    """Train the tokenizer on generated items; the same arguments give the same tokenizer.

    Args:
        vocabulary: number of tokens, special ones included; small, as embeddings count among a model's parameters.
        per_task: items of each task to learn from.
        seed: seed of those items.

    Returns:
        A `PreTrainedTokenizerFast`, to be saved with `save_pretrained`.
    """
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    if vocabulary < 256 + len(SPECIAL_TOKENS):
        raise ValueError(f"a vocabulary of {vocabulary} is too small: bytes and special tokens alone are 261")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_PIECES), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_sample(per_task, seed), trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        bos_token=BOS,
        eos_token=END,
        extra_special_tokens=[USER, ASSISTANT],
        padding_side="left",
        model_max_length=512,
        clean_up_tokenization_spaces=False,
    )
    fast.chat_template = CHAT_TEMPLATE
    return fast
