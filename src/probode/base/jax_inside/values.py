"""Values that are not known yet, what JAX raises when they are asked for, and precision."""

from contextlib import AbstractContextManager
from functools import lru_cache
from typing import Any

import jax
import numpy as np

from probode.base.jax_inside.loans import borrowed, say


def is_tracer(value: Any) -> bool:
    """Whether a value is not known yet, inside ``jit``, ``vmap``, ``grad``."""
    return isinstance(value, _tracer())


@lru_cache(maxsize=1)
def _tracer() -> type:
    found = borrowed("jax.core", "Tracer")
    if found is None:
        say("jax.core.Tracer", "it is taken from a trace")
        seen: list[Any] = []
        jax.eval_shape(seen.append, jax.ShapeDtypeStruct((), np.float32))
        # The most general class that only tracers have.
        found = [kind for kind in type(seen[0]).__mro__ if kind not in jax.Array.__mro__][-1]
    return found


def evaluates_eagerly() -> bool:
    """Whether no transformation is in sight; ``False`` if that cannot be said without an operation.

    No documented function tells: an operation has to be tried, a thousand times as long.
    """
    take = borrowed("jax.extend.core", "take_current_trace")
    try:
        with take() as trace:  # type: ignore[misc]
            return type(trace).__name__ == "EvalTrace"
    except Exception:  # whatever became of it
        say("jax.extend.core.take_current_trace", "every solve begins with an operation, to look")
        return False


def unknown_value(value: Any, message: str) -> Exception:
    """``jax.errors.ConcretizationTypeError``, whose arguments are not documented."""
    kind = jax.errors.ConcretizationTypeError
    try:
        return kind(value, message)
    except Exception:
        say("ConcretizationTypeError(tracer, message)", "its message is shorter")
        error = kind.__new__(kind)
        error.args = (message,)
        return error


REFUSALS = tuple(
    getattr(jax.errors, name)
    for name in (
        *("ConcretizationTypeError", "NonConcreteBooleanIndexError", "TracerArrayConversionError"),
        *("TracerBoolConversionError", "TracerIntegerConversionError"),
    )
    if hasattr(jax.errors, name)
)
"""What JAX raises where a value is asked for that is not known: documented, but come and go."""


def double_precision() -> AbstractContextManager[None]:
    """Context in which JAX computes with 64 bits; its documented name has moved."""
    scope = getattr(jax, "enable_x64", None)
    if scope is None:
        scope = borrowed("jax.experimental", "enable_x64")
    if scope is None:
        raise ImportError(
            f"probode computes with 64 bits, and JAX {jax.__version__} has no enable_x64 to say so "
            "for its own part: use another version of JAX."
        )
    return scope(True)
