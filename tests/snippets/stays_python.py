"""Not traceable: what happens depends on values, or cannot be done twice."""

import math

import numpy as np
import scipy.interpolate
import scipy.special

from snippets.numpy_functions import LOADS, TIMES
from snippets.registry import snippet


@snippet(None, [0.7, 0.2])
def while_loop(t, y):
    x = y[0]
    while x > 1e-3:
        x = x / 2
    return np.array([x, y[1]])


@snippet(None, [0.7, 0.2])
def try_and_except(t, y):
    try:
        return [math.sqrt(y[0]), y[1]]
    except ValueError:
        return [0.0, y[1]]


@snippet(None, [0.7, 0.2])
def noise(t, y):
    return np.sin(y) + np.random.normal(size=2)  # noqa: NPY002


@snippet(None, [0.7, 0.2])
def noise_without_arrays(t, y):
    return [y[0] + np.random.rand(), y[1]]  # noqa: NPY002


@snippet(None, [0.7, 0.2])
def special_function_without_derivative(t, y):
    return scipy.special.jv(1.5, y)


@snippet(None, [0.7, 0.2])
def text_as_key(t, y):
    table = {"0.70": 1.0}
    return [table.get(f"{y[0]:.2f}", 0.0), y[1]]


@snippet(None, [0.7, 0.2])
def eigenvalues_without_second_derivative(t, y):
    return -np.linalg.eigvals(np.array([[y[0], 1.0], [0.1, y[1]]])).real


TABLE = scipy.interpolate.BarycentricInterpolator(TIMES[:3], LOADS[:3])


@snippet(None, [0.7, 0.2])
def table_of_time(t, y):
    return np.array([float(TABLE(t)), y[1]])


@snippet(None, [0.7, 0.2])
def long_python_loop(t, y):
    x = y[0]
    for _ in range(20_000):
        x = x + 1e-6 * y[1]
    return np.array([x, y[1]])
