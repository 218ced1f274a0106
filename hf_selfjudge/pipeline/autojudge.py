"""AutoJudge's evidence: the target finishes its answer after each substitution; does the outcome survive?

A weak target changes its answer by chance. With `repeats`, several completions are sampled after the substitution and
as many behind the unchanged text up to the same token, and `label` compares the two. A completion has the room that the
response had: prompt and answer together never grow longer than they could have been.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from transformers import PreTrainedModel

from ..decoding.continuation import Trunks
from .completion import complete, continue_all, end_tokens, is_fast, trunks_of
from .records import Mismatches, Outcomes, Prompt, Response
from .settings import LabelSettings
from .storage.progress import counted
from .verdicts import Text, Verdicts, context_length

Start = tuple[int, tuple[int, ...]]
"""A prompt's id and the beginning of an answer to it."""


def autojudge_prompts(prompts: Sequence[Prompt], settings: LabelSettings) -> list[int]:
    """Which prompts AutoJudge must try, by id.

    All that it can decide for its own labels; for the calibration of tau some training prompts, spread evenly over
    checkers and over the sources of each; none where tau is given.
    """
    open_too = settings.open_tasks == "autojudge+"
    if settings.labels != "score":
        return [prompt.prompt_id for prompt in prompts if prompt.checker is not None or open_too]
    if settings.tau is not None:
        return []
    train = [prompt for prompt in prompts if prompt.split == "train"]
    checkable = [prompt for prompt in train if prompt.checker is not None] or (train if open_too else [])
    groups: dict[str, dict[str, list[int]]] = {}
    for prompt in checkable:
        groups.setdefault(prompt.checker or "", {}).setdefault(prompt.source, []).append(prompt.prompt_id)
    for sources in groups.values():
        for name, ids in sources.items():
            random.Random(f"autojudge/{name}").shuffle(ids)
    spread = _round_robin([_round_robin(list(sources.values())) for sources in groups.values()])
    return sorted(spread[: settings.autojudge_prompts])


def autojudge(
    target: PreTrainedModel,
    tokenizer: Any,
    prompts: Sequence[Prompt],
    responses: Sequence[Response],
    mismatches: Mismatches,
    settings: LabelSettings,
    max_new_tokens: int,
    batch_size: int,
    seed: int = 0,
    follow: int = 0,
) -> Outcomes:
    """How often the outcome of each response survives each of its substitutions.

    Left out are responses without an outcome, among them those that were cut off at `max_new_tokens`, and prompts that
    nothing can decide. A row with `tried` 0 is one on which the target would not say [SAME] or [DIFFERENT].

    Args:
        target: the model that finishes; greedily, or with `settings.repeats` sampled completions.
        tokenizer: the target's.
        prompts: those to try.
        responses: the target's greedy answers to them.
        mismatches: the substitutions to try; rows of other prompts are left out.
        settings: of the labels.
        max_new_tokens: the longest answer, as the responses had it.
        batch_size: completions written together.
        seed: of the samples, and of which response comes first when the target is asked.
        follow: how many tokens of the draft's continuation are substituted with its token.
    """
    verdicts = Verdicts(target, tokenizer, prompts, responses, settings, batch_size, seed)
    known = {response.prompt_id: response for response in responses if response.prompt_id in verdicts.usable}
    rows = [row for row, prompt_id in enumerate(mismatches.prompt_ids.tolist()) if prompt_id in known]
    table = mismatches.select(torch.tensor(rows, dtype=torch.long))
    changed: list[Start] = []
    unchanged: list[Start] = []
    keys = (table.prompt_ids.tolist(), table.positions.tolist(), table.substitutes(follow))
    for prompt_id, position, tokens in zip(*keys, strict=True):
        answer = known[prompt_id].answer
        changed.append((prompt_id, (*answer[:position], *tokens)[: max(max_new_tokens, position + 1)]))
        unchanged.append((prompt_id, tuple(answer[: position + 1])))
    controls = unchanged if settings.repeats else []
    # a position's alternatives share their control, so it is finished once
    starts = list(dict.fromkeys([*changed, *controls])) * max(settings.repeats, 1)
    temperature = settings.temperature if settings.repeats else 0.0
    trunks = trunks_of(known.values(), [prompt_id for prompt_id, _ in starts])
    texts = [[*known[prompt_id].prompt] for prompt_id, _ in starts]
    answers = finish(target, texts, [list(s) for _, s in starts], max_new_tokens, batch_size, temperature, seed, trunks)
    finished: dict[Start, list[Text]] = {}
    for start, answer in zip(starts, answers, strict=True):
        finished.setdefault(start, []).append((start[0], tokenizer.decode(answer, skip_special_tokens=True)))
    verdicts.decide(text for written in finished.values() for text in written)
    tried = [[verdicts.kept(text) for text in finished[start]] for start in changed]
    control = [[verdicts.kept(text) for text in finished[start]] for start in controls] or [[] for _ in changed]
    return Outcomes(
        prompt_ids=table.prompt_ids,
        positions=table.positions,
        draft_tokens=table.draft_tokens,
        ranks=table.ranks,
        kept=_count(tried, (True,)),
        tried=_count(tried, (True, False)),
        control_kept=_count(control, (True,)),
        control_tried=_count(control, (True, False)),
    )


