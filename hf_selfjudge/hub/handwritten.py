"""Cards that a program and a person both write to.

A card is YAML, a generated part between two markers, and the person's part between two others. An update replaces the
generated part and leaves everything outside it alone. The first marker carries a digest of what was generated, so that
edits inside the generated part are noticed and kept as well.
"""

from __future__ import annotations

import hashlib
import re
from typing import Any

BEGIN = "<!-- selfjudge: generated {digest}; an update replaces this part -->"
END = "<!-- selfjudge: end of the generated part -->"
YOURS = "<!-- selfjudge: yours; an update keeps what you write between these two lines -->"
YOURS_END = "<!-- selfjudge: end of yours -->"
_GENERATED = re.compile(r"<!-- selfjudge: generated ([0-9a-f]{16})\.([0-9a-f]{16});[^\n]*-->\n(.*?)" + END, re.DOTALL)
_YAML = re.compile(r"\A\s*---\r?\n(.*?)\r?\n---[ \t]*(?:\r?\n|\Z)", re.DOTALL)
_LISTS = ("tags", "datasets")


def assemble(metadata: dict[str, Any], body: str) -> str:
    """A new card of the metadata and the generated body, with an empty part for a person."""
    head = _dump(metadata)
    return f"---\n{head}---\n\n{_generated(head, body)}\n\n{YOURS}\n\n{YOURS_END}\n"


def updated(card: str, new: str, overwrite: bool = False) -> str:
    """`card` with its generated part replaced by that of `new`; unchanged where a person wrote or edited it.

    Args:
        card: the card as it is.
        new: a freshly generated card.
        overwrite: replace the generated part even if somebody edited it. A card without markers is always kept.
    """
    found, fresh = _GENERATED.search(card), _GENERATED.search(new)
    if found is None or fresh is None:
        return card
    head, new_head = _yaml(card), _yaml(new)
    if _digest(found[3]) != found[2] and not overwrite:
        return card
    if _digest(head) != found[1]:
        new_head = _merged(head, new_head)
    part = f"{BEGIN.format(digest=f'{_digest(_yaml(new))}.{fresh[2]}')}\n{fresh[3]}{END}"
    start, end = found.span()
    above = _YAML.sub("", card[:start], count=1)
    return f"---\n{new_head}---\n{above}{part}{card[end:]}"


def is_edited(card: str) -> bool:
    """Whether a person wrote anything into a card: outside the generated part, inside it, or into its YAML."""
    found = _GENERATED.search(card)
    if found is None:
        return bool(card.strip())
    return bool(_outside(card)) or _digest(found[3]) != found[2] or _digest(_yaml(card)) != found[1]


def same_hand(one: str, two: str) -> bool:
    """Whether two cards hold the same handwritten text and YAML."""
    if one == two:
        return True
    if _GENERATED.search(one) is None or _GENERATED.search(two) is None:
        return False
    return _outside(one) == _outside(two) and updated(one, two) == two


def _outside(card: str) -> str:
    """What lies outside the YAML and the generated part, without our own markers."""
    rest = _GENERATED.sub("", _YAML.sub("", card, count=1), count=1)
    return rest.replace(YOURS, "").replace(YOURS_END, "").strip()


def _generated(head: str, body: str) -> str:
    text = f"\n{body.strip()}\n\n"
    return f"{BEGIN.format(digest=f'{_digest(head)}.{_digest(text)}')}\n{text}{END}"


def _yaml(card: str) -> str:
    found = _YAML.search(card)
    return f"{found[1]}\n" if found else ""


def _digest(text: str) -> str:
    return hashlib.sha256(text.strip().encode("utf-8", "replace")).hexdigest()[:16]


def _merged(theirs: str, ours: str) -> str:
    """A person's YAML with the keys it lacks; lists are joined, everything else stays as the person has it."""
    mine, new = _load(theirs), _load(ours)
    for key, value in new.items():
        if key in _LISTS and isinstance(mine.get(key), list):
            mine[key] = list(dict.fromkeys([*mine[key], *value]))
        elif key not in mine:
            mine[key] = value
    return _dump(mine) if mine else ours


def _load(text: str) -> dict[str, Any]:
    import yaml

    try:
        found = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(
            f"The card's YAML cannot be read ({error}). Correct README.md between its --- lines."
        ) from None
    if not isinstance(found, dict):
        return {}
    return {str(key): value for key, value in found.items()}


def _dump(metadata: dict[str, Any]) -> str:
    import yaml

    return yaml.safe_dump(metadata, sort_keys=False, allow_unicode=True)
