"""Reasons why a function cannot be traced: the obstacle, its line, and the remedy."""

import linecache
import os
import traceback
from typing import NamedTuple

import jax

from probode.programs.tracing.watching import TOO_LONG, watch
from probode.programs.user_code import is_ours, is_user_module

_LONGEST = 80
"""Characters of a line that are shown."""


class Reason(NamedTuple):
    """A reason why a function is not traced."""

    what: str
    instead: str = ""
    place: str = ""
    """The line, and its text."""

    def __str__(self) -> str:
        at = f"{self.place}: " if self.place else ""
        return at + self.what + (f"; {self.instead}" if self.instead else "")


OTHER_VALUES = Reason("its trace gives other values than the function itself")
NOT_THE_SAME = Reason(
    "it gives different values at the same point, or values that are not real numbers",
    "draw random numbers outside of it",
)
PRINTS = Reason("it prints", "print outside of it, or in an event or a callback")
LONG = Reason(TOO_LONG[0], TOO_LONG[2])


def reason_of(error: Exception, home: str) -> Reason:
    """Return the reason why tracing ended with ``error``, and the line of the user's code."""
    place = _place(error, home)
    if error is watch.refusal and watch.said is not None:
        return Reason(*watch.said, place)
    for kind, what in _OF_JAX.items():
        if isinstance(error, getattr(jax.errors, kind, ())):
            return Reason(what, "write it with numpy or jax.numpy", place)
    first = (str(error).strip().splitlines() or [""])[0]
    return Reason(f"{type(error).__name__}: {first}", "", place)


_OF_JAX = {
    "TracerBoolConversionError": "a branch on a traced value inside of a function of JAX",
    "TracerIntegerConversionError": "an index or a range needs a number that is known",
    "TracerArrayConversionError": "a function that JAX does not know needs numbers",
    "ConcretizationTypeError": "something needs numbers, which are not known while tracing",
}


def _place(error: Exception, home: str) -> str:
    """Return the innermost line of the user's code in the traceback of an error."""
    found = ""
    for frame, line in traceback.walk_tb(error.__traceback__):
        module = frame.f_globals.get("__name__")
        if is_ours(module) or not is_user_module(module, home):
            continue
        file = frame.f_code.co_filename
        text = linecache.getline(file, line, frame.f_globals).strip()
        text = text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."
        found = f"line {line} of {os.path.basename(file)}" + (f", `{text}`" if text else "")
    return found
