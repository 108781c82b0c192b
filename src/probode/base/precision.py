"""Double precision, scoped: the user's own JAX switch is never touched."""

from typing import Any

import jax
import numpy as np

from probode.base.jax_inside import double_precision, evaluates_eagerly, is_tracer

__all__ = ["double_precision", "inside_trace", "is_traced", "on_host"]


def is_traced(*trees: Any) -> bool:
    """Whether any leaf is a tracer: a value not known yet, inside jit, vmap, grad."""
    unsure = [tree for tree in trees if type(tree) not in _KNOWN]
    return any(map(is_tracer, jax.tree.leaves(unsure)))


_KNOWN = (np.ndarray, float, int)
"""What need not be looked into, which takes a while."""


def on_host(value: Any) -> bool:
    """Whether an array is NumPy's: a result outside a trace, to be handed out as it is."""
    return isinstance(value, np.ndarray | np.generic)


def inside_trace() -> bool:
    """Whether JAX is tracing here, also when no argument of ours is a tracer."""
    return not evaluates_eagerly() and is_tracer(jax.lax.neg(np.float32(0.0)))
