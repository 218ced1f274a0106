"""Adaptive draft length against every fixed gamma, on the embedded pair's tasks, one sequence at a time.

Every item is decoded with all settings, in an order that changes from item to item, so that a slow moment of the
machine hits all alike; speed is tokens over wall time, given relative to the best fixed gamma of each task. The last
line of output is one JSON document.
"""

from __future__ import annotations

import argparse
import json
import platform
import random
import time
from pathlib import Path
from typing import Any

import torch
import transformers

import hf_selfjudge  # noqa: F401  (teaches generate the keyword judge=)
from hf_selfjudge import playground
from hf_selfjudge.files import write_text
from hf_selfjudge.playground.evaluate import MAX_NEW_TOKENS, prompt_ids
from hf_selfjudge.playground.world import TASKS, generate

GAMMAS = (1, 2, 3, 4, 5, 6, 8)


def main() -> None:
    """Run the comparison."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=int, default=16, help="held-out items per task")
    parser.add_argument("--judge", action="store_true", help="with the embedded judge instead of exact decoding")
    parser.add_argument("--out", type=Path, help="write the results here as JSON")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    target, draft, tokenizer, judge = playground.load()
    rule = judge if arguments.judge else "exact"
    results = {
        "command": f"python benchmarks/draft_length.py --items {arguments.items}{' --judge' * arguments.judge}",
        "device": f"{platform.machine()} CPU, 1 thread",
        "dtype": "float32",
        "batch": 1,
        "rule": "embedded judge, default threshold" if arguments.judge else "exact",
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
        "tasks": {task: compare((target, draft, tokenizer), rule, task, arguments.items) for task in TASKS},
    }
    if arguments.out:
        write_text(arguments.out, json.dumps(results, indent=2) + "\n")
    print(json.dumps(results))  # noqa: T201


def compare(pair: tuple[Any, Any, Any], rule: Any, task: str, count: int) -> dict[str, Any]:
    """Speeds of all settings on one task."""
    target, draft, tokenizer = pair
    items = generate(task, "test", count + 2, seed=3)
    settings = {str(gamma): {"num_assistant_tokens": gamma} for gamma in GAMMAS}
    settings["adaptive"] = {"num_assistant_tokens": 12, "num_assistant_tokens_schedule": "adaptive"}
    tokens, seconds = dict.fromkeys(settings, 0), dict.fromkeys(settings, 0.0)
    drafted = dict.fromkeys(settings, 0)
    for index, item in enumerate(items):
        prompt = torch.tensor([prompt_ids(tokenizer, item)])
        order = list(settings)
        random.Random(index).shuffle(order)
        for name in order:
            begun = time.perf_counter()
            out = target.generate(
                prompt,
                attention_mask=torch.ones_like(prompt),
                assistant_model=draft,
                judge=rule,
                do_sample=False,
                max_new_tokens=MAX_NEW_TOKENS,
                return_dict_in_generate=True,
                **settings[name],
            )
            if index >= 2:  # the first two warm up
                seconds[name] += time.perf_counter() - begun
                tokens[name] += out.judge_stats.new_tokens
                drafted[name] += out.judge_stats.drafted
    speed = {name: tokens[name] / seconds[name] for name in settings}
    best = max((str(gamma) for gamma in GAMMAS), key=lambda name: speed[name])
    return {
        "tokens_per_s": {name: round(value, 1) for name, value in speed.items()},
        "drafted_per_token": {name: round(drafted[name] / tokens[name], 2) for name in settings},
        "best_fixed": best,
        "adaptive_over_best_fixed": round(speed["adaptive"] / speed[best], 3),
    }


if __name__ == "__main__":
    main()
