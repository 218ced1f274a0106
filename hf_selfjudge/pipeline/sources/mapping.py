"""From a row's columns to a prompt: a column's name or Jinja, run in Jinja's sandbox.

Knows nothing of files, tokens, the choice of prompts or their split.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .language import Source

GUESSES = ("prompt", "question", "instruction", "text", "messages")
"""Columns taken for the prompt, the first that is there, when the mapping does not name one."""

log = logging.getLogger(__name__)
Row = Mapping[str, Any]


@dataclass(frozen=True)
class RawPrompt:
    """A prompt before any tokenizer."""

    messages: tuple[dict[str, str], ...]
    """The chat up to the user's last message; empty if the row had none."""
    checker: str | None = None
    """As in `records.Prompt`."""
    reference: Any = None
    """As in `records.Prompt`."""

    @property
    def text(self) -> str:
        """The user's message; of a longer chat all messages, with their roles."""
        if len(self.messages) == 1:
            return self.messages[0]["content"]
        return "\n\n".join(f"{message['role'].capitalize()}: {message['content']}" for message in self.messages)


def content_hash(text: str, *salt: str | int) -> int:
    """A number in [0, 2**64) fixed by the words of a text and the salt, the same on every machine."""
    words = " ".join(text.split())
    digest = hashlib.sha256("\0".join([*map(str, salt), words]).encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:8], "big")


def compile_mapping(source: Source, columns: Sequence[str]) -> Callable[[Row], RawPrompt | None]:
    """What turns a row with these columns into a prompt, or into None if the source's filter drops it.

    Raises:
        ValueError: for columns that the mapping needs and that are not there, and for text that is not Jinja.
    """
    preset = source.preset
    prompt = _compile_prompt(source, columns)
    reference = _compile_expression(source, preset.reference, columns)
    keep = _compile_expression(source, preset.filter, columns)
    absent = {name: None for name in preset.optional if name not in columns}

    def convert(row: Row) -> RawPrompt | None:
        row = {**absent, **row}
        try:
            if preset.filter is not None and not keep(row):
                return None
            return RawPrompt(_chat(prompt(row)), preset.checker, to_json(reference(row)))
        except Exception as error:
            found = json.dumps(row, default=str)[:300]
            raise ValueError(f"{source.spec}: a row does not fit the mapping: {error}. The row: {found}") from None

    return convert


def to_json(value: Any) -> Any:
    """The value as JSON keeps it."""

    def refuse(found: Any) -> None:
        str(found)  # an expression that found nothing says here what it looked for
        raise TypeError(f"the reference holds a {type(found).__name__}, expected what JSON can hold")

    return json.loads(json.dumps(value, default=refuse))


def _compile_prompt(source: Source, columns: Sequence[str]) -> Callable[[Row], Any]:
    text = source.preset.prompt
    if text is None:
        text = _guess(source, columns)
    if text in columns:
        return lambda row: row.get(text)
    if "{" not in text:
        _require(source, {text}, columns)
    environment = _environment()
    template = _parse(source, text, lambda: environment.from_string(text))
    _require(source, _variables(environment, text), columns)
    return lambda row: template.render(row)


def _guess(source: Source, columns: Sequence[str]) -> str:
    for name in GUESSES:
        if name in columns:
            log.info("%s: the column %r is taken for the prompt", source.spec, name)
            return name
    raise ValueError(
        f"{source.spec}: no column of {source.place} looks like a prompt; expected one of {', '.join(GUESSES)}, found "
        f"{', '.join(columns)}. Name the right one with ?prompt=COLUMN behind the name."
    )


def _compile_expression(source: Source, text: str | None, columns: Sequence[str]) -> Callable[[Row], Any]:
    if text is None:
        return lambda row: None
    if text in columns:
        return lambda row: row.get(text)
    environment = _environment()
    expression = _parse(source, text, lambda: environment.compile_expression(text, undefined_to_none=False))
    _require(source, _variables(environment, f"{{{{ ({text}) }}}}"), columns)
    return lambda row: expression(row)


def _environment() -> Any:
    """Jinja's sandbox, in which a missing column is an error."""
    from jinja2 import StrictUndefined
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    environment = ImmutableSandboxedEnvironment(undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters["fromjson"] = json.loads
    return environment


def _parse(source: Source, text: str, parse: Callable[[], Any]) -> Any:
    from jinja2 import TemplateError

    try:
        return parse()
    except TemplateError as error:
        raise ValueError(f"{source.spec}: {text!r} is neither a column nor Jinja: {error}.") from None


def _variables(environment: Any, text: str) -> set[str]:
    from jinja2 import meta

    return meta.find_undeclared_variables(environment.parse(text)) - set(environment.globals)


def _require(source: Source, names: set[str], columns: Sequence[str]) -> None:
    missing = sorted(names - set(columns) - set(source.preset.optional))
    if missing:
        raise ValueError(
            f"{source.spec}: no column {', '.join(map(repr, missing))} in {source.place}; found {', '.join(columns)}. "
            "Rename columns, or where prompts are given map them: FILE?prompt=COLUMN&reference=COLUMN."
        )


def _chat(value: Any) -> tuple[dict[str, str], ...]:
    """The messages of a prompt: one of the user's for a text, a list of messages up to the user's last one."""
    if value is None:
        return ()
    if isinstance(value, str):
        return ({"role": "user", "content": value.strip()},) if value.strip() else ()
    if not isinstance(value, Sequence) or not all(isinstance(item, Mapping) for item in value):
        raise ValueError(
            f"the prompt is a {type(value).__name__}, expected a text or a list of messages (a template can pick a "
            "part, as in prompt={{ turns[0] }})"
        )
    messages = [{"role": item.get("role"), "content": item.get("content")} for item in value]
    last = max((place for place, message in enumerate(messages) if message["role"] == "user"), default=-1)
    messages = messages[: last + 1]
    if not all(isinstance(part, str) for message in messages for part in message.values()):
        raise ValueError("the messages of a chat need a `role` and a `content`, both texts")
    return tuple(messages) if messages and messages[-1]["content"].strip() else ()
