"""Operations on numbers that are known while tracing: in NumPy what JAX computes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from probode.programs.unroll.known import run_on_arrays

X = np.arange(12.0).reshape(3, 4)


def last_equation(function, *operands):
    return jax.make_jaxpr(function)(*operands).jaxpr.eqns[-1]


@pytest.mark.parametrize(
    "config",
    [
        ((1, 2, 0), (0, 0, 0)),
        ((-1, 2, 0), (3, -2, 0)),
        ((1, 0, 2), (-1, -1, 1)),
        ((-2, -1, 0), (0, 0, 0)),
    ],
)
def test_padding(config):
    equation = last_equation(lambda x: lax.pad(x, jnp.zeros((), x.dtype), config), X)
    (found,) = run_on_arrays(equation, [X, np.asarray(-7.0)], equation.params)
    np.testing.assert_array_equal(found, lax.pad(X, np.asarray(-7.0, X.dtype), config))


@pytest.mark.parametrize(
    ("indices", "offset", "collapsed", "axes", "sizes"),
    [
        pytest.param([[2], [0]], (1,), (0,), (0,), (1, 4), id="rows"),
        pytest.param([[3], [1], [1]], (0,), (1,), (1,), (3, 1), id="columns"),
        pytest.param([[2, 3], [0, 1]], (), (0, 1), (0, 1), (1, 1), id="entries"),
        pytest.param([[1, 1], [0, 2]], (0, 2), (), (0, 1), (2, 2), id="blocks"),
        pytest.param([[[1, 3]], [[2, 0]]], (), (0, 1), (1, 0), (1, 1), id="out of bounds"),
    ],
)
def test_gathering(indices, offset, collapsed, axes, sizes):
    how = lax.GatherDimensionNumbers(offset, collapsed, axes)
    at = np.array(indices)

    def gather(x, at):
        return lax.gather(x, at, how, sizes, mode="clip")

    equation = last_equation(gather, X, at)
    (found,) = run_on_arrays(equation, [X, at], equation.params)
    np.testing.assert_array_equal(found, gather(X, at))
