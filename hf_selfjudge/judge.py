"""The judge: P(acceptable) of every drafted token, from what the target's verification forward already knows.

A judge folder holds `model.safetensors` (the weights) and `config.json` (everything else; see `config.py`). Nothing in
it is executed and nothing is unpickled. Knows nothing of decoding.
"""

from __future__ import annotations

import copy
import os
import tempfile
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import ModelCard, ModelHubMixin
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from .config import MAX_CONFIG_BYTES, JudgeConfig, check_theta, shown
from .features import Block, judge_features
from .files import atomic_path
from .hub.card import LIBRARY, TAGS, judge_card
from .hub.download import Repository
from .hub.folder import renew_card

CONFIG_FILE = "config.json"
WEIGHTS_FILE = "model.safetensors"


class SelfJudgeVerifier(
    nn.Module,
    ModelHubMixin,
    library_name=LIBRARY,
    tags=list(TAGS),
):
    """A logistic regression (or a small MLP) on the features named in its config.

    Calling it on a `Block` gives P(acceptable) of each drafted token; `threshold` is the theta above which
    decoding accepts. With theta = 1 nothing is ever accepted, and decoding is exact.
    """

    def __init__(self, config: JudgeConfig) -> None:
        super().__init__()
        self.config = config
        self.threshold = config.theta()
        sizes = (config.input_size, *config.hidden_units, 1)
        self.layers = nn.ModuleList(nn.Linear(fan_in, fan_out) for fan_in, fan_out in pairwise(sizes))
        self.requires_grad_(False)

    def forward(self, block: Block) -> Tensor:
        """P(acceptable) of every drafted token. (batch, gamma)"""
        return self.probability(judge_features(block, self.config.features))

    def probability(self, features: Tensor) -> Tensor:
        """P(acceptable) from ready features. (..., input_size) -> (...)"""
        return torch.sigmoid(self.logit(features))

    def logit(self, features: Tensor) -> Tensor:
        """The log-odds of being acceptable from ready features. (..., input_size) -> (...)"""
        values = features.to(next(self.parameters()).dtype)  # a judge may have been cast to the model's dtype
        for layer in self.layers[:-1]:
            values = torch.relu(layer(values))
        return torch.as_tensor(self.layers[-1](values).squeeze(-1))

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return next(self.parameters()).device

    def with_threshold(self, threshold: str | float) -> SelfJudgeVerifier:
        """A copy (sharing the weights) that accepts above another theta, by name or as a number in [0, 1]."""
        other = copy.copy(self)
        other.threshold = self.config.theta(threshold)
        return other

    def set_weights(self, weight: Tensor, bias: Tensor | float) -> SelfJudgeVerifier:
        """Fill a linear judge: one weight per input column, and a bias. Returns the judge."""
        if self.config.hidden_units:
            raise ValueError("set_weights is for linear judges; this one has hidden layers: load a state dict instead.")
        if weight.numel() != self.config.input_size:
            raise ValueError(f"The judge has {self.config.input_size} inputs, but {weight.numel()} weights were given.")
        with torch.no_grad():
            self.layers[0].weight.copy_(weight.reshape(1, -1))  # type: ignore[operator]
            self.layers[0].bias.copy_(torch.as_tensor(bias).reshape(1))  # type: ignore[operator]
        _check_finite(self.state_dict(), "the given weights")
        return self

    # -- the Hub's three verbs -----------------------------------------------------------------------------------

    def save_pretrained(
        self,
        save_directory: str | Path,
        *,
        repo_id: str | None = None,
        push_to_hub: bool = False,
        **kwargs: Any,
    ) -> str | None:
        """Write `model.safetensors`, `config.json` with this judge's threshold as its default, and a README.

        What a person wrote into a README that is there is kept.
        """
        folder = Path(save_directory)
        state = {name: tensor.detach().float().cpu().contiguous() for name, tensor in self.state_dict().items()}
        _check_finite(state, "the judge to save")
        # both are written before either takes its place: never new weights with an old config
        with atomic_path(folder / WEIGHTS_FILE) as weights, atomic_path(folder / CONFIG_FILE) as config:
            save_file(state, weights, metadata={"format": "pt"})
            config.write_text(self._chosen_config().to_json(), encoding="utf-8")
        renew_card(folder)
        if push_to_hub:
            kwargs.pop("config", None)
            return self.push_to_hub(repo_id=repo_id or folder.name, **kwargs)
        return None

    def _chosen_config(self) -> JudgeConfig:
        """The config with the threshold in use as the default; one without a name is called "chosen"."""
        config = self.config
        if self.threshold == config.theta():
            return config
        named = {theta: name for name, theta in config.thresholds.items()}
        name = named.get(self.threshold, "chosen")
        return replace(config, thresholds={**config.thresholds, name: self.threshold}, default_threshold=name)

    @classmethod
    def from_pretrained(  # type: ignore[override]
        cls,
        pretrained_model_name_or_path: str | Path,
        *,
        threshold: str | float | None = None,
        revision: str | None = None,
        token: str | bool | None = None,
        cache_dir: str | Path | None = None,
        force_download: bool = False,
        local_files_only: bool = False,
    ) -> SelfJudgeVerifier:
        """Load a judge from a local folder or from the Hub, strictly.

        Args:
            pretrained_model_name_or_path: a folder written by `save_pretrained`, or a Hub id.
            threshold: the operating point to use, by name or as a theta; the judge's default otherwise.
            revision: branch, tag or commit on the Hub.
            token: Hub token, as everywhere in huggingface_hub.
            cache_dir: where Hub files are cached.
            force_download: download again even if cached.
            local_files_only: use the cache only.
        """
        source = str(pretrained_model_name_or_path)
        if os.path.isdir(source):
            config = _local_file(Path(source), CONFIG_FILE)
            judge = cls._empty(config)
            weights = _local_file(Path(source), WEIGHTS_FILE)
        else:
            repository = Repository(source, revision, token, cache_dir, force_download, local_files_only)
            config = repository.file(CONFIG_FILE, MAX_CONFIG_BYTES)
            judge = cls._empty(config)
            weights = repository.at_commit_of(config).file(WEIGHTS_FILE, judge._max_bytes())
        judge.load_state_dict(_read_weights(weights, judge), strict=True, assign=True)
        if threshold is not None:
            judge.threshold = judge.config.theta(threshold)
        return judge.eval()

    @classmethod
    def _empty(cls, config: Path) -> SelfJudgeVerifier:
        with torch.device("meta"):  # memory is taken only for weights that the file really has
            return cls(JudgeConfig.load(config))

    def _max_bytes(self) -> int:
        """More than any file with this judge's weights has: 8 bytes a number, and a header."""
        return 8 * sum(parameter.numel() for parameter in self.parameters()) + MAX_CONFIG_BYTES

    def push_to_hub(
        self,
        repo_id: str,
        *,
        config: Any = None,
        commit_message: str = "Push a judge with hf-selfjudge",
        private: bool | None = None,
        token: str | None = None,
        branch: str | None = None,
        create_pr: bool | None = None,
        allow_patterns: list[str] | str | None = None,
        ignore_patterns: list[str] | str | None = None,
        delete_patterns: list[str] | str | None = None,
        model_card_kwargs: dict[str, Any] | None = None,
    ) -> str:
        """Upload the judge to the Hub; returns the commit's address. A card that somebody edited there is kept.

        `selfjudge push` also uploads the report of a build. The arguments are those of huggingface_hub, of which
        `config` and `model_card_kwargs` are not used: a judge brings its own.
        """
        from .hub.push import PushOptions, push  # it stands on this module

        options = PushOptions(
            private=private,
            revision=branch,
            token=token,
            commit_message=commit_message,
            create_pr=create_pr,
            allow_patterns=allow_patterns,
            ignore_patterns=ignore_patterns,
            delete_patterns=delete_patterns,
        )
        with tempfile.TemporaryDirectory(prefix="selfjudge-") as folder:
            self.save_pretrained(folder)
            return str(push(folder, repo_id, options).url)

    def generate_model_card(self, *args: Any, **kwargs: Any) -> ModelCard:
        """The README.md of a saved or pushed judge."""
        return judge_card(self.config)

    def extra_repr(self) -> str:
        """Shown by print(judge)."""
        return f"features={'+'.join(self.config.features)}, threshold={self.threshold:g}"

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "threshold":
            value = check_theta(value, "threshold")
        super().__setattr__(name, value)


