"""Double precision, scoped: the user's own JAX switch is never touched."""

from contextlib import AbstractContextManager
from typing import Any

import jax
import numpy as np
from jax.extend import core


def double_precision() -> AbstractContextManager[None]:
    """Context in which JAX computes with 64 bits."""
    return jax.enable_x64(True)


def is_traced(*trees: Any) -> bool:
    """Whether any leaf is a tracer: a value not known yet, inside jit, vmap, grad."""
    unsure = [tree for tree in trees if type(tree) not in _KNOWN]
    return any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(unsure))


_KNOWN = (np.ndarray, float, int)
"""What need not be looked into, which takes a while."""


def on_host(value: Any) -> bool:
    """Whether an array is NumPy's: a result outside a trace, to be handed out as it is."""
    return isinstance(value, np.ndarray | np.generic)


def inside_trace() -> bool:
    """Whether JAX is tracing here, also when no argument of ours is a tracer."""
    if _evaluates_eagerly():
        return False
    return isinstance(jax.lax.neg(np.float32(0.0)), jax.core.Tracer)


def _evaluates_eagerly() -> bool:
    """Whether no transformation is in sight: what can be said without an operation, in no time."""
    try:
        with core.take_current_trace() as trace:
            return type(trace).__name__ == "EvalTrace"
    except Exception:  # another version of JAX: the operation decides
        return False
