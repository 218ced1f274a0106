"""What answers were made with: told on the page, and not mixed within one comparison without the user's word."""

from __future__ import annotations

import json
import platform
from collections.abc import Iterable
from typing import Any

KEYS = ("hardware", "hf_selfjudge", "torch", "transformers")
"""What must be the same for all answers of one comparison."""


def here(device: str, batch_size: int) -> dict[str, Any]:
    """What answers are made with on this machine."""
    import torch
    import transformers

    from .. import __version__

    cuda = device.startswith("cuda")
    return {
        "hardware": torch.cuda.get_device_name(device) if cuda else f"{platform.machine()} CPU",
        "hf_selfjudge": __version__,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "batch_size": batch_size,
    }


def kinds(made: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The different ones of what answers were made with, each with how many results it has; most first."""
    counts: dict[str, int] = {}
    for one in made:
        text = json.dumps({key: one.get(key, "unknown") for key in (*KEYS, "batch_size")}, sort_keys=True)
        counts[text] = counts.get(text, 0) + 1
    return [{**json.loads(text), "results": counts[text]} for text in sorted(counts, key=lambda text: -counts[text])]


def differences(made: Iterable[dict[str, Any]]) -> dict[str, list[str]]:
    """By key, the values of what answers were made with, where there is more than one."""
    listed = list(made)
    found = {key: list(dict.fromkeys(str(one.get(key, "unknown")) for one in listed)) for key in KEYS}
    return {key: values for key, values in found.items() if len(values) > 1}


def in_words(differing: dict[str, list[str]]) -> str:
    """Differences as a list in words."""
    return "; ".join(f"{key} {' and '.join(values)}" for key, values in differing.items())
