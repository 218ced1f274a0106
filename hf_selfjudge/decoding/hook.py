"""The `judge=` keyword of `model.generate`: installed on import, reversible, and inert without the keyword."""

from __future__ import annotations

import functools
import importlib.abc
import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

_MODULE = "transformers.generation.utils"
_MARK = "_selfjudge_original"


def install() -> None:
    """Teach `generate` the keyword `judge=`. Calls without it go to transformers' own function untouched.

    transformers loads its generation code on first use; if that has not happened yet, the keyword is added when it
    does, so that importing hf_selfjudge loads neither.
    """
    if _MODULE in sys.modules:
        _wrap(sys.modules[_MODULE])
    elif not any(isinstance(finder, _WhenImported) for finder in sys.meta_path):
        sys.meta_path.insert(0, _WhenImported())


def uninstall() -> None:
    """Give `generate` back as it was."""
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, _WhenImported)]
    module = sys.modules.get(_MODULE)
    if module is not None:
        original = getattr(module.GenerationMixin.generate, _MARK, None)
        if original is not None:
            module.GenerationMixin.generate = original


def is_installed() -> bool:
    """Whether `generate` knows, or will know, the keyword."""
    module = sys.modules.get(_MODULE)
    if module is not None:
        return hasattr(module.GenerationMixin.generate, _MARK)
    return any(isinstance(finder, _WhenImported) for finder in sys.meta_path)


class _WhenImported(importlib.abc.MetaPathFinder):
    """Wraps `generate` right after transformers' generation module has been executed."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Answer for one module only, with its ordinary spec."""
        if fullname != _MODULE:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_and_wrap(module: ModuleType) -> None:
                execute(module)
                _wrap(module)

            spec.loader.exec_module = execute_and_wrap  # type: ignore[method-assign]
        return spec


def _wrap(module: ModuleType) -> None:
    original = module.GenerationMixin.generate
    if hasattr(original, _MARK):
        return

    @functools.wraps(original)
    def generate(self: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(kwargs.get("custom_generate"), str):  # code that takes every argument, judge= among them
            return original(self, *args, **kwargs)
        if kwargs.get("judge") is None:
            kwargs.pop("judge", None)
            return original(self, *args, **kwargs)
        return _generate_with_judge(original, self, args, kwargs)

    setattr(generate, _MARK, original)
    module.GenerationMixin.generate = generate


def _generate_with_judge(
    original: Callable[..., Any], model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Move everything `custom_generate` callables do not get from transformers into a `JudgeDecoding`."""
    from .drafting import DraftSettings
    from .judge_decoding import JudgeDecoding

    bound = inspect.signature(original).bind(model, *args, **kwargs)
    call = dict(bound.arguments)
    call.update(call.pop("kwargs", {}))
    del call["self"]
    if call.get("custom_generate") is not None:
        raise ValueError("judge= and custom_generate= are two decoding methods; pass one of them.")
    with _without_stop_strings(model, call) as stop_strings:
        decoding = JudgeDecoding(
            call.pop("assistant_model", None),
            call.pop("judge"),
            mode=call.pop("judge_mode", "two-stage"),
            strict_pair=call.pop("strict_pair", False),
            tokenizer=call.pop("tokenizer", None),
            assistant_tokenizer=call.pop("assistant_tokenizer", None),
            streamer=call.pop("streamer", None),
            stop_strings=stop_strings,
            stats_callback=call.pop("judge_stats_callback", None),
            rows_at_once=call.pop("judge_rows_at_once", None),
            **{name: call.pop(name) for name in DraftSettings.__dataclass_fields__ if name in call},
        )
        decoding.check_pair(model)
        return original(model, custom_generate=decoding, **call)


@contextmanager
def _without_stop_strings(model: Any, call: dict[str, Any]) -> Iterator[Any]:
    """Take the stop strings out of the call and of the configs it would inherit them from, and yield them.

    transformers resolves stop strings with a tokenizer it does not hand on to callables, so `JudgeDecoding` does it.
    """
    configs = [config for config in (call.get("generation_config"), model.generation_config) if config is not None]
    before = [config.stop_strings for config in configs]
    found = [strings for strings in (call.pop("stop_strings", None), *before) if strings is not None]
    try:
        for config in configs:
            config.stop_strings = None
        yield found[0] if found else None
    finally:
        for config, strings in zip(configs, before, strict=True):
            config.stop_strings = strings
