"""Operations on numbers that are known while tracing."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from probode.base.jax_inside import IN_NUMPY, bind, kind, operation, those

_EXACT, _MOVES = those("exact"), those("moving")


def run_on_arrays(equation: Any, operands: Sequence[Any], params: Any) -> list[np.ndarray]:
    """What an equation computes from arrays."""
    name = operation(equation)
    if name in _EXACT and (name != "gather" or _inside(params, *operands)):
        # JAX would compile a program for each.
        found = IN_NUMPY[name](params, *operands)
        results = found if isinstance(found, list) else [found]
        dtype = None if name in _MOVES else kind(equation.outvars[0])[1]
        return [np.asarray(result, dtype) for result in results]
    with jax.ensure_compile_time_eval():
        results = bind(equation.primitive, list(map(jnp.asarray, operands)), params)
        return [np.asarray(x) for x in results]


def _inside(params: Any, x: Any, indices: Any) -> bool:
    """Whether all slices that begin at the indices lie inside: what else is done depends."""
    axes, sizes = params["dimension_numbers"].start_index_map, params["slice_sizes"]
    room = np.array([x.shape[axis] - sizes[axis] for axis in axes], int)
    return not (np.any(indices < 0) or np.any(indices > room))
