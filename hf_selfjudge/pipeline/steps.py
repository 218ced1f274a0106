"""The stages as a build runs them: what each computes for one shard, and what its result depends on.

The stages themselves know nothing of files; here their arguments are read and their results become bytes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from safetensors.torch import save

from ..config import DRAFT_FEATURES
from .build_settings import BuildSettings
from .storage.shards import Piece, digest_file, digest_json, prompt_lines, response_lines, table_bytes
from .storage.workplace import SHARDED, Workplace, is_empty

AUTOJUDGE_SETTINGS = ("open_tasks", "repeats", "temperature")
"""The settings of labels that the expensive part, letting the target finish, depends on."""


@dataclass(frozen=True)
class Step:
    """A stage as a build runs it."""

    noun: str
    """What its rows are."""
    compute: Callable[[Workplace, int], Piece]
    settings: Callable[[BuildSettings], dict[str, Any]]
    """What its result depends on beside its inputs and models."""
    inputs: tuple[str, ...] = ()
    """The stages whose results it reads."""
    models: tuple[str, ...] = ()


def _prompts(work: Workplace, index: int) -> Piece:
    from .prompts import load_prompts

    settings = work.settings
    found = load_prompts(settings.prompts, work.pair.tokenizer, work.pair.context, settings.respond.max_new_tokens)
    info = {
        "sources": dict(Counter(prompt.source for prompt in found.prompts)),
        "splits": dict(Counter(prompt.split for prompt in found.prompts)),
        "skipped": found.skipped,
    }
    return Piece(prompt_lines(found.prompts), len(found.prompts), info)


def _prompt_settings(settings: BuildSettings) -> dict[str, Any]:
    from .sources.language import parse_sources

    files = {str(s.file): digest_file(s.file)[:16] for s in parse_sources(settings.prompts.prompts) if s.file}
    return {
        **settings.prompts.to_dict(),
        "max_new_tokens": settings.respond.max_new_tokens,  # prompts leave room for the response
        "content": files,
    }


def _respond(work: Workplace, index: int) -> Piece:
    from .respond import respond

    found = respond(work.pair.target, work.order[index], work.settings.respond)
    texts = [work.pair.tokenizer.decode(response.answer, skip_special_tokens=True) for response in found]
    end = work.pair.end_tokens
    info = {
        "empty": sum(is_empty(response, end) for response in found),
        "cut": sum(response.answer[-1] not in end for response in found),
        "tokens": sum(len(response.answer) for response in found),
    }
    return Piece(response_lines(found, texts), len(found), info)


def _mine(work: Workplace, index: int) -> Piece:
    from .mine import mine

    responses = work.responses(index)
    if not responses:
        return Piece(table_bytes(None), 0)
    longest, context = max(len(response.prompt) + len(response.answer) for response in responses), work.pair.context
    if context is not None and longest > context:
        raise ValueError(
            f"A prompt and its response have {longest} tokens, and the draft reads {context}. Name the draft already "
            "when the prompts are chosen (selfjudge respond --draft), or lower --max-prompt-tokens."
        )
    found = mine(work.pair.draft, responses, work.settings.mine, work.pair.end_tokens, work.pair.vocab_size)
    return Piece(table_bytes(found), len(found))


def _mine_settings(settings: BuildSettings) -> dict[str, Any]:
    return {name: value for name, value in settings.mine.to_dict().items() if name != "follow"}


def _score_settings(settings: BuildSettings) -> dict[str, Any]:
    # only where the target writes on does it matter what goes with the draft's token
    return settings.score.to_dict() | ({"follow": settings.mine.follow} if settings.score.rejoin else {})


def _score(work: Workplace, index: int) -> Piece:
    from .score import score

    mismatches, settings = work.mismatches(index), work.settings.score
    if mismatches is None:
        return Piece(table_bytes(None), 0)
    draft = None if DRAFT_FEATURES.isdisjoint(settings.features) else work.pair.draft
    responses = work.responses(index)
    found = score(work.pair.target, responses, mismatches, settings, draft)
    if settings.rejoin:
        from .rejoin import rejoin

        size = work.settings.respond.batch_size
        follow = work.settings.mine.follow
        again = rejoin(
            work.pair.target, work.pair.tokenizer, responses, mismatches.sorted(), settings.lengths, size, follow
        )
        found = replace(found, rejoin=again)
    return Piece(table_bytes(found), len(found))


def _autojudge(work: Workplace, index: int) -> Piece:
    from .autojudge import autojudge

    chosen = {prompt.prompt_id: prompt for prompt in work.order[index] if prompt.prompt_id in work.autojudged}
    mismatches = work.mismatches(index)
    if mismatches is not None:
        mismatches = mismatches.select(torch.isin(mismatches.prompt_ids, torch.tensor([*chosen], dtype=torch.long)))
    if mismatches is None or not len(mismatches):
        return Piece(table_bytes(None), 0)
    responses = [response for response in work.responses(index) if response.prompt_id in chosen]
    settings = work.settings
    found = autojudge(
        work.pair.target,
        work.pair.tokenizer,
        [chosen[response.prompt_id] for response in responses],
        responses,
        mismatches,
        settings.label,
        settings.respond.max_new_tokens,
        settings.respond.batch_size,
        seed=settings.prompts.seed * 100_003 + index,  # other samples in every shard
        follow=settings.mine.follow,
    )
    return Piece(table_bytes(found), len(found))


def _label(work: Workplace, index: int) -> Piece:
    from .label import label

    found = label(work.prompts, work.substitutions, work.outcomes, work.settings.label, work.all_responses)
    info = {"tau": found.tau, "statistics": found.statistics}
    return Piece(save({"values": found.values.to(torch.int8).contiguous()}), len(found.values), info)


def _label_settings(settings: BuildSettings) -> dict[str, Any]:
    others = (*AUTOJUDGE_SETTINGS, "rows")
    return {name: value for name, value in settings.label.to_dict().items() if name not in others}


def _fit(work: Workplace, index: int) -> Piece:
    from .fit import fit

    label = work.settings.label
    found = fit(
        work.substitutions,
        work.labels,
        work.splits,
        work.settings.fit,
        label.rows,
        work.settings.prompts.seed,
        work.substitutions.score(label.length, label.suffix, label.reduction),
        work.pair.device,
    )
    state = {name: tensor.detach().cpu().contiguous() for name, tensor in found.state.items()}
    info = {**found.to_dict(), "hidden_size": found.hidden_size or work.pair.hidden_size}
    return Piece(save(state), len(work.labels), info)


def _calibrate(work: Workplace, index: int) -> Piece:
    from .calibrate import calibrate

    rows = work.substitutions
    probability = work.fit_result.probability(rows)  # (rows,)
    held_out = torch.tensor([split == "calibration" for split in work.splits])
    found = calibrate(probability[held_out], work.labels[held_out], rows.prompt_ids[held_out], work.settings.calibrate)
    return Piece(save({"probability": probability.contiguous()}), found.rows, found.to_dict())


STEPS: dict[str, Step] = {
    "prompts": Step("prompts", _prompts, _prompt_settings, models=("target",)),
    "respond": Step("responses", _respond, lambda s: s.respond.to_dict(), ("prompts",), ("target",)),
    "mine": Step("mismatches", _mine, _mine_settings, ("respond",), ("draft",)),
    "score": Step("substitutions", _score, _score_settings, ("respond", "mine"), ("target", "draft")),
    "autojudge": Step(
        "substitutions finished",
        _autojudge,
        lambda s: {name: getattr(s.label, name) for name in AUTOJUDGE_SETTINGS} | {"follow": s.mine.follow},
        ("prompts", "respond", "mine"),
        ("target",),
    ),
    "label": Step("labels", _label, _label_settings, ("prompts", "respond", "score", "autojudge")),
    "fit": Step(
        "rows",
        _fit,
        lambda s: {**s.fit.to_dict(), "rows": s.label.rows},
        ("prompts", "score", "label"),
    ),
    "calibrate": Step(
        "held-out rows", _calibrate, lambda s: s.calibrate.to_dict(), ("prompts", "score", "label", "fit")
    ),
}
"""The stages in the order of a build."""


def inputs_of(work: Workplace, stage: str) -> tuple[str, ...]:
    """The stages that a stage reads in this build: not AutoJudge's evidence where labels need none."""
    return tuple(name for name in STEPS[stage].inputs if name != "autojudge" or work.autojudged)


def input_digests(work: Workplace, stage: str, index: int) -> dict[str, str]:
    """Digests of everything a shard is made from, by name; what is not there has an empty one."""
    found: dict[str, str] = {}
    for name in inputs_of(work, stage):
        places = [index] if stage in SHARDED and name in SHARDED else range(work.shard_count(name))
        for place in places:
            note = work.shards[name].note(place)
            found[f"{name}/{place:05d}"] = "" if note is None else note.sha256
    if stage == "autojudge":
        ids = [prompt.prompt_id for prompt in work.order[index] if prompt.prompt_id in work.autojudged]
        found["prompts chosen"] = digest_json(ids)
    return found


def dependents(stage: str) -> list[str]:
    """The stage and all that read its results, directly or not."""
    found = [stage]
    for name, step in STEPS.items():
        if not set(found).isdisjoint(step.inputs):
            found.append(name)
    return found
