"""Tokens per second of a real pair on real prompts: stock generation, and plain, exact and judged in our engine.

    python benchmarks/real_pair/speed.py --target T --draft D --rule 'judge:J@0.5&floor:0.1+digits' \
        --prompts gsm8k-test.jsonl --gamma 20 --out speed.json

Every method answers the same prompts, one at a time, greedily, in `--rounds` rounds, after calls that are not timed;
the stock ones only the first `--slow-prompts`, once. Prompts are the `prompt` or `question` of a jsonl file. The last
line of stdout is one JSON document.
"""

from __future__ import annotations

import argparse
import gzip
import json
import platform
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer

import hf_selfjudge  # noqa: F401  teaches generate the keyword judge=
from hf_selfjudge.decoding.continuation import continue_texts
from hf_selfjudge.evaluation.grammar import parse_rules
from hf_selfjudge.evaluation.judges import Judges
from hf_selfjudge.pipeline.completion import end_tokens

ASK = '\n\nThink step by step, then finish with "The answer is N", where N is a number.'
COUNTS = ("cycles", "accepted", "judged_in")
Answer = tuple[int, Any]
"""Number of new tokens, and the judge's statistics if there are any."""
Methods = dict[str, Callable[[torch.Tensor], Answer]]


def main() -> None:
    """Measure and report."""
    args = _arguments()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    target, draft = (
        AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).to(device).eval()
        for folder in (args.target, args.draft)
    )
    tokenizer = AutoTokenizer.from_pretrained(args.target)
    prompts = [_tokens(tokenizer, text, device) for text in _texts(args.prompts, args.prompts_count)]
    spec = next(spec for spec in parse_rules([args.rule], args.gamma) if spec.method != "exact")
    rule = Judges().rule(spec.points({})[0], tokenizer)
    ours: dict[str, Any] = {"assistant_model": draft, "num_assistant_tokens": args.gamma}
    stock = {**ours, "num_assistant_tokens_schedule": "constant", "assistant_confidence_threshold": 0.0}
    slow = {"plain": _generate(target, args.new_tokens), "stock assisted": _generate(target, args.new_tokens, **stock)}
    fast = {
        "plain, same engine": _continue(target, args.new_tokens),
        "exact": _generate(target, args.new_tokens, **ours, judge="exact"),
        "judge": _generate(target, args.new_tokens, **ours, judge=rule),
    }
    few = prompts[: args.slow_prompts]
    _measure({name: _generate(target, 16, **options) for name, options in (("", {}), ("assisted", stock))}, few[:1])
    found = _measure(slow, few)
    _measure(fast, prompts)  # not counted: the engine captures a graph for every length that comes up, once
    beside_stock = _speed(_measure({"exact": fast["exact"]}, few)["exact"])
    rounds = [_measure(_turned(fast, number), prompts) for number in range(args.rounds)]
    found |= {name: _sum([one[name] for one in rounds]) for name in fast}
    report = _report(args, {name: _figures(total) for name, total in found.items()}, device, dtype)
    report["warmed_up"] = True
    for name, key in (("exact_over_plain", "plain"), ("exact_over_stock_assisted", "stock assisted")):
        report[name] = beside_stock / _speed(found[key])  # on the same prompts
    report["judge_over_exact_by_round"] = [_speed(one["judge"]) / _speed(one["exact"]) for one in rounds]
    if args.out:
        args.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(report))  # noqa: T201


def _generate(target: Any, count: int, **options: Any) -> Callable[[torch.Tensor], Answer]:
    """Answers by `generate`."""

    def run(ids: torch.Tensor) -> Answer:
        out = target.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            max_new_tokens=count,
            return_dict_in_generate=True,
            **options,
        )
        return out.sequences.shape[1] - ids.shape[1], getattr(out, "judge_stats", None)

    return run


def _continue(target: Any, count: int) -> Callable[[torch.Tensor], Answer]:
    """Answers by the target alone in our engine."""

    def run(ids: torch.Tensor) -> Answer:
        (answer,) = continue_texts(target, ids.tolist(), [count], end_tokens(target))
        return len(answer), None

    return run


