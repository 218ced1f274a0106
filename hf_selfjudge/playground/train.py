"""Train the playground's target and draft: `python -m hf_selfjudge.playground.train --out DIR`.

Writes `DIR/target` and `DIR/draft`: a plain bf16 Llama checkpoint each, with tokenizer, `recipe.json` (settings, data,
time, hardware, losses), `history.jsonl` and, where matplotlib is installed, `loss.png`. Working data and checkpoints to
resume from go to `DIR/work`. The judge is not trained here.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import platform
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from hf_selfjudge.files import write_text

from .checkpoints import latest_checkpoint, load_checkpoint, save_checkpoint
from .corpus import Batches, Corpus, CorpusConfig, build_corpus, prepare_corpus
from .recipe import PRESETS, Preset, Recipe, build_model
from .tokenizer import build_tokenizer


def train_model(recipe: Recipe, preset: Preset, out: Path, *, resume: bool = False, workers: int = 1) -> dict[str, Any]:
    """Train one model of the pair and write its checkpoint; returns what `recipe.json` holds.

    Args:
        recipe: the model's settings.
        preset: where the tokenizer's settings and the number of test items come from.
        out: folder of the pair.
        resume: go on from the last checkpoint under `out`, if there is one.
        workers: processes that prepare the data.
    """
    started = time.perf_counter()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    tokenizer, tokenizer_dir = _prepare_tokenizer(preset, out)
    data = CorpusConfig("train", recipe.items, recipe.seed, recipe.fidelity)
    corpus = prepare_corpus(data, tokenizer_dir, out / "work" / recipe.name / "data", workers)
    batches = Batches(corpus, recipe.batch_tokens, recipe.seed, tokenizer.pad_token_id, device)
    prepared = time.perf_counter() - started

    model = build_model(recipe, tokenizer).to(device)
    optimizer = _build_optimizer(model, recipe, device)
    run = _run(recipe, model, optimizer, batches, out, resume)

    test_config = CorpusConfig("test", preset.test_items, recipe.seed)
    test = Batches(build_corpus(test_config, tokenizer_dir), recipe.batch_tokens, 0, tokenizer.pad_token_id, device)
    report = {
        "recipe": asdict(recipe),
        "parameters": sum(value.numel() for value in model.parameters()),
        "vocabulary": len(tokenizer),
        "data": _describe(corpus),
        "test_loss": _test_loss(model, test, device),
        "seconds_preparing": round(prepared, 1),
        **run,
        "hardware": torch.cuda.get_device_name() if device.type == "cuda" else f"{platform.machine()} CPU",
        "versions": _versions(),
    }
    _write_model(model, tokenizer, out / recipe.name, report)
    return report


def _prepare_tokenizer(preset: Preset, out: Path) -> tuple[Any, Path]:
    """The pair's tokenizer, trained anew (it takes seconds and is deterministic) and saved under `out/work`."""
    folder = out / "work" / "tokenizer"
    tokenizer = build_tokenizer(preset.vocabulary, preset.tokenizer_items)
    tokenizer.save_pretrained(folder)
    return tokenizer, folder