def _local_file(folder: Path, name: str) -> Path:
    path = folder / name
    if not path.is_file():
        raise FileNotFoundError(
            f"{folder} has no {name}. A judge folder holds {CONFIG_FILE} and {WEIGHTS_FILE}; "
            "write one with judge.save_pretrained(folder)."
        )
    inside = [folder.resolve()]
    if folder.resolve().parent.name == "snapshots":  # the Hub's cache links to its own blobs
        inside.append(folder.resolve().parent.parent / "blobs")
    if not any(path.resolve().is_relative_to(root) for root in inside):
        raise ValueError(f"{path} is a link out of the judge's folder, to {path.resolve()}. Replace it by the file.")
    return path


def _read_weights(path: Path, judge: SelfJudgeVerifier) -> dict[str, Tensor]:
    """The tensors of a safetensors file, refused unless they are exactly the judge's: names, shapes, finite floats."""
    expected = {name: tuple(tensor.shape) for name, tensor in judge.state_dict().items()}
    size = path.stat().st_size
    if size > judge._max_bytes():
        raise ValueError(
            f"{path} has {size} bytes, but config.json asks for {shown(expected)}. It is not this judge's file."
        )
    try:
        with safe_open(path, framework="pt") as file:
            found = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
            if found != expected:
                raise ValueError(
                    f"{path} holds {shown(found)}, but config.json asks for {shown(expected)}. "
                    "The two files are not of one judge: download or save them again."
                )
            state = {name: file.get_tensor(name) for name in expected}
    except (SafetensorError, OSError, MemoryError) as error:
        raise ValueError(
            f"{path} is not a readable safetensors file ({str(error)[:300]}): truncated or corrupted. "
            "Download or save it again."
        ) from None
    not_float = [name for name, tensor in state.items() if not tensor.is_floating_point()]
    if not_float:
        raise ValueError(f"{path}: {not_float} are not floating-point tensors, expected float32.")
    state = {name: tensor.float() for name, tensor in state.items()}
    _check_finite(state, str(path))
    return state


def _check_finite(state: dict[str, Tensor], where: str) -> None:
    bad = [name for name, tensor in state.items() if not torch.isfinite(tensor).all()]
    if bad:
        raise ValueError(
            f"NaN or infinite values in {bad} of {where}; a judge's weights must be finite. Train it again."
        )
