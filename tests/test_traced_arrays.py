"""The stand-in for arrays works as arrays of NumPy do, except where values are asked for."""

import math
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest

from probode.base.precision import double_precision
from probode.programs.tracing import arrays


def emulated(fun: Callable[[Any], Any], *shape: int) -> tuple[Any, Any]:
    """``fun`` of an array, traced and with NumPy."""
    x = np.arange(1.0, 1.0 + math.prod(shape)).reshape(shape)

    def traced(x):
        return arrays.unwrap(fun(arrays.TracedArray(x)), as_array=True)

    with double_precision():
        return jax.jit(traced)(x), fun(x.copy())


def chained_views(x):
    x[1:][::2].T[0] = 7.0
    x[::-1, ::2][1] += 1.0
    return x


def copy_of_transpose(x):
    x.T.ravel()[0] = 100.0
    return x


def flattened_view(x):
    x.ravel()[::3] = -1.0
    return x


def element_then_slice(x):
    x[0, 0] = 5.0
    x[:, 1] = x[0, 0]
    x[-1, -1] *= 3.0
    return x * 2


def repeated_places(x):
    x[[0, 0, 1]] = x[[2, 1, 0]]
    return x


def leading_ones_and_newaxis(x):
    x[0] = x[1][None]
    x[..., -1] = 3.0
    return x[:, None, ::-1]


def alias_of_an_element(x):
    a = x[0, 0]
    a += 10.0
    b = x[1]
    b -= a
    return x + a


def integers_truncate(x):
    whole = np.zeros_like(x, dtype=int)
    whole[0] = x[0] * 1.7
    return whole.astype(float)


def reversed_write(x):
    x[::-2] = x[: (x.shape[0] + 1) // 2] * 10
    return x


def axes_and_iteration(x):
    rows = [row.sum() for row in x]
    (first, *_), second = x[0], x.swapaxes(0, 1)[1]
    return np.squeeze(np.expand_dims(second, 0)) * first + np.stack(rows).sum() + x.size + x.ndim


EMULATED = [
    chained_views,
    copy_of_transpose,
    flattened_view,
    element_then_slice,
    repeated_places,
    leading_ones_and_newaxis,
    alias_of_an_element,
    integers_truncate,
    reversed_write,
    axes_and_iteration,
]


@pytest.mark.parametrize("fun", EMULATED, ids=[fun.__name__ for fun in EMULATED])
@pytest.mark.parametrize("shape", [(4, 3), (3, 5)])
def test_views_and_assignment_work_as_in_numpy(
    fun: Callable[[Any], Any], shape: tuple[int, int]
) -> None:
    traced, expected = emulated(fun, *shape)
    np.testing.assert_allclose(traced, expected, rtol=1e-14)


@pytest.mark.parametrize("question", [bool, float, int, complex, str, math.sin, np.asarray, hash])
def test_questions_about_values_are_refused(question: Callable[[Any], Any]) -> None:
    with pytest.raises((TypeError, jax.errors.ConcretizationTypeError)):
        jax.make_jaxpr(lambda x: [question(arrays.TracedArray(x)[0]), x][1])(np.ones(2))
