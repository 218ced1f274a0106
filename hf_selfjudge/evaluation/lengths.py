"""Which prompts are short enough: the same items for all rules, known also where the tokenizer is not."""

from __future__ import annotations

import json
from pathlib import Path

from ..files import write_text
from .decode import tokenize
from .providers import Task, model_folder
from .store import mark


def short_prompts(out: Path, target: str, fingerprint: str, task: Task, most: int) -> tuple[int, ...]:
    """The prompts of at most `most` tokens, by their index.

    Args:
        out: the comparison's folder, which keeps the lengths.
        target: the target as the user wrote it, whose tokenizer counts.
        fingerprint: the target's.
        task: the prompts.
        most: tokens, the chat template's included.

    Raises:
        ValueError: if none is short enough.
    """
    path = out / "results" / f"lengths-{mark([fingerprint, task.chat, list(task.prompts)])}.json"
    if not path.is_file():
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(model_folder(target, "target"))
        write_text(path, json.dumps([*map(len, tokenize(tokenizer, task))]) + "\n")
    lengths: list[int] = json.loads(path.read_text(encoding="utf-8"))
    keep = tuple(index for index, length in enumerate(lengths) if length <= most)
    if not keep:
        raise ValueError(
            f"{task.name}: the shortest of {len(lengths)} prompts has {min(lengths)} tokens, and max-prompt-tokens is "
            f"{most}; give a larger number."
        )
    return keep
