"""The first stage: from sources to chosen, tokenised and split prompts.

    load_prompts(PromptSettings(prompts=("gsm8k:500", "dolly:500", "my.jsonl")), tokenizer, context, max_new_tokens)

What a source can be stands in `sources`. Everything random is an order by hashes of the seed and the prompt's words,
the same on every machine: a larger COUNT only adds prompts, and a prompt stays in its split whatever stands beside it.
Only where a split would be empty are prompts moved. A prompt that comes twice is kept once, so none is in two splits.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from .settings import PromptSettings
from .sources.dataset_rows import read_prompts
from .sources.language import Source, describe_presets, parse_sources
from .sources.mapping import RawPrompt, content_hash

if TYPE_CHECKING:
    from .records import Prompt  # torch comes with it, and --help must not wait for that

__all__ = ["PromptSet", "describe_presets", "load_prompts"]

HASHES = 2**64

log = logging.getLogger(__name__)
Encode = Callable[[RawPrompt], list[int]]


@dataclass(frozen=True)
class PromptSet:
    """The prompts of a build, and how many were left out."""

    prompts: list[Prompt]
    """By source in the order given, within a source in an order fixed by the seed."""
    skipped: dict[str, int]
    """How many were left out, by source and reason, such as `gsm8k: longer than 512 tokens`."""


def load_prompts(settings: PromptSettings, tokenizer: Any, context: int | None, max_new_tokens: int) -> PromptSet:
    """Read, choose, tokenise and split the prompts of all sources.

    `context` is the number of positions the target has, None for no limit; a prompt leaves `max_new_tokens` of them.

    Raises:
        ValueError: for sources that cannot be understood, hold too little or fit nowhere.
        FileNotFoundError: for a file that is not there or a Hub dataset that cannot be had.
        ImportError: if a source needs the library `datasets` and it is not installed.
    """
    sources = parse_sources(settings.prompts)
    limit = _longest(settings, context, max_new_tokens)
    encode = encoder(tokenizer, settings.system)
    skipped: Counter[str] = Counter()
    seen: set[int] = set()
    prompts: list[Prompt] = []
    for source in sources:
        prompts += _choose(source, settings.seed, encode, limit, seen, skipped)
    return PromptSet(_split(prompts, settings), dict(skipped))


def _longest(settings: PromptSettings, context: int | None, max_new_tokens: int) -> int | None:
    """The most tokens a prompt may have."""
    limits = [] if settings.max_prompt_tokens is None else [settings.max_prompt_tokens]
    if context is not None:
        if context <= max_new_tokens:
            raise ValueError(
                f"max_new_tokens is {max_new_tokens}, expected less than the target's context of {context} positions, "
                "so that there is room for a prompt; lower it."
            )
        limits.append(context - max_new_tokens)
    return min(limits, default=None)


def _choose(
    source: Source, seed: int, encode: Encode, limit: int | None, seen: set[int], skipped: Counter[str]
) -> list[Prompt]:
    """COUNT prompts of a source that can be used, or all of them; `seen` and `skipped` are brought up to date."""
    from .records import Prompt

    rows: Iterable[RawPrompt] = read_prompts(source, seed)
    if source.task is None:  # the playground's are random already, and never end
        rows = sorted(rows, key=lambda row: content_hash(row.text, "choice", seed))
    reasons: Counter[str] = Counter()
    chosen: list[Prompt] = []
    for row in rows:
        if len(chosen) == source.count:
            break
        if not row.messages:
            reasons["empty"] += 1
            continue
        words = content_hash(row.text)
        if words in seen:
            reasons["duplicate"] += 1
            continue
        tokens = encode(row)
        if limit is not None and len(tokens) > limit:
            reasons[f"longer than {limit} tokens"] += 1
            continue
        seen.add(words)
        chosen.append(Prompt(-1, source.name, "train", row.text, tokens, row.checker, row.reference))
    _refuse_too_few(source, len(chosen), reasons)
    skipped.update({f"{source.name}: {reason}": count for reason, count in reasons.items()})
    return chosen


def _refuse_too_few(source: Source, found: int, reasons: Counter[str]) -> None:
    why = "".join(f", {count} {reason}" for reason, count in reasons.items())
    if source.count is not None and found < source.count:
        way_out = f"ask for at most {found}, or leave COUNT out to take all" if found else "see why they were left out"
        raise ValueError(
            f"{source.spec}: {source.count} prompts were asked for, {found} of {found + reasons.total()} can be used"
            f"{why}; {way_out}."
        )
    if not found:
        raise ValueError(
            f"{source.spec}: none of {reasons.total()} prompts can be used{why}; expected at least one. Check the "
            "mapping, raise max_prompt_tokens or lower max_new_tokens."
        )


def encoder(tokenizer: Any, system: str | None) -> Encode:
    """What turns a prompt into tokens, the generation header included."""
    templated = getattr(tokenizer, "chat_template", None) is not None
    if not templated:
        log.warning("The tokenizer has no chat template: prompts are read as plain text.")

    def encode(row: RawPrompt) -> list[int]:
        messages = list(row.messages)
        if system is not None and messages[0]["role"] != "system":
            messages.insert(0, {"role": "system", "content": system})
        tokens = _encode_chat(tokenizer, messages) if templated else _encode_plain(tokenizer, messages)
        if tokens[:2] == [tokenizer.bos_token_id] * 2:  # the text began with the token's own name
            tokens = tokens[1:]
        return tokens

    return encode


def _encode_chat(tokenizer: Any, messages: list[dict[str, str]]) -> list[int]:
    from jinja2 import TemplateError

    try:
        quiet = {"verbose": False}  # a prompt that is too long is skipped and counted, not warned about
        return list(
            tokenizer.apply_chat_template(
                messages, add_generation_prompt=True, return_dict=False, tokenizer_kwargs=quiet
            )
        )
    except TemplateError as error:
        roles = ", ".join(message["role"] for message in messages)
        raise ValueError(
            f"The tokenizer's chat template refuses a chat of {roles}: {error}. Leave out the system message, or use "
            "prompts whose roles it knows."
        ) from None


def _encode_plain(tokenizer: Any, messages: list[dict[str, str]]) -> list[int]:
    """The texts below each other; a chat of several turns with its roles, and the answer's in front of the answer."""
    first = 1 if messages[0]["role"] == "system" else 0
    parts = [message["content"] for message in messages[:first]]
    if len(messages) == first + 1:
        parts.append(messages[first]["content"])
    else:
        parts += [f"{message['role'].capitalize()}: {message['content']}" for message in messages[first:]]
        parts.append("Assistant:")
    tokens = list(tokenizer("\n\n".join(parts), verbose=False)["input_ids"])
    # some tokenizers close every text, and a prompt is not at its end
    return tokens[:-1] if len(tokens) > 1 and tokens[-1] == tokenizer.eos_token_id else tokens


