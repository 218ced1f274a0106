"""Training data of the playground: generated and tokenised once, in parallel, kept on disk, batched by length.

Knows the world and the tokenizer, nothing of models.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from hf_selfjudge.files import atomic_path, write_text

from .tokenizer import ASSISTANT, chat
from .wording import FIDELITY
from .world import TASKS, stream

SHARD_ITEMS = 25_000
"""Items per shard; fixed, so that the data do not depend on how many processes make them."""
LONGEST = 256
"""No conversation may be longer than this many tokens."""
_CHUNK = 2_000


@dataclass(frozen=True)
class CorpusConfig:
    """What a corpus holds; two equal configs (and tokenizers) give the same tokens."""

    split: str = "train"
    """Split of the world it is drawn from."""
    items: int = 1_800_000
    """Number of conversations, over all tasks in the shares of `world.TASKS`."""
    seed: int = 0
    """Seed of the items."""
    fidelity: float = FIDELITY
    """How often a styled slot follows the style table."""

    def __post_init__(self) -> None:
        """Check the ranges."""
        if self.items < len(TASKS):
            raise ValueError(f"a corpus of {self.items} items is too small; it needs one of each of {len(TASKS)} tasks")
        if not 0.0 <= self.fidelity <= 1.0:
            raise ValueError(f"fidelity is {self.fidelity}; it is a probability between 0 and 1")


@dataclass(frozen=True)
class Corpus:
    """Conversations as one flat token array with an index."""

    tokens: np.ndarray
    """All tokens one after another, uint16."""
    starts: np.ndarray
    """Where each conversation starts, and at the end the number of tokens, int64."""
    prompts: np.ndarray
    """Tokens of each conversation that belong to the prompt (generation header included), int16."""

    @property
    def lengths(self) -> np.ndarray:
        """Tokens of each conversation."""
        return np.diff(self.starts)


def _items(config: CorpusConfig, shard: int) -> Iterator[str]:
    """The conversations of one shard as text, task after task."""
    first = shard * SHARD_ITEMS
    count = min(SHARD_ITEMS, config.items - first)
    done = 0.0
    for task in TASKS.values():
        begin, done = round(done * count), done + task.share
        texts = stream(task.name, config.split, f"{config.seed}-{shard}", config.fidelity)
        for _, prompt, response in islice(texts, round(done * count) - begin):
            yield chat(prompt, response)


def _make_shard(job: tuple[CorpusConfig, int, str]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Tokens, lengths and prompt lengths of one shard; runs in a worker process."""
    from tokenizers import Tokenizer

    config, shard, tokenizer_file = job
    tokenizer = Tokenizer.from_file(tokenizer_file)
    header = tokenizer.encode(ASSISTANT).ids[0]
    tokens: list[np.ndarray] = []
    lengths: list[int] = []
    prompts: list[int] = []
    texts = _items(config, shard)
    while chunk := list(islice(texts, _CHUNK)):
        for encoding in tokenizer.encode_batch_fast(chunk, add_special_tokens=False):
            ids = encoding.ids
            tokens.append(np.array(ids, dtype=np.uint16))
            lengths.append(len(ids))
            prompts.append(ids.index(header) + 1)
    if max(lengths) > LONGEST:
        raise ValueError(f"a conversation of shard {shard} has {max(lengths)} tokens; the limit is {LONGEST}")
    return np.concatenate(tokens), np.array(lengths, dtype=np.int64), np.array(prompts, dtype=np.int16)


