"""The judge's configuration: everything about a judge except its weights.

Saved as `config.json` beside `model.safetensors`. Knows nothing of torch, of models or of decoding.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from .files import without_nan

FORMAT_VERSION = 1
"""Version of the judge folder. Raised when an old reader would misread a new folder."""

MAX_CONFIG_BYTES = 1 << 20
"""A judge's config.json is a few kB; anything larger is not ours and is not parsed."""

MAX_WIDTH = 1 << 20
"""No layer of a model or a judge is wider; a corrupted config.json must not ask for terabytes."""

VECTOR_FEATURES = ("hidden", "previous_hidden", "next_hidden")
SCALAR_FEATURES = ("log_p", "log_p_top", "s_prefix", "rank", "entropy", "margin", "log_q", "kl_pq", "kl_qp")
AHEAD_FEATURES = ("ahead_known", "ahead_matches", "next_log_p", "ahead_log_p")
"""Scalars of what the block holds behind a token: the part of its future that the verification forward knows."""
FEATURES = VECTOR_FEATURES + SCALAR_FEATURES + AHEAD_FEATURES
LOOK_AHEAD_FEATURES = frozenset({"next_hidden", *AHEAD_FEATURES})
"""Features that read the drafted tokens behind a token."""
DRAFT_FEATURES = frozenset({"log_q", "kl_pq", "kl_qp"})
"""Features that need the draft's distribution and so cannot be had from prompt lookup."""

EMBEDDED = "hf_selfjudge/playground/"
"""Begins the names of models that come with the package."""

MODES = ("two-stage", "judge-only", "alignment-only")
"""Who may accept a draft token: alignment or judge, the judge alone, alignment alone (exact decoding)."""


@dataclass(frozen=True)
class ModelReference:
    """A model a judge was trained with: a Hub id or a path, and the revision."""

    id: str
    revision: str | None = None

    def __post_init__(self) -> None:
        _expect(isinstance(self.id, str) and bool(self.id), "a model reference's id", self.id, "a non-empty string")
        _expect(
            self.revision is None or isinstance(self.revision, str),
            "a model reference's revision",
            self.revision,
            "a string or null",
        )

    def names(self, name_or_path: str) -> bool:
        """Whether `name_or_path` is this model. Local copies count: only the last part of the path is compared."""
        return _base_name(self.id) == _base_name(name_or_path)


