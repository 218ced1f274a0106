"""Completion of many token sequences with a plain model, used wherever a stage lets a model write."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import torch
from tqdm import tqdm
from transformers import GenerationConfig, PreTrainedModel

from ..decoding.continuation import Trunks, continue_texts
from ..engine.suitability import why_not_static
from .records import Response
from .storage.progress import counted


def is_fast(model: PreTrainedModel) -> bool:
    """Whether the model writes on static caches, many texts at once; elsewhere transformers' own generate does it."""
    return model.device.type == "cuda" and why_not_static(model) is None


def trunks_of(responses: Iterable[Response], owners: Iterable[int]) -> Trunks:
    """Whole responses as the beginnings of texts that branch off them; `owners` are the texts' prompts."""
    texts = {response.prompt_id: [*response.prompt, *response.answer] for response in responses}
    place = {prompt_id: at for at, prompt_id in enumerate(texts)}
    return Trunks(list(texts.values()), [place[owner] for owner in owners])


def continue_all(
    model: PreTrainedModel,
    prefixes: Sequence[list[int]],
    rooms: Sequence[int],
    batch_size: int,
    trunks: Trunks | None = None,
    progress: str | None = None,
    temperature: float = 0.0,
    seed: int = 0,
) -> list[list[int]]:
    """Continue each prefix by at most its room, on static caches; see `continue_texts`."""
    bar = tqdm(total=len(prefixes), desc=progress, unit="text", disable=None if progress else True, leave=False)
    with bar:
        return continue_texts(
            model, prefixes, rooms, end_tokens(model), batch_size, trunks, temperature, seed, bar.update
        )


@torch.no_grad()
def complete(
    model: PreTrainedModel,
    prefixes: Sequence[list[int]],
    max_new_tokens: int,
    batch_size: int = 16,
    progress: str | None = None,
    temperature: float = 0.0,
    seed: int = 0,
) -> Iterator[tuple[int, list[int]]]:
    """Continue each prefix; yields (index, new tokens), the end-of-sequence token included.

    Greedy at temperature 0, else sampled from the model's whole distribution at that temperature. `seed` fixes the
    samples for these prefixes in this order and this batch size; the caller's random state is left as it was.
    `progress` names a progress bar, which is shown on terminals only; None for no bar.

    The longest prefixes come first, so that batches have little padding. The model's own generation config may carry
    sampling or penalties; labels need the plain distribution, so only its special tokens are taken over.
    """
    if is_fast(model):
        rooms = [max_new_tokens] * len(prefixes)
        yield from enumerate(continue_all(model, prefixes, rooms, batch_size, None, progress, temperature, seed))
        return
    order = sorted(range(len(prefixes)), key=lambda index: -len(prefixes[index]))
    eos = end_tokens(model)
    pad = _pad_token(model)
    config = _plain_config(max_new_tokens, eos, pad, temperature)
    starts: Iterable[int] = range(0, len(order), batch_size)
    for start in counted(starts, progress, unit="batch") if progress else starts:
        batch = order[start : start + batch_size]
        width = max(len(prefixes[index]) for index in batch)
        ids = torch.full((len(batch), width), pad, dtype=torch.long)
        mask = torch.zeros_like(ids)
        for row, index in enumerate(batch):
            ids[row, width - len(prefixes[index]) :] = torch.tensor(prefixes[index])
            mask[row, width - len(prefixes[index]) :] = 1
        with _own_config(model, config), _own_randomness(model, seed, start, temperature):
            output = model.generate(input_ids=ids.to(model.device), attention_mask=mask.to(model.device))
        for row, index in enumerate(batch):
            yield index, _until_end(output[row, width:].tolist(), set(eos))


def end_tokens(model: PreTrainedModel) -> list[int]:
    """The model's end-of-sequence tokens."""
    eos = model.generation_config.eos_token_id
    return [] if eos is None else [eos] if isinstance(eos, int) else list(eos)


def _pad_token(model: PreTrainedModel) -> int:
    pad, eos = model.generation_config.pad_token_id, end_tokens(model)
    return pad if pad is not None else eos[0] if eos else 0


def _plain_config(max_new_tokens: int, eos: list[int], pad: int, temperature: float) -> GenerationConfig:
    if temperature < 0:
        raise ValueError(f"temperature is {temperature!r}, expected a number >= 0 (0 is greedy).")
    sampling = {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0} if temperature else {}
    return GenerationConfig(
        max_new_tokens=max_new_tokens,
        eos_token_id=eos or None,
        pad_token_id=pad,
        bos_token_id=None,
        **({"do_sample": False} | sampling),
    )


@contextmanager
def _own_config(model: PreTrainedModel, config: GenerationConfig) -> Iterator[None]:
    """Put `config` in the place of the model's own, from which generate fills what a passed config leaves open."""
    own, model.generation_config = model.generation_config, config
    try:
        yield
    finally:
        model.generation_config = own


@contextmanager
def _own_randomness(model: PreTrainedModel, seed: int, start: int, temperature: float) -> Iterator[None]:
    """A random state of this batch's own, so that what was sampled before does not change it."""
    devices = [model.device] if model.device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices, enabled=temperature > 0):
        if temperature > 0:
            torch.manual_seed((seed * 1_000_003 + start) % (1 << 63))
        yield


def _until_end(tokens: list[int], eos: set[int]) -> list[int]:
    """Cut the padding behind the end-of-sequence token, keeping that token."""
    for index, token in enumerate(tokens):
        if token in eos:
            return tokens[: index + 1]
    return tokens