def _build_optimizer(model: torch.nn.Module, recipe: Recipe, device: torch.device) -> torch.optim.Optimizer:
    """AdamW with weight decay on matrices only."""
    matrices = [value for value in model.parameters() if value.ndim > 1]
    vectors = [value for value in model.parameters() if value.ndim <= 1]
    groups = [{"params": matrices, "weight_decay": recipe.weight_decay}, {"params": vectors, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, recipe.learning_rate, betas=(0.9, recipe.beta2), fused=device.type == "cuda")


def _loss(model: Any, ids: torch.Tensor, answer: torch.Tensor, prompt_weight: float, pad: int) -> torch.Tensor:
    """Mean cross-entropy of the next tokens that count: response tokens, and prompt tokens if they have a weight.

    No attention mask: padding is at the right end, where causal attention never looks from a token that counts.
    """
    hidden = model.model(input_ids=ids, use_cache=False).last_hidden_state[:, :-1]  # (rows, width - 1, hidden)
    target = ids[:, 1:]
    weight = answer[:, 1:].float()
    if prompt_weight:
        weight = torch.where(answer[:, 1:] | (target == pad), weight, prompt_weight)
    counts = weight > 0
    logits = model.lm_head(hidden[counts]).float()  # (positions that count, vocabulary)
    losses = torch.nn.functional.cross_entropy(logits, target[counts], reduction="none")
    return (losses * weight[counts]).sum() / weight.sum()


def _run(
    recipe: Recipe, model: Any, optimizer: torch.optim.Optimizer, batches: Batches, out: Path, resume: bool
) -> dict[str, Any]:
    """The training loop; returns steps, tokens, seconds and the last training loss."""
    device = model.device
    folder = out / "work" / recipe.name / "checkpoints"
    history = _History(out / recipe.name / "history.jsonl")
    found = latest_checkpoint(folder) if resume else None
    state: dict[str, Any] = {"step": 0, "tokens": 0, "seconds": 0.0, "recipe": asdict(recipe)}
    if found is not None:
        state = load_checkpoint(found, model, optimizer)
        _check_same(state["recipe"], recipe)
    history.keep(state["step"])
    if recipe.compile:
        model.model.compile(dynamic=True)
    model.train()
    begun = time.perf_counter() - state["seconds"]
    running = torch.zeros((), device=device)
    while (progress := _progress(recipe, state["step"], time.perf_counter() - begun)) < 1.0:
        rate = recipe.rate(state["step"], progress)
        for group in optimizer.param_groups:
            group["lr"] = rate
        ids, answer = batches(state["step"])
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            loss = _loss(model, ids, answer, recipe.prompt_weight, model.config.pad_token_id)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), recipe.clip)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        running += loss.detach()
        state["step"] += 1
        state["tokens"] += ids.numel()
        if state["step"] % recipe.log_every == 0:
            # Reading the loss waits for the GPU, so the clock that steers the schedule stays honest.
            mean = float(running) / recipe.log_every
            state["seconds"] = time.perf_counter() - begun
            history.add({**{k: state[k] for k in ("step", "tokens", "seconds")}, "loss": mean, "rate": rate})
            running.zero_()
        if state["step"] % recipe.checkpoint_every == 0:
            save_checkpoint(folder, model, optimizer, state)
    seconds = time.perf_counter() - begun
    return {"steps": state["step"], "tokens": state["tokens"], "seconds": round(seconds, 1), "train_loss": history.last}


def _progress(recipe: Recipe, step: int, seconds: float) -> float:
    """How much of the run is done, by steps or by time, whichever is further."""
    spent = seconds / (60.0 * recipe.max_minutes) if recipe.max_minutes else 0.0
    return max(step / recipe.steps, spent)


def _check_same(before: dict[str, Any], recipe: Recipe) -> None:
    """Refuse to resume a run with settings that would make it another run."""
    changed = [k for k, v in asdict(recipe).items() if before[k] != v and k not in ("max_minutes", "compile")]
    if changed:
        raise ValueError(
            f"the checkpoint was made with other {', '.join(changed)}; use the same, or leave out --resume"
        )