def finish(
    target: PreTrainedModel,
    prompts: Sequence[list[int]],
    starts: Sequence[list[int]],
    max_new_tokens: int,
    batch_size: int,
    temperature: float = 0.0,
    seed: int = 0,
    trunks: Trunks | None = None,
) -> list[list[int]]:
    """The whole answers that begin with `starts`, at most `max_new_tokens` long; an end token in a start ends it.

    `trunks` are the responses that prompts and starts are beginnings of, but for their last token.
    """
    answers = [list(start) for start in starts]
    ends = set(end_tokens(target))
    going = [at for at, start in enumerate(starts) if len(start) < max_new_tokens and start[-1] not in ends]
    if is_fast(target):
        prefixes = [prompts[at] + starts[at] for at in going]
        rooms = [max_new_tokens - len(starts[at]) for at in going]
        chosen = None if trunks is None else Trunks(trunks.texts, [trunks.of[at] for at in going])
        written = continue_all(target, prefixes, rooms, batch_size, chosen, "autojudge", temperature, seed)
        for at, rest in zip(going, written, strict=True):
            answers[at] += rest
        return answers
    batches = list(_batches(target, prompts, starts, going, max_new_tokens, batch_size))
    for number, batch in enumerate(counted(batches, "autojudge", unit="batch")):
        room = max_new_tokens - min(len(starts[at]) for at in batch)
        prefixes = [prompts[at] + starts[at] for at in batch]
        found = complete(target, prefixes, room, len(batch), None, temperature, seed * 1_000_003 + number)
        for place, rest in found:
            at = batch[place]
            answers[at] += rest[: max_new_tokens - len(starts[at])]
    return answers


def _batches(
    target: PreTrainedModel,
    prompts: Sequence[list[int]],
    starts: Sequence[list[int]],
    going: Sequence[int],
    max_new_tokens: int,
    batch_size: int,
) -> Iterator[list[int]]:
    """Batches of starts with about the same room, so that none is written beyond its own or beyond the context."""
    context = context_length(target)
    batch: list[int] = []
    for at in sorted(going, key=lambda index: (len(starts[index]), -len(prompts[index]))):
        room = max_new_tokens - len(starts[batch[0]] if batch else starts[at])  # the first has the most
        over = context is not None and len(prompts[at]) + len(starts[at]) + room > context
        if batch and (over or len(batch) == batch_size):
            yield batch
            batch = []
        batch.append(at)
    if batch:
        yield batch


def _round_robin(groups: Sequence[Sequence[int]]) -> list[int]:
    """One of each group in turn until all are empty."""
    longest = max(map(len, groups), default=0)
    return [group[turn] for turn in range(longest) for group in groups if turn < len(group)]


def _count(verdicts: Sequence[Sequence[bool | None]], wanted: tuple[bool, ...]) -> torch.Tensor:
    """How many of each row's verdicts are among the wanted ones. (rows,)"""
    return torch.tensor([sum(verdict in wanted for verdict in row) for row in verdicts], dtype=torch.long)
