"""A response in the terminal, each token coloured by who accepted it."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.text import Text

from .statistics import JudgeStats, Source

STYLES = {
    Source.MATCHED: "green",
    Source.JUDGED: "bold black on yellow",
    Source.CORRECTION: "bold magenta",
    Source.BONUS: "blue",
}
"""Colours that stay apart for colour-blind readers; the judge's tokens also differ by background."""


def render_response(tokens: list[int], stats: JudgeStats, tokenizer: Any, skip_special_tokens: bool = False) -> Text:
    """The response as rich text: green where the draft matched, yellow where the judge accepted, else the target's own.

    Args:
        tokens: the new tokens (`out.sequences[0, prompt_length:]` as a list).
        stats: the call's statistics (`out.judge_stats`).
        tokenizer: the target's tokenizer.
        skip_special_tokens: leave out the end-of-sequence token and the like.
    """
    if len(tokens) != len(stats.sources):
        raise ValueError(
            f"{len(tokens)} tokens were given, but the statistics tell of {len(stats.sources)} new tokens."
        )
    text = Text()
    start = 0
    while start < len(tokens):
        # tokens that share a character (at most four bytes of UTF-8) decode only together; a broken one stays alone
        ends = range(start + 1, min(start + 4, len(tokens)) + 1)
        end = next((e for e in ends if "\ufffd" not in tokenizer.decode(tokens[start:e])), start + 1)
        piece = tokenizer.decode(tokens[start:end], skip_special_tokens=skip_special_tokens)
        text.append(piece, style=STYLES[stats.sources[end - 1]])
        start = end
    return text


def legend() -> Text:
    """What the colours mean."""
    text = Text()
    for source, meaning in (
        (Source.MATCHED, "draft, matches"),
        (Source.JUDGED, "draft, accepted by the judge"),
        (Source.CORRECTION, "target's correction"),
        (Source.BONUS, "target's bonus"),
    ):
        text.append(f" {meaning} ", style=STYLES[source])
        text.append("  ")
    return text


def print_response(tokens: list[int], stats: JudgeStats, tokenizer: Any, console: Console | None = None) -> None:
    """Print `render_response` and the legend."""
    console = console or Console()
    console.print(render_response(tokens, stats, tokenizer))
    console.print(legend())
