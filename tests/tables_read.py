"""Markdown tables, read back."""


def rows(text):
    """The cells of a Markdown table's lines under its head."""
    lines = [line for line in text.replace("\\|", "/").splitlines() if line.startswith("|")]
    found = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
    assert {len(row) for row in found} == {len(found[0])}
    return found[0], found[2:]