class _History:
    """The training log: one JSON object per line, and the last loss."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.last: float | None = None

    def keep(self, step: int) -> None:
        """Drop the lines after `step`, which a resumed run writes again."""
        lines = self.path.read_text(encoding="utf-8").splitlines() if step and self.path.exists() else []
        kept = [line for line in lines if json.loads(line)["step"] <= step]
        write_text(self.path, "".join(line + "\n" for line in kept))
        self.last = json.loads(kept[-1])["loss"] if kept else None

    def add(self, line: dict[str, Any]) -> None:
        """Append a line, and show it."""
        self.last = line["loss"]
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        speed = line["tokens"] / max(line["seconds"], 1e-9) / 1e6
        sys.stderr.write(f"step {line['step']:6d}  loss {line['loss']:.4f}  {speed:.3f} M tokens/s\n")


@torch.no_grad()
def _test_loss(model: Any, batches: Batches, device: torch.device) -> float:
    """Mean loss per response token of held-out conversations."""
    model.eval()
    total, count = 0.0, 0
    for number in range(batches.per_epoch):
        ids, answer = batches(number)
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            loss = _loss(model, ids, answer, 0.0, model.config.pad_token_id)
        positions = int(answer[:, 1:].sum())
        total, count = total + float(loss) * positions, count + positions
    return total / count


def _describe(corpus: Corpus) -> dict[str, Any]:
    """Counts of a corpus."""
    return {
        "conversations": len(corpus.prompts),
        "tokens": len(corpus.tokens),
        "response_tokens": int((corpus.lengths - corpus.prompts).sum()),
    }


def _versions() -> dict[str, str]:
    """Versions that a checkpoint depends on."""
    import tokenizers
    import transformers

    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "tokenizers": tokenizers.__version__,
    }


def _write_model(model: Any, tokenizer: Any, folder: Path, report: dict[str, Any]) -> None:
    """Save the checkpoint in bf16 with tokenizer, report and plot."""
    model.to(torch.bfloat16).save_pretrained(folder)
    (folder / "model.safetensors").chmod(0o644)  # safetensors writes it for its owner alone
    tokenizer.save_pretrained(folder)
    write_text(folder / "recipe.json", json.dumps(report, indent=2) + "\n")
    try:
        import matplotlib
    except ImportError:
        return
    matplotlib.use("Agg")
    from matplotlib import pyplot

    lines = [json.loads(line) for line in (folder / "history.jsonl").read_text(encoding="utf-8").splitlines()]
    figure, axes = pyplot.subplots(figsize=(6, 3.5), layout="constrained")
    axes.plot([line["step"] for line in lines], [line["loss"] for line in lines])
    axes.set(xlabel="step", ylabel="loss per response token", title=folder.name, yscale="log")
    figure.savefig(folder / "loss.png", dpi=100)
    pyplot.close(figure)


def main(argv: list[str] | None = None) -> None:
    """Command line; the last line of stdout is one JSON document with the reports."""
    parser = argparse.ArgumentParser(prog="python -m hf_selfjudge.playground.train", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder to write to")
    parser.add_argument("--model", choices=("target", "draft", "both"), default="both", help="what to train")
    parser.add_argument("--preset", choices=tuple(PRESETS), default="full", help="settings to start from")
    parser.add_argument("--resume", action="store_true", help="go on from the last checkpoint under --out")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="processes that prepare the data")
    for name in ("steps", "items", "seed", "hidden-size", "layers", "heads", "kv-heads", "intermediate-size"):
        parser.add_argument(f"--{name}", type=int, help=f"instead of the preset's {name}")
    for name in ("fidelity", "learning-rate"):
        parser.add_argument(f"--{name}", type=float, help=f"instead of the preset's {name}")
    parser.add_argument("--max-minutes", type=float, help="end training of each model gracefully after this long")
    parser.add_argument("--compile", action="store_true", default=None, help="use torch.compile")
    given = vars(parser.parse_args(argv))
    settings = {field.name for field in dataclasses.fields(Recipe)}
    changes = {name: value for name, value in given.items() if name in settings and value is not None}
    preset = PRESETS[given["preset"]]
    reports = {}
    for name in ("target", "draft") if given["model"] == "both" else (given["model"],):
        recipe = dataclasses.replace(getattr(preset, name), **changes)
        reports[name] = train_model(recipe, preset, given["out"], resume=given["resume"], workers=given["workers"])
    sys.stdout.write(json.dumps(reports) + "\n")


if __name__ == "__main__":
    main()
