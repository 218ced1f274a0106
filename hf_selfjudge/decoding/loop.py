"""The decoding loop: draft a block for every row, verify all of them in one target forward, keep what stands."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig, LogitsProcessorList
from transformers.generation.utils import GenerateDecoderOnlyOutput

from ..features import Block
from ..rules import Rule
from ..verification import consult, settle
from .drafting import Draft, Drafter
from .processing import process_scores
from .rows import Outcome, Row
from .statistics import JudgeStats
from .stopping import Stopper
from .target import RowsTarget, SingleTarget, Verification
from .texts import Texts
from .timing import PhaseTimer


@dataclass
class JudgeDecoderOnlyOutput(GenerateDecoderOnlyOutput):
    """transformers' output with the statistics of the call."""

    judge_stats: JudgeStats | None = None


class Queue:
    """Which rows are decoded together, and which wait for a place.

    Args:
        padding: left padding of every row.
        at_once: most rows decoded together.
    """

    def __init__(self, padding: list[int], at_once: int) -> None:
        self.padding, self.at_once = padding, at_once
        self._begun = at_once

    def next(self, going: int) -> range:
        """The rows that join those still going: none before an eighth of the places is free, to read them together."""
        free = min(self.at_once - going, len(self.padding) - self._begun)
        if free <= 0 or (going and (self.at_once - going) * 8 < self.at_once):
            return range(0)
        self._begun += free
        return range(self._begun - free, self._begun)


@dataclass
class Session:
    """One call's parts, and the loop over them."""

    drafter: Drafter
    target: SingleTarget | RowsTarget
    stopper: Stopper
    processors: LogitsProcessorList
    rule: Rule | None
    mode: str
    do_sample: bool
    streamer: Any
    outputs: Outputs
    timer: PhaseTimer

    @property
    def _relaxes(self) -> bool:
        """Whether a rule may accept what exact decoding would not."""
        return self.rule is not None and self.mode != "alignment-only"

    def run(self, input_ids: Tensor, rows: list[Row], queue: Queue) -> None:
        """Decode until every row is done; rows that are done leave the batch, and others may take their places."""
        if self.streamer is not None:
            self.streamer.put(input_ids.cpu())
        texts, active = Texts(input_ids[: queue.at_once].clone()), rows[: queue.at_once]
        sequences = torch.arange(len(active), device=input_ids.device)
        while active:
            self._cycle(texts, active, sequences)
            if self.streamer is not None:
                self.streamer.put(texts[0][:, -active[0].kept :].cpu())
            going = [index for index, row in enumerate(active) if not row.done]
            if len(going) < len(active):
                for index, row in enumerate(active):
                    if row.done:
                        row.text = texts[index].clone()
            new = queue.next(len(going))
            active = [*(active[index] for index in going), *(rows[row] for row in new)]
            if new:
                padding = [queue.padding[row] for row in new]
                texts = texts.renew(going, input_ids[new.start : new.stop])
                self.target.renew(going, padding)
                self.drafter.renew(going, padding)
                sequences = torch.cat([sequences[going], torch.tensor(new, device=sequences.device)])
            elif going and len(going) < len(texts):
                texts = texts.select(going)
                self.target.select(going)
                self.drafter.select(going)
                sequences = sequences[going]
        self.drafter.finish()
        self.target.finish()
        if self.streamer is not None:
            self.streamer.end()

    def _cycle(self, texts: Texts, active: list[Row], sequences: Tensor) -> None:
        """Draft a block for every row, verify all of them in one forward, and append what stands."""
        with self.timer.phase("draft"):
            draft = self.drafter.propose(texts, self.stopper.budgets(texts.lengths), self.target)
        with self.timer.phase("target"):
            seen = self.target.forward(texts, draft.tokens)
        with self.timer.phase("verify"):
            scores = process_scores(self.processors, texts, draft.tokens, seen.logits)
            block = _block(draft, seen, scores, self.do_sample, sequences)
        with self.timer.phase("judge"):
            opinion = consult(block, self.rule, self.mode)
        with self.timer.phase("verify"):
            verdict = settle(block, opinion, self.mode)
            outcomes = Outcome.read(block, verdict, draft, explain=self._relaxes)
        for index, (row, outcome) in enumerate(zip(active, outcomes, strict=True)):
            self.outputs.add(seen.logits[index], scores[index], len(outcome.tokens))
            kept, row.done = self.stopper.cut(texts[index], outcome.tokens, self.outputs.scores)
            self.outputs.keep(kept - len(outcome.tokens))
            row.advance(outcome, kept)
        kept_by_row = [row.kept for row in active]
        texts.append(verdict.new_tokens(draft.tokens), kept_by_row)
        self.target.keep(kept_by_row, draft.tokens.shape[1])
        drafted = [outcome.drafted for outcome in outcomes]
        seconds = self.timer.lap("draft", "target")
        self.drafter.observe(texts, scores, [row.accepted for row in active], drafted, seconds)


class Outputs:
    """Scores and logits per new token, if the call asks for them (of one sequence only)."""

    def __init__(self, config: GenerationConfig) -> None:
        self._as_dict = bool(config.return_dict_in_generate)
        self.scores: tuple[Tensor, ...] | None = () if self._as_dict and config.output_scores else None
        self.logits: tuple[Tensor, ...] | None = () if self._as_dict and config.output_logits else None

    def add(self, logits: Tensor, scores: Tensor, count: int) -> None:
        """Append the rows of `count` new tokens."""
        if self.scores is not None:
            self.scores += tuple(scores[i : i + 1] for i in range(count))
        if self.logits is not None:
            self.logits += tuple(logits[i : i + 1] for i in range(count))

    def keep(self, surplus: int) -> None:
        """Drop the last `-surplus` rows, which a stop cut off."""
        if surplus < 0:
            self.scores = None if self.scores is None else self.scores[:surplus]
            self.logits = None if self.logits is None else self.logits[:surplus]

    def finish(
        self, sequences: Tensor, target: SingleTarget | RowsTarget, stats: JudgeStats
    ) -> JudgeDecoderOnlyOutput | Tensor:
        """What `generate` returns."""
        if not self._as_dict:
            return sequences
        return JudgeDecoderOnlyOutput(
            sequences=sequences,
            scores=self.scores,
            logits=self.logits,
            past_key_values=target.past_key_values,
            judge_stats=stats,
        )


def _block(draft: Draft, seen: Verification, scores: Tensor, do_sample: bool, sequences: Tensor) -> Block:
    """All that is known of the block; sampling adds its random numbers."""
    return Block(
        draft_tokens=draft.tokens,
        target_logits=seen.logits,
        hidden=seen.hidden,
        draft_logits=draft.logits,
        target_scores=scores,
        draft_scores=draft.scores,
        uniforms=torch.rand(draft.tokens.shape, device=draft.tokens.device) if do_sample else None,
        lengths=draft.lengths,
        sequences=sequences,
    )
