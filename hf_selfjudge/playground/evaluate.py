"""Score the playground's models: `python -m hf_selfjudge.playground.evaluate --models DIR`.

Reports per task: the scores of both models' greedy answers, how often the draft's top token is the target's
(teacher-forced on the target's answer), and answer preservation: the share of single substitutions of the draft's token
in right answers after which the target, finishing greedily, is still right.

The pipeline's stages do the work; knows nothing of judges.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hf_selfjudge.files import write_text
from hf_selfjudge.pipeline.autojudge import autojudge
from hf_selfjudge.pipeline.completion import complete
from hf_selfjudge.pipeline.mine import mine
from hf_selfjudge.pipeline.records import Mismatches, Outcomes, Prompt, Response
from hf_selfjudge.pipeline.respond import respond
from hf_selfjudge.pipeline.score import score
from hf_selfjudge.pipeline.settings import LabelSettings, MineSettings, RespondSettings, ScoreSettings

from .tasks import MAX_NEW_TOKENS
from .world import TASKS, Item, generate
from .world import score as task_score


def prompt_ids(tokenizer: Any, item: Item) -> list[int]:
    """An item's prompt as the chat template writes it, with the generation header."""
    message = [{"role": "user", "content": item.prompt}]
    text = tokenizer.apply_chat_template(message, add_generation_prompt=True, tokenize=False)
    ids: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
    return ids


def greedy_answers(model: Any, tokenizer: Any, items: Sequence[Item], batch_size: int = 64) -> list[str]:
    """The model's greedy answer to every item, as text."""
    prompts = [prompt_ids(tokenizer, item) for item in items]
    answers = dict(complete(model, prompts, MAX_NEW_TOKENS, batch_size))
    return [tokenizer.decode(answers[index], skip_special_tokens=True) for index in range(len(items))]


def as_prompts(tokenizer: Any, items: Sequence[Item]) -> list[Prompt]:
    """The items as the pipeline's stages take them, each with its checker."""
    return [
        Prompt(
            index,
            f"playground/{item.task}",
            "calibration",
            item.prompt,
            prompt_ids(tokenizer, item),
            "playground",
            {"task": item.task, "facts": item.facts},
        )
        for index, item in enumerate(items)
    ]


def target_probabilities(target: Any, responses: Sequence[Response], mismatches: Mismatches) -> Tensor:
    """What the target gives the draft's token at each mismatch. (rows,)"""
    settings = ScoreSettings(lengths=(0,), features=("log_p",))  # no suffix: only the token itself counts
    return score(target, responses, mismatches, settings).features["log_p"].exp()


def preservation(
    target: Any,
    tokenizer: Any,
    items: Sequence[Item],
    responses: Sequence[Response],
    mismatches: Mismatches,
    batch_size: int,
) -> Outcomes:
    """For each mismatch in a right answer: is the target right when it goes on from the draft's token?"""
    prompts = as_prompts(tokenizer, items)
    return autojudge(target, tokenizer, prompts, responses, mismatches, LabelSettings(), MAX_NEW_TOKENS, batch_size)


def ranking_auc(values: Sequence[float], labels: Sequence[bool]) -> float | None:
    """Probability that a value of a true label is above one of a false label (ties count half); None without both."""
    positives = [v for v, label in zip(values, labels, strict=True) if label]
    negatives = [v for v, label in zip(values, labels, strict=True) if not label]
    if not positives or not negatives:
        return None
    wins = sum((p > n) + 0.5 * (p == n) for p in positives for n in negatives)
    return wins / (len(positives) * len(negatives))


