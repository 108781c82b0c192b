"""Kernels that were built from other sources are not used, and that is said."""

import logging
import re
from pathlib import Path
from types import SimpleNamespace

import pytest

import probode
from probode.engines.native import library

NAMES = [f"probode_{name}" for name in library.FUNCTIONS]


@pytest.mark.parametrize("lost", ["probode_interpolate", "probode_evaluate_all", "probode_xla_run"])
def test_a_library_that_lacks_a_function_counts_as_absent(monkeypatch, caplog, lost):
    stale = SimpleNamespace(**{name: object() for name in NAMES if name != lost})
    monkeypatch.setattr(library.ctypes, "CDLL", lambda path: stale)
    monkeypatch.setattr(library, "LIBRARY", "library.py")  # a file that is there
    with caplog.at_level(logging.WARNING, "probode"):
        assert library._load.__wrapped__() is None
    (said,) = caplog.messages
    assert lost.removeprefix("probode_") in said and "pip install -e ." in said


def test_every_function_that_is_called_is_asked_for():
    sources = Path(probode.__file__).parent.rglob("*.py")
    called = {
        name
        for source in sources
        for name in re.findall(r'(?:\w\.|ffi_call\(\s*")(probode_\w+)', source.read_text())
    }
    assert "probode_smooth" in called and "probode_xla_open" in called
    assert called <= set(NAMES)
