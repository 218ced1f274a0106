"""Our loop against transformers' assisted generation: same pair, same acceptance, same run.

Random weights: speed does not depend on them. A logits processor forces the acceptance (the target disagrees at every
sixth position), and both loops draft a fixed gamma and decode exactly, so that they do the same work. Also reports
what the judge costs. The last line of output is one JSON document.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
import transformers
from transformers import LlamaConfig, LlamaForCausalLM

from hf_selfjudge import JudgeConfig, JudgeStats, SelfJudgeVerifier
from hf_selfjudge.files import write_text

SHAPES = {
    # name: (target, draft), each (hidden, intermediate, layers, heads, kv heads, vocabulary)
    "tiny": ((256, 688, 6, 8, 4, 2048), (96, 256, 2, 4, 2, 2048)),
    "smollm2-135m": ((576, 1536, 30, 9, 3, 49152), (192, 512, 4, 3, 1, 49152)),
}


def main() -> None:
    """Run the comparison."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--shapes", nargs="+", choices=sorted(SHAPES), default=sorted(SHAPES), help="model sizes to time"
    )
    parser.add_argument("--gamma", type=int, default=8, help="tokens drafted per block")
    parser.add_argument("--new-tokens", type=int, default=96, help="tokens generated per run")
    parser.add_argument(
        "--repeats", type=int, default=5, help="timed runs of each method, interleaved; the median counts"
    )
    parser.add_argument("--threads", type=int, default=1, help="CPU threads; one is the least noisy")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path, help="write the results here as JSON")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    results = {
        "command": "python benchmarks/assisted.py",
        "device": torch.cuda.get_device_name() if arguments.device == "cuda" else f"{platform.machine()} CPU",
        "threads": torch.get_num_threads(),
        "dtype": "float32" if arguments.device == "cpu" else "bfloat16",
        "batch": 1,
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
        "gamma": arguments.gamma,
        "new_tokens": arguments.new_tokens,
        "repeats": arguments.repeats,
        "shapes": {name: compare(name, arguments) for name in arguments.shapes},
    }
    if arguments.out:
        write_text(arguments.out, json.dumps(results, indent=2) + "\n")
    print(json.dumps(results))  # noqa: T201


def compare(name: str, arguments: argparse.Namespace) -> dict[str, float]:
    """Time plain, stock assisted, our exact loop and our loop with a judge that never accepts."""
    dtype = torch.float32 if arguments.device == "cpu" else torch.bfloat16
    target, draft = (_model(*shape, dtype=dtype, device=arguments.device) for shape in SHAPES[name])
    prompt = torch.randint(3, target.config.vocab_size, (1, 64), device=arguments.device)
    judge = SelfJudgeVerifier(JudgeConfig(hidden_size=target.config.hidden_size)).with_threshold(1.0)
    stats: list[JudgeStats] = []
    force = _Agreement(target, draft, period=6)
    common = {
        "attention_mask": torch.ones_like(prompt),
        "max_new_tokens": arguments.new_tokens,
        "do_sample": False,
        "logits_processor": force.processors,
    }
    draft.generation_config.num_assistant_tokens = arguments.gamma
    draft.generation_config.num_assistant_tokens_schedule = "constant"
    draft.generation_config.assistant_confidence_threshold = 0.0
    methods: dict[str, Callable[[], torch.Tensor]] = {
        "plain": lambda: target.generate(prompt, **common),
        "stock_assisted": lambda: target.generate(prompt, assistant_model=draft, **common),
        "ours_exact": lambda: target.generate(
            prompt, assistant_model=draft, judge=judge, judge_mode="alignment-only", **common
        ),
        "ours_judge": lambda: target.generate(
            prompt, assistant_model=draft, judge=judge, judge_stats_callback=stats.append, **common
        ),
    }
    outputs = {method: run() for method, run in methods.items()}  # warm-up, and the proof of equal work
    for method, output in outputs.items():
        if not torch.equal(output, outputs["plain"]):
            raise RuntimeError(f"{method} did not produce plain decoding's tokens")
    stats.clear()
    seconds: dict[str, list[float]] = {method: [] for method in methods}
    for _ in range(arguments.repeats):
        for method, run in methods.items():
            begun = time.perf_counter()
            run()
            seconds[method].append(time.perf_counter() - begun)
    total = sum(stats[1:], stats[0])
    median = {method: statistics.median(values) for method, values in seconds.items()}
    return {
        "target_parameters": target.num_parameters(),
        "draft_parameters": draft.num_parameters(),
        "accepted_per_cycle": round(total.accepted_per_cycle, 3),
        "tokens_per_target_forward": round(total.tokens_per_target_forward, 3),
        "exact_over_stock_assisted": round(median["stock_assisted"] / median["ours_exact"], 3),
        "exact_over_plain": round(median["plain"] / median["ours_exact"], 3),
        "judge_over_stock_assisted": round(median["stock_assisted"] / median["ours_judge"], 3),
        "judge_share_of_loop": round(total.seconds["judge"] / total.seconds["total"], 5),
    }


class _Agreement:
    """Forces acceptance: the draft always says token 1, the target too except at every `period`-th position."""

    def __init__(self, target: LlamaForCausalLM, draft: LlamaForCausalLM, period: int) -> None:
        self.drafting = False
        self.period = period
        self.processors = transformers.LogitsProcessorList([self])
        # both loops run the draft by its forward, one token at a time
        forward = draft.forward

        def drafting_forward(*args: object, **kwargs: object) -> object:
            self.drafting = True
            return forward(*args, **kwargs)

        draft.forward = drafting_forward
        original = target.forward

        def target_forward(*args: object, **kwargs: object) -> object:
            self.drafting = False
            return original(*args, **kwargs)

        target.forward = target_forward

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Raise one token far above the rest."""
        disagrees = not self.drafting and input_ids.shape[1] % self.period == 0
        scores[:, 2 if disagrees else 1] = 1e4
        return scores


def _model(
    hidden: int, inner: int, layers: int, heads: int, kv_heads: int, vocabulary: int, dtype: torch.dtype, device: str
) -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=hidden,
        intermediate_size=inner,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
        eos_token_id=None,
        pad_token_id=0,
    )
    return LlamaForCausalLM(config).to(device=device, dtype=dtype).eval()


if __name__ == "__main__":
    main()