def _split(prompts: Sequence[Prompt], settings: PromptSettings) -> list[Prompt]:
    """Every prompt with its place and its split; per source, and over all, no split is empty if it can be helped."""
    from .records import SPLITS

    if len(prompts) < len(SPLITS):
        raise ValueError(f"{len(prompts)} prompts can be used, expected at least {len(SPLITS)}: one each for "
                         f"{', '.join(SPLITS)}. Give more prompts.")  # fmt: skip
    draws = [content_hash(prompt.text, "split", settings.seed) / HASHES for prompt in prompts]
    splits = [_split_of(draw, settings) for draw in draws]
    groups: dict[str, list[int]] = {}
    for place, prompt in enumerate(prompts):
        groups.setdefault(prompt.source, []).append(place)
    for members in [*groups.values(), list(range(len(prompts)))]:
        _fill_empty_splits(members, splits, draws, SPLITS)
    return [
        replace(prompt, prompt_id=place, split=split)
        for place, (prompt, split) in enumerate(zip(prompts, splits, strict=True))
    ]


def _split_of(draw: float, settings: PromptSettings) -> str:
    if draw < settings.validation:
        return "validation"
    return "calibration" if draw < settings.validation + settings.calibration else "train"


def _fill_empty_splits(members: Sequence[int], splits: list[str], draws: list[float], names: Sequence[str]) -> None:
    """Move a prompt from the largest split into each empty one, in place."""
    if len(members) < len(names):
        return
    for name in names:
        counts = Counter(splits[place] for place in members)
        if not counts[name]:
            largest = max(names, key=lambda split: counts[split])
            moved = min((place for place in members if splits[place] == largest), key=lambda place: draws[place])
            splits[moved] = name
