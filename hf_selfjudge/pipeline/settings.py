"""One dataclass per stage: the same class is the stage's Python argument, its command-line options and its entry in the
manifest.

Knows nothing of torch, so that `selfjudge build --help` answers at once.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from typing import Any

from ..config import FEATURES

SUFFIXES = ("likelihood", "confidence", "rejoin")
REDUCTIONS = ("sum", "mean")
LABELS = ("score", "autojudge", "hybrid")
OPEN_TASKS = ("none", "autojudge+")
ROWS = ("mismatch", "with-originals")
MODELS = ("logistic", "mlp", "regression")


def option(default: Any, help: str, choices: tuple[str, ...] | None = None) -> Any:
    """A field of a settings class with its help text."""
    return field(default=default, metadata={"help": help, "choices": choices})


class Settings:
    """What all stages' settings share: validation of choices, and the form they have in the manifest."""

    def __post_init__(self) -> None:
        """Refuse a value out of a field's choices."""
        for known in fields(self):  # type: ignore[arg-type]
            choices, found = known.metadata.get("choices"), getattr(self, known.name)
            for value in found if isinstance(found, tuple) else (found,):
                if choices is not None and value not in choices:
                    raise ValueError(f"{known.name} is {value!r}, expected one of {', '.join(choices)}.")

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values; tuples become lists."""
        values = asdict(self)  # type: ignore[call-overload]
        return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}


def expect(ok: bool, name: str, found: Any, expected: str) -> None:
    """Refuse a setting with one message that says what was found and what was expected."""
    if not ok:
        raise ValueError(f"{name} is {found!r}, expected {expected}.")


@dataclass(frozen=True)
class PromptSettings(Settings):
    """Which prompts, and how they are split."""

    prompts: tuple[str, ...] = option(
        (),
        "SOURCE[:COUNT], repeatable: a preset, a Hub dataset or a .jsonl/.json/.csv/.parquet file, with a mapping if "
        "needed, such as 'my.jsonl?prompt=question&checker=math&reference=answer:200'",
    )
    system: str | None = option(None, "system message put before every prompt")
    max_prompt_tokens: int | None = option(
        None, "skip (and count) longer prompts; default: what the context leaves beside the response"
    )
    validation: float = option(0.2, "share of prompts, per source, that choose C and the features")
    calibration: float = option(0.2, "share of prompts, per source, that set the thresholds and measure the judge")
    seed: int = option(0, "seed of the choice of prompts and of the split")

    def __post_init__(self) -> None:
        """Check the shares."""
        super().__post_init__()
        for name in ("validation", "calibration"):
            expect(0.0 < getattr(self, name) < 1.0, name, getattr(self, name), "a share in (0, 1)")
        expect(self.validation + self.calibration < 1.0, "validation + calibration", self.validation + self.calibration,
               "less than 1, so that prompts are left to train on")  # fmt: skip
        limit = self.max_prompt_tokens
        expect(limit is None or limit >= 1, "max_prompt_tokens", limit, "an int >= 1")


@dataclass(frozen=True)
class RespondSettings(Settings):
    """How the target answers."""

    max_new_tokens: int = option(512, "longest response")
    batch_size: int = option(32, "prompts answered together")
    shard_size: int = option(64, "prompts per shard, the unit of resuming and of sharing work between processes")

    def __post_init__(self) -> None:
        """Check the sizes."""
        super().__post_init__()
        for name in ("max_new_tokens", "batch_size", "shard_size"):
            expect(getattr(self, name) >= 1, name, getattr(self, name), "an int >= 1")


@dataclass(frozen=True)
class MineSettings(Settings):
    """What the draft would have said."""

    alternatives: int = option(1, "tokens of the draft tried per position: its best one, or its best 2 or 3")
    look_ahead: int = option(4, "tokens the draft goes on after its own token, for look-ahead features; 0 for none")
    mine_batch_size: int = option(16, "responses read together")
    follow: int = option(
        0,
        "of the look_ahead tokens, those that go with the draft's own when the target writes on (AutoJudge, rejoin): "
        "decoding that accepts the token will often accept what the draft says next",
    )

    def __post_init__(self) -> None:
        """Check the counts."""
        super().__post_init__()
        expect(1 <= self.alternatives <= 10, "alternatives", self.alternatives, "an int from 1 to 10")
        expect(0 <= self.look_ahead <= 16, "look_ahead", self.look_ahead, "an int from 0 to 16")
        expect(
            0 <= self.follow <= self.look_ahead, "follow", self.follow, f"an int up to look_ahead, {self.look_ahead}"
        )
        expect(self.mine_batch_size >= 1, "mine_batch_size", self.mine_batch_size, "an int >= 1")


@dataclass(frozen=True)
class ScoreSettings(Settings):
    """How substitutions are scored."""

    lengths: tuple[int, ...] = option((0, 5, 10, 20), "suffix lengths N; several cost no more than the longest")
    features: tuple[str, ...] = option(FEATURES, "features to keep for each substitution", FEATURES)
    originals: bool = option(False, "also keep the features of the target's own tokens (for rows=with-originals)")
    rejoin: bool = option(
        False, "let the target write on after every substitution, as many tokens as the longest N, for suffix=rejoin"
    )
    max_tokens: int = option(8192, "most tokens in one packed forward")
    compile: bool = option(False, "compile the target's layers (pays for thousands of prompts on a GPU)")

    def __post_init__(self) -> None:
        """Check lengths and budget."""
        super().__post_init__()
        ok = len(self.lengths) > 0 and all(length >= 0 for length in self.lengths)
        expect(ok, "lengths", self.lengths, "suffix lengths >= 0")
        expect(len(set(self.features)) == len(self.features) > 0, "features", self.features, "names, none twice")
        expect(self.max_tokens >= 1, "max_tokens", self.max_tokens, "an int >= 1")


@dataclass(frozen=True)
class LabelSettings(Settings):
    """Which substitutions count as acceptable."""

    labels: str = option(
        "score",
        "score: s > tau (the paper); autojudge: the target's answer stays the same; hybrid: autojudge where a checker "
        "decides, score elsewhere",
        LABELS,
    )
    length: int = option(20, "N, the suffix length of the score; one of the lengths scored")
    suffix: str = option(
        "likelihood",
        "what the score looks at behind the token: the original suffix's likelihood (the paper), the top-1 confidence "
        "(released code), or rejoin: how much of that suffix the target itself writes again (needs --rejoin)",
        SUFFIXES,
    )
    reduction: str = option("sum", "sum over the token and its suffix (the paper) or mean (released code)", REDUCTIONS)
    tau: float | None = option(None, "label acceptable above this score; default: calibrated")
    reject: float = option(0.9, "share of answer-changing substitutions that a calibrated tau rejects")
    acceptable: float = option(0.2, "without any checker, tau is the quantile that leaves this share acceptable")
    autojudge_prompts: int = option(100, "prompts on which AutoJudge labels calibrate tau (all for labels=autojudge)")
    open_tasks: str = option(
        "none", "AutoJudge labels for prompts without a checker: none, or ask the target", OPEN_TASKS
    )
    repeats: int = option(0, "noise control: sampled completions per substitution and per unchanged text; 0 is greedy")
    temperature: float = option(0.7, "temperature of the repeats")
    margin: float = option(0.5, "unacceptable if the answer survives this share less often than in unchanged text")
    rows: str = option("mismatch", "train on mismatches, or add the target's own tokens as acceptable", ROWS)

    def __post_init__(self) -> None:
        """Check shares and counts."""
        super().__post_init__()
        for name in ("reject", "acceptable"):
            expect(0.0 < getattr(self, name) < 1.0, name, getattr(self, name), "a share in (0, 1)")
        expect(0.0 < self.margin <= 1.0, "margin", self.margin, "a share in (0, 1]")
        expect(self.autojudge_prompts >= 0, "autojudge_prompts", self.autojudge_prompts, "an int >= 0")
        expect(self.repeats >= 0, "repeats", self.repeats, "an int >= 0")
        expect(self.temperature > 0, "temperature", self.temperature, "a number > 0")
        expect(self.length >= 0, "length", self.length, "an int >= 0")


@dataclass(frozen=True)
class FitSettings(Settings):
    """Which judges are fitted and compared."""

    feature_sets: tuple[str, ...] = option(
        ("paper", "scalars", "hidden+scalars", "hidden+previous+scalars", "hidden+previous+scalars+ahead"),
        "inputs to compare, built from hidden, previous, next, scalars and ahead; the best on validation is kept",
    )
    models: tuple[str, ...] = option(("logistic",), f"kinds of judge to compare: {', '.join(MODELS)}", MODELS)
    hidden_units: int = option(64, "width of the MLP's hidden layer")
    balanced: bool = option(False, "weight both classes equally")
    seeds: int = option(3, "seeds of the split between training and validation prompts, for the spread of AUC")

    def __post_init__(self) -> None:
        """Check the counts."""
        super().__post_init__()
        expect(len(self.feature_sets) > 0, "feature_sets", self.feature_sets, "at least one")
        expect(len(self.models) > 0, "models", self.models, "at least one")
        expect(self.hidden_units >= 1, "hidden_units", self.hidden_units, "an int >= 1")
        expect(self.seeds >= 1, "seeds", self.seeds, "an int >= 1")


@dataclass(frozen=True)
class CalibrateSettings(Settings):
    """The judge's operating points."""

    recall: float = option(0.9, "share of unacceptable substitutions that the threshold `recall` rejects at least")
    risks: tuple[float, ...] = option((0.01, 0.02, 0.05, 0.1), "bounds x of the thresholds risk-x%%")
    delta: float = option(0.05, "the risk bounds hold with confidence 1 - delta")
    default_threshold: str = option("f1", "operating point used when none is asked for")

    def __post_init__(self) -> None:
        """Check shares."""
        super().__post_init__()
        expect(0.0 < self.recall <= 1.0, "recall", self.recall, "a share in (0, 1]")
        expect(0.0 < self.delta < 1.0, "delta", self.delta, "a probability in (0, 1)")
        expect(all(0.0 < risk < 1.0 for risk in self.risks), "risks", self.risks, "shares in (0, 1)")