def _measure(methods: Methods, prompts: Sequence[torch.Tensor]) -> dict[str, dict[str, float]]:
    """Tokens, seconds and counts of some methods, summed over all prompts.

    The methods take turns, so that a machine's moods meet all of them.
    """
    sums: dict[str, dict[str, float]] = {name: {"prompts": len(prompts)} for name in methods}
    for ids in prompts:
        for name, run in methods.items():
            _wait()
            begun = time.perf_counter()
            tokens, stats = run(ids)
            _wait()
            seen = {"seconds": time.perf_counter() - begun, "tokens": tokens}
            seen |= {key: getattr(stats, key) for key in COUNTS if stats is not None}
            sums[name] |= {key: sums[name].get(key, 0.0) + value for key, value in seen.items()}
    return sums


def _turned(methods: Methods, number: int) -> Methods:
    """The methods in another order every round: none is always behind the same other."""
    return dict(reversed(methods.items())) if number % 2 else methods


def _sum(rounds: Sequence[dict[str, float]]) -> dict[str, float]:
    """The sums of all rounds, over the same prompts."""
    return {**{key: sum(one[key] for one in rounds) for key in rounds[0]}, "prompts": rounds[0]["prompts"]}


def _speed(total: dict[str, float]) -> float:
    return total["tokens"] / total["seconds"]


def _figures(total: dict[str, float]) -> dict[str, Any]:
    """One method's line of the report."""
    found: dict[str, Any] = {key: int(total[key]) for key in ("prompts", "tokens")}
    found |= {"seconds": total["seconds"], "tokens_per_s": _speed(total)}
    if "cycles" in total:
        found |= {
            "accepted_per_cycle": total["accepted"] / total["cycles"],
            "tokens_per_target_forward": total["tokens"] / total["cycles"],
            "judged_in": int(total["judged_in"]),
        }
    return found


def _report(args: argparse.Namespace, found: dict[str, Any], device: str, dtype: torch.dtype) -> dict[str, Any]:
    """The figures and what they were made with; the judge's gain is set against what its lengths predict."""
    exact, judge = found["exact"], found["judge"]
    predicted = judge["tokens_per_target_forward"] / exact["tokens_per_target_forward"]
    measured = judge["tokens_per_s"] / exact["tokens_per_s"]
    return {
        "methods": found,
        "exact_over_plain_same_engine": exact["tokens_per_s"] / found["plain, same engine"]["tokens_per_s"],
        "judge_over_exact": measured,
        "predicted_by_lengths": predicted,
        "measured_over_predicted": measured / predicted,
        "gamma": args.gamma,
        "rule": args.rule,
        "batch": 1,
        "rounds": args.rounds,
        "new_tokens": args.new_tokens,
        "device": torch.cuda.get_device_name() if device == "cuda" else platform.machine(),
        "dtype": str(dtype).removeprefix("torch."),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }


def _texts(path: Path, count: int) -> list[str]:
    opened: Callable[..., Any] = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt", encoding="utf-8") as file:
        rows = [json.loads(line) for line, _ in zip(file, range(count), strict=False)]
    return [row["prompt"] if "prompt" in row else row["question"] + ASK for row in rows]


def _tokens(tokenizer: Any, text: str, device: str) -> torch.Tensor:
    chat = [{"role": "user", "content": text}]
    ids = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False)
    return torch.tensor([ids], device=device)


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", required=True)
    parser.add_argument("--draft", required=True)
    parser.add_argument("--rule", required=True, help="one point in the grammar of `selfjudge compare`")
    parser.add_argument("--prompts", type=Path, required=True)
    parser.add_argument("--prompts-count", type=int, default=24)
    parser.add_argument("--slow-prompts", type=int, default=3, help="of the stock methods")
    parser.add_argument("--rounds", type=int, default=3, help="over all prompts, after one that is not timed")
    parser.add_argument("--gamma", type=int, default=20)
    parser.add_argument("--new-tokens", type=int, default=256)
    parser.add_argument("--out", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    main()
