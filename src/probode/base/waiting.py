"""What takes long says what it is doing: one line on a terminal, gone when it is done.

A solve that lasts for two seconds begins to tell where it is, twice a second. Nothing is written
where nobody looks (output to a file, a pipe), or with ``PROBODE_PROGRESS=0`` in the environment.
"""

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

PATIENCE = 2.0
"""Seconds before something is said."""
_EVERY = 0.5

What = str | Callable[[], str] | None
"""What is being done, or how to find out; ``None``: somebody else says so."""


def somebody_looks(stream: Any) -> bool:
    """Whether a stream is a terminal."""
    try:
        return bool(stream.isatty())
    except (AttributeError, ValueError):  # none at all, or closed
        return False


def in_notebook() -> bool:
    """Whether this is a notebook, which shows bars of its own kind."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return type(shell).__name__ == "ZMQInteractiveShell"


def wanted(show: bool | str) -> bool:
    """Whether to show a bar: ``True``, where somebody looks; ``"always"``, everywhere."""
    if isinstance(show, str) and show != "always":
        raise ValueError(f"progress must be True, False or 'always', got {show!r}.")
    return bool(show) and (show is not True or somebody_looks(sys.stderr) or in_notebook())


class _Line:
    """The line, and the thread that writes it while anything is being done."""

    def __init__(self) -> None:
        self._doing: list[What] = []
        self._since = 0.0
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._written = 0

    def begin(self, what: What) -> None:
        with self._changed:
            if not self._doing:
                self._since = time.monotonic()
            self._doing.append(what)
            if self._thread is None or not self._thread.is_alive():  # none, or before a fork
                self._thread = threading.Thread(target=self._watch, daemon=True)
                self._thread.start()
            if len(self._doing) == 1:
                self._changed.notify()

    def end(self) -> None:
        with self._changed:
            self._doing.pop()
            if not self._doing and self._written:
                self._write("")

    def _watch(self) -> None:
        with self._changed:
            while True:
                if not self._doing:
                    self._changed.wait()
                    continue
                left = PATIENCE - (time.monotonic() - self._since)
                self._changed.wait(max(left, _EVERY))
                waited = time.monotonic() - self._since
                if self._doing and waited >= PATIENCE:
                    text = _in_words(self._doing[-1])
                    self._write("" if text is None else f"probode: {text} ({waited:.0f} s)")

    def _write(self, text: str) -> None:
        try:
            sys.stderr.write("\r" + text.ljust(self._written) + ("" if text else "\r"))
            sys.stderr.flush()
            self._written = len(text)
        except (AttributeError, OSError, ValueError):  # the terminal is gone
            pass


def _in_words(what: What) -> str | None:
    try:
        return what() if callable(what) else what
    except Exception:  # asked at any moment, from another thread
        return "working"


_LINE = _Line()
if hasattr(os, "register_at_fork"):  # a child has neither the thread nor what it was doing
    os.register_at_fork(after_in_child=_LINE.__init__)  # type: ignore[misc]


@contextmanager
def doing(what: What) -> Iterator[None]:
    """Say what is being done, if all that it is a part of takes long. The innermost is said."""
    if (
        threading.current_thread() is not threading.main_thread()
        or not somebody_looks(sys.stderr)
        or os.environ.get("PROBODE_PROGRESS") == "0"
    ):
        yield
        return
    _LINE.begin(what)
    try:
        yield
    finally:
        _LINE.end()
