"""What the library says to the user: its logger, and whether a thing was said before."""

import logging
from threading import Lock
from typing import Any

logger = logging.getLogger("probode")

_MOST = 1024
_cases: dict[tuple[Any, ...], None] = {}
_turn = Lock()


def first_time(*case: Any) -> bool:
    """Whether this case comes up for the first time: what is said of it is said once.

    Of two threads one is told so. The oldest of many cases are forgotten, and come up anew.
    """
    with _turn:
        if case in _cases:
            return False
        if len(_cases) == _MOST:
            del _cases[next(iter(_cases))]
        _cases[case] = None
        return True


def code_of(function: Any) -> Any:
    """A function for :func:`first_time`: closures that one line makes are one function."""
    return getattr(function, "__code__", type(function))


def name_of(function: Any) -> str:
    """A function for the user."""
    return str(getattr(function, "__name__", "the function"))
