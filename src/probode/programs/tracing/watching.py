"""What happens while a function is traced: refusals, and the number of operations.

A refusal is an error that user code may catch: ``try: x = float(y[0])``, ``except: x = 0``. What it
goes on with then is not what it would have done with numbers. So every refusal is remembered, those
of our stand-ins and those of JAX's own tracers, and tracing fails in the end.
"""

import functools
import threading
from typing import Any

from probode.base.jax_inside import REFUSALS, is_tracer, unknown_value

OPERATION_LIMIT = 2_000
"""Operations after which tracing is given up: unrolled loops take a compiler too long."""


class Watch(threading.local):
    """What happened while a function was traced."""

    refusal: Exception | None = None
    operations: int = 0
    careful: bool = False
    """Whether user code handles errors: then what raises errors for numbers is refused."""

    @property
    def too_long(self) -> bool:
        """Whether the last function was given up for its length."""
        return self.operations > OPERATION_LIMIT

    def start(self, careful: bool = False) -> None:
        """Forget what happened before."""
        self.refusal, self.operations, self.careful = None, 0, careful

    def refuse(self, what: str, value: Any) -> Exception:
        """The error for a question that cannot be answered while tracing."""
        if is_tracer(value):
            error = unknown_value(value, f"{what} of a traced value: its value is not known.")
        else:
            error = TypeError(f"{what} of an array that is being traced.")
        self.notice(error)
        return error

    def notice(self, error: Exception) -> None:
        """Remember an error that user code might swallow."""
        self.refusal = self.refusal or error

    def count(self) -> None:
        """Count an operation; stop at the limit."""
        self.operations += 1
        if self.too_long:
            raise self.refuse(f"More than {OPERATION_LIMIT} operations", None)

    def finish(self) -> None:
        """Raise what user code has swallowed."""
        if self.refusal is not None:
            raise self.refusal


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
