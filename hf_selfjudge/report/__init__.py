"""The report of a build: what the labels look like, how good the judge is, and what it accepts.

`build_report` collects everything in one JSON document, `write_report` writes that document, its figures and one
self-contained page.
"""

from .content import build_report
from .page import write_report

__all__ = ["build_report", "write_report"]