def evaluate_task(
    target: Any, draft: Any, tokenizer: Any, items: Sequence[Item], batch_size: int, substitutions: int
) -> dict[str, Any]:
    """All figures for the items of one task; score and preservation are None where the task has no score."""
    prompts = as_prompts(tokenizer, items)
    responses = respond(target, prompts, RespondSettings(MAX_NEW_TOKENS, batch_size))
    texts = [tokenizer.decode(response.answer, skip_special_tokens=True) for response in responses]
    mismatches = mine(draft, responses, MineSettings(look_ahead=0, mine_batch_size=batch_size))
    probabilities = target_probabilities(target, responses, mismatches)  # (rows,)
    positions, count = sum(len(response.answer) for response in responses), len(mismatches)
    result: dict[str, Any] = {
        "items": len(items),
        "target_score": _mean_score(items, texts),
        "draft_score": _mean_score(items, greedy_answers(draft, tokenizer, items, batch_size)),
        "response_tokens": positions / len(items),
        "agreement": 1.0 - count / positions,
        "mismatches": count,
        "mismatches_below_5_percent": int((probabilities < 0.05).sum()) / max(1, count),
    }
    # Preservation is asked of answers that were right; a wrong answer that stays wrong says nothing.
    right = [index for index, text in enumerate(texts) if task_score(items[index], text) == 1.0]
    picked = _pick(mismatches, right, substitutions)
    found = preservation(target, tokenizer, items, responses, mismatches.select(picked), batch_size)
    picked = picked[torch.isin(mismatches.prompt_ids[picked], found.prompt_ids)]  # not those that did not end
    if len(picked):
        kept = found.kept.bool().tolist()
        result["substitutions"] = len(kept)
        result["preserved"] = sum(kept) / len(kept)
        # How well the target's probability alone tells harmless substitutions from harmful ones.
        result["probability_auc"] = ranking_auc(probabilities[picked].tolist(), kept)
    return result


def _pick(mismatches: Mismatches, prompts: Sequence[int], count: int) -> Tensor:
    """A random choice of `count` mismatches of some prompts, as sorted rows."""
    candidates = torch.isin(mismatches.prompt_ids, torch.tensor(prompts, dtype=torch.long)).nonzero().squeeze(-1)
    picked = random.Random(0).sample(candidates.tolist(), min(count, len(candidates)))
    return torch.tensor(sorted(picked), dtype=torch.long)


def _mean_score(items: Sequence[Item], texts: Sequence[str]) -> float | None:
    """Mean task score of answers, or None for a task without one."""
    scores = [task_score(item, text) for item, text in zip(items, texts, strict=True)]
    known = [value for value in scores if value is not None]
    return sum(known) / len(known) if known else None


def show(results: dict[str, dict[str, Any]]) -> None:
    """Print the figures as a table."""
    from rich.console import Console
    from rich.table import Table

    columns = ("target_score", "draft_score", "agreement", "preserved", "probability_auc", "mismatches_below_5_percent")
    table = Table(title="playground pair, held-out items, greedy", caption="shares in %")
    table.add_column("task")
    for name in columns:
        table.add_column(name.replace("_", " "), justify="right")
    for task, result in results.items():
        cells = [result.get(name) for name in columns]
        table.add_row(task, *("-" if cell is None else f"{100 * cell:.1f}" for cell in cells))
    Console().print(table)


def main(argv: list[str] | None = None) -> None:
    """Command line; the last line of stdout is one JSON document with the figures."""
    parser = argparse.ArgumentParser(prog="python -m hf_selfjudge.playground.evaluate", description=__doc__)
    parser.add_argument("--models", type=Path, required=True, help="folder with the folders target and draft")
    parser.add_argument("--items", type=int, default=500, help="held-out items of each task")
    parser.add_argument("--substitutions", type=int, default=500, help="mismatches of each task to substitute")
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--seed", type=int, default=0, help="seed of the items")
    parser.add_argument(
        "--output", type=Path, help="JSON file to write; default: evaluation.json in the models' folder"
    )
    args = parser.parse_args(argv)
    from transformers import AutoModelForCausalLM, AutoTokenizer

    device = "cuda" if torch.cuda.is_available() else "cpu"
    tokenizer = AutoTokenizer.from_pretrained(args.models / "target")
    # float32 even on a GPU: the models are tiny, and padding then changes no greedy choice in practice.
    target, draft = (
        AutoModelForCausalLM.from_pretrained(args.models / name, dtype=torch.float32).to(device).eval()
        for name in ("target", "draft")
    )
    results = {}
    for task in TASKS:
        items = generate(task, "test", args.items, args.seed)
        results[task] = evaluate_task(target, draft, tokenizer, items, args.batch_size, args.substitutions)
    show(results)
    document = json.dumps(results)
    write_text(args.output or args.models / "evaluation.json", document + "\n")
    sys.stdout.write(document + "\n")


if __name__ == "__main__":
    main()
