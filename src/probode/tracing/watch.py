"""What happens while a function is traced: refusals, and the number of operations."""

import threading
from typing import Any

import jax

OPERATION_LIMIT = 2_000
"""Operations after which tracing is given up: unrolled loops take a compiler too long."""


class Watch(threading.local):
    """What happened while a function was traced."""

    refusal: Exception | None = None
    operations: int = 0

    @property
    def too_long(self) -> bool:
        """Whether the last function was given up for its length."""
        return self.operations > OPERATION_LIMIT

    def start(self) -> None:
        """Forget what happened before."""
        self.refusal, self.operations = None, 0

    def refuse(self, what: str, value: Any) -> Exception:
        """The error for a question that cannot be answered while tracing."""
        if isinstance(value, jax.core.Tracer):
            error: Exception = jax.errors.ConcretizationTypeError(
                value, f"{what} of a traced value: its value is not known."
            )
        else:
            error = TypeError(f"{what} of an array that is being traced.")
        self.refusal = self.refusal or error
        return error

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
