"""The card in a judge's folder."""

from __future__ import annotations

from pathlib import Path

from ..files import write_text
from .card import folder_card
from .handwritten import updated


def renew_card(folder: Path, repo_id: str | None = None, overwrite: bool = False) -> bool:
    """Bring README.md in step with the judge and its report; what a person wrote is kept. Whether it changed."""
    path = folder / "README.md"
    new = str(folder_card(folder, repo_id))
    old = path.read_text(encoding="utf-8") if path.is_file() else None
    text = new if old is None else updated(old, new, overwrite)
    if text == old:
        return False
    write_text(path, text)
    return True
