"""What happens while a function is traced: refusals, and the number of operations.

A refusal is an error that user code may catch: ``try: x = float(y[0])``, ``except: x = 0``. What it
goes on with then is not what it would have done with numbers. So every refusal is remembered, those
of our stand-ins and those of JAX's own tracers, and tracing fails in the end.
"""

import functools
import math
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from probode.base.jax_inside import REFUSALS, is_tracer, unknown_value

if TYPE_CHECKING:
    from probode.programs.tracing.branches import BranchPath

OPERATION_LIMIT = 2_000
"""Operations after which tracing is given up: unrolled loops take a compiler too long."""


TOO_LONG = (
    f"it takes more than {OPERATION_LIMIT} operations",
    None,
    "replace loops by operations on whole arrays; give other loops a fixed number of turns",
)

_SMALL = 16
"""Largest number of entries of a known array for which equal operations are recognised."""


class Watch(threading.local):
    """What happened while a function was traced."""

    refusal: Exception | None = None
    said: tuple[str, str] | None = None
    """The first obstacle in words, and the remedy."""
    operations: int = 0
    careful: bool = False
    """Whether user code handles errors: then what raises errors for numbers is refused."""
    path: "BranchPath | None" = None
    """Path that is followed, in a function with branches."""
    questions: int = 0
    """Number of decisions on all paths so far."""

    def __init__(self) -> None:
        self.comparisons: dict[int, tuple[str, Any, Any]] = {}
        self._made: dict[Any, tuple[Any, Any]] = {}

    @property
    def too_long(self) -> bool:
        """Whether the last function was given up for its length."""
        return self.operations > OPERATION_LIMIT

    def start(self, careful: bool = False) -> None:
        """Forget what happened before."""
        self.refusal, self.said, self.operations, self.careful = None, None, 0, careful
        self.path, self.questions = None, 0
        self.forget()

    def forget(self) -> None:
        """Forget all values."""
        self.comparisons.clear()
        self._made.clear()

    def once(self, operation: Any, make: Callable[[], Any]) -> Any:
        """Return ``make()``, or what it returned for the same operation on the same values.

        ``operation`` holds the function and its arguments. The paths through a function share
        what they have in common, and the same question has the same answer on all of them.
        """
        key = _key(operation)
        found = None if key is None else self._made.get(key)
        if found is None:
            self.count()
            found = operation, make()  # keeps the operands alive, and with them their ids
            if key is not None:
                self._made[key] = found
        return found[1]

    def refuse(self, what: str, value: Any, instead: str = "") -> Exception:
        """Return the error for a question that cannot be answered while tracing.

        ``instead`` is what the user can write instead.
        """
        self.said = self.said or (what, instead)
        if is_tracer(value):
            error = unknown_value(value, f"While tracing: {what}.")
        else:
            error = TypeError(f"While tracing: {what}.")
        self.notice(error)
        return error

    def notice(self, error: Exception) -> None:
        """Remember an error that user code might swallow."""
        self.refusal = self.refusal or error

    def count(self) -> None:
        """Count an operation; stop at the limit."""
        self.operations += 1
        if self.too_long:
            raise self.refuse(*TOO_LONG)

    def finish(self) -> None:
        """Raise what user code has swallowed."""
        if self.refusal is not None:
            raise self.refusal


def _key(value: Any) -> Any:
    """Return a key that tells operations and operands apart; ``None`` if there is no short one."""
    if isinstance(value, tuple | list):
        inside = tuple(map(_key, value))
        return None if None in inside else (type(value), inside)
    if isinstance(value, bool | int | str | type):
        return type(value), value
    if isinstance(value, float):
        return type(value), value, math.copysign(1.0, value)
    if isinstance(value, np.ndarray | np.generic):
        known = value.size <= _SMALL and value.dtype.kind in "biufc"
        return (value.dtype.str, value.shape, value.tobytes()) if known else None
    if isinstance(value, jax.Array) or callable(value):
        return type(value), id(value)
    return (type(value), "...") if value is None or value is Ellipsis else None


watch = Watch()


def _notice_when_made(kind: Any) -> None:
    original = kind.__init__

    @functools.wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        watch.notice(self)

    kind.__init__ = init


# JAX raises these in the middle of user code, and there is no other place to learn of it.
for _kind in REFUSALS:
    _notice_when_made(_kind)
