"""Runs that several tests look at."""

import pytest
from embedded_runs import remembered


@pytest.fixture
def runs():
    """The runs by name: hf, exact, judge."""
    pytest.importorskip("lm_eval.api")
    return remembered
