"""A chat model in place of an NLI model: asked whether an article supports a text, it answers Yes or No.

The answer is read off the logits of its first token, so nothing is generated. How far to trust it: `fc_check`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

QUESTION = """Article:
{article}

Summary:
{text}

Does the article support everything that the summary says? Check every name, number and event. Answer with one word: \
Yes or No."""
TOKENS = 16_384
"""Prompt tokens of one batch, padding included: the longer the articles, the fewer share a batch."""
LONGEST = 4096
"""Tokens of a prompt; a longer article loses its end."""


def support(asked: Sequence[tuple[str, str]], folder: str) -> list[float]:
    """P(Yes) / (P(Yes) + P(No)) for each (article, text), by the chat model in this folder or Hub id."""
    import torch

    if not asked:
        return []
    model, tokenizer, answers = _load(folder)
    prompts = [_prompt(tokenizer, article, text) for article, text in asked]
    found = [0.0] * len(asked)
    with torch.no_grad():
        for batch in batches([*map(len, prompts)]):
            inputs = tokenizer.pad({"input_ids": [prompts[at] for at in batch]}, return_tensors="pt", padding=True)
            inputs = inputs.to(model.device)
            places = (inputs["attention_mask"].cumsum(-1) - 1).clamp(min=0)  # padding on the left counts for nothing
            out = model(**inputs, position_ids=places, use_cache=False, logits_to_keep=1)
            logits = out.logits[:, -1].float()  # (batch, vocab)
            # the probability of a word is that of all tokens it may begin with
            yes, no = (logits[:, ids].logsumexp(-1) for ids in answers)  # (batch,) each
            for at, value in zip(batch, (yes - no).sigmoid().tolist(), strict=True):
                found[at] = value
    return found


def batches(lengths: Sequence[int]) -> list[list[int]]:
    """Places of prompts in batches of similar length, the longest first, each of `TOKENS` at most."""
    order = sorted(range(len(lengths)), key=lambda at: -lengths[at])
    found: list[list[int]] = []
    for at in order:
        if found and (len(found[-1]) + 1) * lengths[found[-1][0]] <= TOKENS:
            found[-1].append(at)
        else:
            found.append([at])
    return found


def answer_tokens(tokenizer: Any) -> tuple[list[int], list[int]]:
    """The tokens that Yes and No may begin with, however they are written; none is both.

    Raises:
        ValueError: if the tokenizer does not tell them apart.
    """
    firsts = []
    for word in ("Yes", "No"):
        written = (word, word.lower(), word.upper(), f" {word}", f" {word.lower()}")
        ids = [tokenizer.encode(text, add_special_tokens=False) for text in written]
        firsts.append({found[0] for found in ids if found and tokenizer.decode(found[:1]).strip()})
    yes, no = (sorted(own - other) for own, other in (firsts, firsts[::-1]))
    if not yes or not no:
        raise ValueError(
            "This model's tokenizer does not tell Yes from No by their first token; take another model behind prompt:"
        )
    return yes, no


def _prompt(tokenizer: Any, article: str, text: str) -> list[int]:
    """The question as the model reads it; of an article that is too long, the end is cut off."""

    def write(article: str) -> list[int]:
        chat = [{"role": "user", "content": QUESTION.format(article=article, text=text)}]
        # a model that thinks first would not answer with its first token
        written = tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False, enable_thinking=False)
        return list(tokenizer(written, add_special_tokens=False)["input_ids"])

    ids = write(article)
    while len(ids) > LONGEST and article:
        article = article[: int(len(article) * 0.98 * LONGEST / len(ids))]
        ids = write(article)
    return ids


@lru_cache(maxsize=1)
def _load(folder: str) -> tuple[Any, Any, tuple[list[int], list[int]]]:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="left")
    if tokenizer.chat_template is None:
        raise ValueError(
            f"{folder} has no chat template; nli_model=prompt:FOLDER wants a model that follows instructions."
        )
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    answers = answer_tokens(tokenizer)
    cuda = torch.cuda.is_available()
    model = AutoModelForCausalLM.from_pretrained(folder, dtype="auto" if cuda else torch.float32).eval()
    return model.to("cuda" if cuda else "cpu"), tokenizer, answers