def build_corpus(config: CorpusConfig, tokenizer_dir: Path, workers: int = 1) -> Corpus:
    """Generate and tokenise a corpus in memory.

    Args:
        config: what it holds.
        tokenizer_dir: a saved tokenizer.
        workers: processes to share the work; the result does not depend on it.
    """
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # the processes are the parallelism
    shards = -(-config.items // SHARD_ITEMS)
    jobs = [(config, shard, str(tokenizer_dir / "tokenizer.json")) for shard in range(shards)]
    if min(workers, shards) > 1:
        import multiprocessing

        with multiprocessing.get_context("spawn").Pool(min(workers, shards)) as pool:
            parts = pool.map(_make_shard, jobs, chunksize=1)
    else:
        parts = [_make_shard(job) for job in jobs]
    starts = np.concatenate([[0], np.cumsum(np.concatenate([part[1] for part in parts]))])
    return Corpus(np.concatenate([part[0] for part in parts]), starts, np.concatenate([part[2] for part in parts]))


def prepare_corpus(config: CorpusConfig, tokenizer_dir: Path, folder: Path, workers: int = 1) -> Corpus:
    """The corpus from `folder` if it was made there with the same config and tokenizer, else made and kept there."""
    made_with = {"config": asdict(config), "tokenizer": _fingerprint(tokenizer_dir / "tokenizer.json")}
    description = folder / "corpus.json"
    arrays = ("tokens", "starts", "prompts")
    if not description.is_file() or json.loads(description.read_text()) != made_with:
        description.unlink(missing_ok=True)
        corpus = build_corpus(config, tokenizer_dir, workers)
        for name in arrays:
            with atomic_path(folder / f"{name}.npy") as path, path.open("wb") as file:
                np.save(file, getattr(corpus, name), allow_pickle=False)
        write_text(description, json.dumps(made_with, indent=2) + "\n")
    return Corpus(*(np.load(folder / f"{name}.npy", mmap_mode="r") for name in arrays))


def _fingerprint(path: Path) -> str:
    """Hash of a file."""
    import hashlib

    return hashlib.sha256(path.read_bytes()).hexdigest()


class Batches:
    """The corpus on one device, as padded batches of conversations of similar length, in a fixed random order.

    Batch number `n` depends on the seed and on `n` alone, so a resumed run sees what an uninterrupted one would.

    Args:
        corpus: the conversations.
        batch_tokens: tokens per batch, padding included; short conversations come many to a batch, long ones few.
        seed: seed of the order.
        pad: token that fills up a row.
        device: where the tokens lie and the batches are made.
    """

    WIDTH = 16
    """Lengths are rounded up to a multiple of this, so a row has at most this much padding."""

    def __init__(self, corpus: Corpus, batch_tokens: int, seed: int, pad: int, device: Any) -> None:
        import torch

        if batch_tokens < LONGEST:
            raise ValueError(f"batch_tokens is {batch_tokens}; one conversation may need {LONGEST}")
        self._seed, self._pad, self._device = seed, pad, device
        # int16 has the indexing kernels that uint16 lacks; token ids are far below 2**15.
        self._tokens = torch.from_numpy(np.array(corpus.tokens).view(np.int16)).to(device)
        self._starts = torch.from_numpy(np.array(corpus.starts[:-1])).to(device)
        self._lengths = torch.from_numpy(corpus.lengths).to(device)
        self._prompts = torch.from_numpy(np.array(corpus.prompts, dtype=np.int64)).to(device)
        widths = -(-corpus.lengths // self.WIDTH) * self.WIDTH
        self._buckets = [(int(w), np.flatnonzero(widths == w), batch_tokens // int(w)) for w in np.unique(widths)]
        self.per_epoch = sum(-(-len(members) // rows) for _, members, rows in self._buckets)
        """Number of batches in which every conversation comes once."""
        self._epoch = -1
        self._plan: list[tuple[int, Any]] = []

    def _plan_epoch(self, epoch: int) -> None:
        """Shuffle conversations within their buckets and then the batches."""
        import torch

        rng = np.random.default_rng((self._seed, epoch))
        plan = []
        for width, members, rows in self._buckets:
            shuffled = torch.from_numpy(rng.permutation(members)).to(self._device)
            plan += [(width, part) for part in shuffled.split(rows)]
        self._plan = [plan[i] for i in rng.permutation(len(plan))]
        self._epoch = epoch

    def __call__(self, number: int) -> tuple[Any, Any]:
        """Batch `number`: token ids and the mask of response tokens, both (rows, width)."""
        import torch

        epoch, place = divmod(number, self.per_epoch)
        if epoch != self._epoch:
            self._plan_epoch(epoch)
        width, rows = self._plan[place]
        columns = torch.arange(width, device=self._device)
        where = self._starts[rows, None] + columns  # (rows, width)
        inside = columns < self._lengths[rows, None]
        ids = self._tokens[where.clamp_(max=len(self._tokens) - 1)].long()
        ids = torch.where(inside, ids, self._pad)
        return ids, inside & (columns >= self._prompts[rows, None])
