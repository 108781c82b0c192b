"""Trying out a user's function while other threads of the program go on.

A trial hides what the function prints and warns of, and puts back what it changes. Python has one
standard output, one list of warning filters and one set of variables for all threads: only one
function is tried at a time, and what other threads print or warn of is not touched.
"""

import io
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_TURN = threading.RLock()
_PATIENCE = 10.0
"""Seconds to wait for one's turn: a function may itself wait for threads that want to solve."""


@contextmanager
def one_at_a_time() -> Iterator[None]:
    """Wait for trials in other threads to end (trials within a trial may go on)."""
    mine = _TURN.acquire(timeout=_PATIENCE)
    try:
        yield
    finally:
        if mine:
            _TURN.release()


def others_run() -> bool:
    """Whether anybody but this thread may have changed something meanwhile."""
    return threading.active_count() > 1


class _Printed(io.StringIO):
    """What this thread prints; all others print to where they did."""

    def __init__(self, before: Any) -> None:
        super().__init__()
        self._before, self._thread = before, threading.get_ident()

    def write(self, text: str) -> int:
        if threading.get_ident() == self._thread:
            return super().write(text)
        return int(self._before.write(text))


@contextmanager
def printed() -> Iterator[io.StringIO]:
    """Keep what this thread prints, instead of showing it."""
    before = sys.stdout
    own = _Printed(before)
    sys.stdout = own
    try:
        yield own
    finally:
        if sys.stdout is own:
            sys.stdout = before


class _Quiet(threading.local):
    now = False


class _InQuietThreads(type):
    def __subclasscheck__(cls, subclass: type) -> bool:
        return _QUIET.now


class _AnyWarning(Warning, metaclass=_InQuietThreads):
    """A category to which all warnings of a quiet thread belong, and no others."""


_QUIET = _Quiet()


@contextmanager
def quiet() -> Iterator[None]:
    """Show no warnings of this thread; ``warnings.catch_warnings`` would change all threads."""
    before, _QUIET.now = _QUIET.now, True
    try:
        warnings.simplefilter("ignore", _AnyWarning)  # first in the list, and harmless if it stays
        yield
    finally:
        _QUIET.now = before