@dataclass(frozen=True)
class JudgeConfig:
    """What a judge reads, at which thresholds it accepts, and where it came from."""

    hidden_size: int
    """Width of the target's last hidden state, the lm_head's input."""
    features: tuple[str, ...] = ("hidden",)
    """The features of `hf_selfjudge.features`, in the order of the weight's columns."""
    hidden_units: tuple[int, ...] = ()
    """Widths of hidden layers; empty means logistic regression."""
    thresholds: dict[str, float] = field(default_factory=lambda: {"default": 0.5})
    """Named operating points, each a theta on P(acceptable): accept above it."""
    default_threshold: str = "default"
    """The operating point used when none is asked for."""
    target: ModelReference | None = None
    """The target the judge was trained on."""
    draft: ModelReference | None = None
    """The draft whose tokens it was trained to judge."""
    labels: dict[str, Any] = field(default_factory=dict)
    """How the training labels were made (N, suffix, tau, prompts, ...); informative."""
    metrics: dict[str, Any] = field(default_factory=dict)
    """What was measured on held-out prompts; informative."""
    format_version: int = FORMAT_VERSION

    def __post_init__(self) -> None:
        _expect(_is_format(self.format_version), "format_version", self.format_version, str(FORMAT_VERSION))
        _expect(_is_width(self.hidden_size), "hidden_size", self.hidden_size, f"an int from 1 to {MAX_WIDTH}")
        for name in ("features", "hidden_units"):
            value = getattr(self, name)
            _expect(isinstance(value, (list, tuple)), name, value, "a list")
            object.__setattr__(self, name, tuple(value))
        self._check_features()
        _expect(
            all(_is_width(units) for units in self.hidden_units),
            "hidden_units",
            self.hidden_units,
            f"a list of ints from 1 to {MAX_WIDTH} (empty for logistic regression)",
        )
        _expect(
            isinstance(self.thresholds, dict) and len(self.thresholds) > 0,
            "thresholds",
            self.thresholds,
            "a non-empty mapping from name to theta",
        )
        for name, theta in self.thresholds.items():
            check_theta(theta, f"thresholds[{name!r}]")
        _expect(
            isinstance(self.default_threshold, str) and self.default_threshold in self.thresholds,
            "default_threshold",
            self.default_threshold,
            f"one of {sorted(self.thresholds)}",
        )
        for name in ("target", "draft"):
            value = getattr(self, name)
            _expect(value is None or isinstance(value, ModelReference), name, value, "a ModelReference")
        for name in ("labels", "metrics"):
            _expect(isinstance(getattr(self, name), dict), name, getattr(self, name), "a mapping")

    def _check_features(self) -> None:
        _expect(len(self.features) > 0, "features", self.features, "at least one feature")
        unknown = [name for name in self.features if name not in FEATURES]
        _expect(not unknown, "features", unknown, f"names out of {list(FEATURES)}")
        _expect(len(set(self.features)) == len(self.features), "features", self.features, "no name twice")

    @property
    def input_size(self) -> int:
        """Width of the judge's input."""
        return sum(self.hidden_size if name in VECTOR_FEATURES else 1 for name in self.features)

    @property
    def needs_draft_logits(self) -> bool:
        """Whether some feature reads the draft's distribution."""
        return not DRAFT_FEATURES.isdisjoint(self.features)

    def theta(self, threshold: str | float | None = None) -> float:
        """The theta of an operating point by name, a theta itself, or the default."""
        if threshold is None:
            threshold = self.default_threshold
        if isinstance(threshold, str):
            if threshold not in self.thresholds:
                raise ValueError(
                    f"This judge has no threshold named {threshold!r}; it has {sorted(self.thresholds)}. "
                    "Name one of these or give a theta in [0, 1]."
                )
            return self.thresholds[threshold]
        return check_theta(threshold, "threshold")

    def to_json(self) -> str:
        """The text of config.json."""
        values = {"model_type": "selfjudge", **asdict(self)}
        return json.dumps(without_nan(values), indent=2, sort_keys=True, allow_nan=False) + "\n"

    @classmethod
    def from_json(cls, text: str) -> JudgeConfig:
        """Read config.json's text; every missing, unknown or ill-typed field is named."""
        try:
            found = json.loads(text)
        except (json.JSONDecodeError, RecursionError) as error:
            raise ValueError(
                f"The judge's config.json is not valid JSON: {error}. Download or save it again."
            ) from None
        _expect(isinstance(found, dict), "config.json", type(found).__name__, "a JSON object")
        if found.get("model_type", "selfjudge") != "selfjudge":
            raise ValueError(
                f"config.json is that of a model of type {shown(found['model_type'], 50)}, not of a judge; expected a "
                "folder that `selfjudge build` or save_pretrained of a judge made."
            )
        if "format_version" in found and not _is_format(found["format_version"]):
            raise ValueError(
                f"The judge's format_version is {shown(found['format_version'])}; this version of hf_selfjudge reads "
                f"{FORMAT_VERSION}. Upgrade hf_selfjudge, or take a judge saved in format {FORMAT_VERSION}."
            )
        known = {f.name for f in fields(cls)}
        required = {"format_version", "hidden_size", "features", "thresholds", "default_threshold"}
        missing = sorted(required - set(found))
        unknown = sorted(set(found) - known - {"model_type"})
        if missing or unknown:
            raise ValueError(
                f"The judge's config.json has {'no ' + ', '.join(missing) if missing else 'all fields'}"
                f"{' and unknown ' + ', '.join(unknown)[:300] if unknown else ''}; "
                f"expected {sorted(required)} and optionally {sorted(known - required)}."
            )
        return cls(**{name: _decode(name, found[name]) for name in known & set(found)})

    @classmethod
    def load(cls, path: Path) -> JudgeConfig:
        """Read a config.json file."""
        size = path.stat().st_size
        if size > MAX_CONFIG_BYTES:
            raise ValueError(f"{path} has {size} bytes; a judge's config.json has at most {MAX_CONFIG_BYTES}.")
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise ValueError(f"{path} is not UTF-8 text ({error}). Download or save the judge again.") from None
        return cls.from_json(text)


def check_theta(theta: Any, name: str) -> float:
    """A theta is a probability: refuse anything that is not a number in [0, 1]."""
    is_number = isinstance(theta, (int, float)) and not isinstance(theta, bool)
    _expect(is_number and math.isfinite(theta) and 0.0 <= theta <= 1.0, name, theta, "a number in [0, 1]")
    return float(theta)


def shown(value: Any, length: int = 300) -> str:
    """A value in an error message: short, whatever a broken file holds."""
    try:
        text = repr(value)
    except RecursionError:
        return "something nested too deeply"
    return text if len(text) <= length else f"{text[:length]}..."


def _decode(name: str, value: Any) -> Any:
    """One field of config.json as the dataclass holds it."""
    if name in ("target", "draft") and value is not None:
        _expect(isinstance(value, dict) and "id" in value, name, value, 'an object like {"id": ..., "revision": ...}')
        _expect(set(value) <= {"id", "revision"}, name, sorted(value), "only the fields id and revision")
        return ModelReference(**value)
    return value


def _expect(ok: bool, what: str, found: Any, expected: str) -> None:
    if not ok:
        raise ValueError(f"Bad judge configuration: {what} is {shown(found)}, expected {expected}.")


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_width(value: Any) -> bool:
    return _is_int(value) and 0 < value <= MAX_WIDTH


def _is_format(value: Any) -> bool:
    return _is_int(value) and value == FORMAT_VERSION


def _base_name(name_or_path: str) -> str:
    return name_or_path.rstrip("/\\").replace("\\", "/").rsplit("/", 1)[-1].lower()
