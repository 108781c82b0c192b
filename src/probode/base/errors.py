"""Checks of what the user passes: each error says what was expected, what came, what to do."""

import difflib
import operator
from collections.abc import Sequence
from typing import Any


def check_choice(what: str, value: Any, choices: Sequence[str]) -> None:
    """Raise if ``value`` is not one of ``choices``; suggest the nearest."""
    if isinstance(value, str) and value in choices:
        return
    message = f"{what} must be one of {', '.join(map(repr, choices))}, got {value!r}."
    if isinstance(value, str):
        near = difflib.get_close_matches(value.lower(), choices, n=1, cutoff=0.4)
        if near:
            message += f" Did you mean {near[0]!r}?"
        raise ValueError(message)
    raise TypeError(message)


def whole_number(what: str, value: Any, least: int = 0) -> int:
    """A whole number that is large enough; raises if it is none."""
    try:
        found = operator.index(value)
    except TypeError:
        raise TypeError(f"{what} must be a whole number, got {value!r}.") from None
    if found < least:
        raise ValueError(f"{what} must be at least {least}, got {value!r}.")
    return found
