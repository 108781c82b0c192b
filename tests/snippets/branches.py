"""Branches and conversions that want a value: followed along every path."""

import math

import numpy as np

from snippets.numpy_functions import TIMES
from snippets.registry import snippet


@snippet("numpy", [0.7, 0.2])
def branch_on_state(t, y):
    if y[0] > 0:
        return [-y[0], y[1]]
    return [0.0, y[1]]


@snippet("numpy", [0.7, 0.2])
def branch_on_time(t, y):
    dose = 1.0 if t > 1 else 0.0
    return np.array([dose - y[0], y[0] - y[1]])


@snippet("numpy", [0.7, 0.2])
def builtin_max(t, y):
    return [max(0, y[0]), min(y[1], 1.0)]


@snippet("numpy", [0.7, 0.2])
def float_of_component(t, y):
    return [float(y[0]), y[1]]


@snippet("numpy", [0.7, 0.2])
def swallowed_refusal(t, y):
    try:
        return np.array([1.0, 0.0]) if y[0] > 0 else np.array([0.0, 1.0])
    except Exception:
        return -np.sin(y)


@snippet("scalars", [0.7, 0.2])
def mask_selects(t, y):
    return y - np.sum(y[y > 0.5])


@snippet("numpy", [0.7, 0.2])
def any_in_condition(t, y):
    return -y if np.any(y > 0) else np.zeros(2)


@snippet("numpy", [0.7, 0.2])
def chained_comparison(t, y):
    return np.array([1.0 if 0 < y[0] < 1 else 0.0, y[1]])


@snippet("numpy", [0.7, 0.2])
def isinstance_of_floats(t, y):
    return [2.0 * y[0], y[1]] if isinstance(y[0], float) else [y[0], y[1]]


@snippet("numpy", [0.7, 0.2])
def set_membership(t, y):
    return np.array([1.0 if y[0] in (0.7, 0.8) else 0.0, y[1]])


@snippet("numpy", [0.7, 0.2])
def integer_of_time(t, y):
    return np.array([TIMES[int(t)], y[1]])


@snippet("numpy", [0.7, 0.2])
def complementary_branches(t, y):
    if t < 1:
        rate = 1.0
    elif t >= 1:
        rate = 2.0
    return -rate * y  # on no path without a value


@snippet("numpy", [0.7, 0.2])
def schedule(t, y):
    for start, end, dose in [(0, 0.5, 1.0), (0.5, 1, 2.0), (1.2, 1.5, 3.0), (1.5, 3, 1.0)]:
        if start <= t < end:
            return np.array([dose - y[0], y[0] - y[1]])
    return np.array([-y[0], y[0] - y[1]])


@snippet("numpy", [0.7, 0.2])
def and_or_not(t, y):
    on = y[0] > 0 and (y[1] > 0.5 or not t > 0.3)
    return [y[1] if on else -y[1], 1.0 - y[0] if not on else y[0]]


@snippet("numpy", [0.7, 0.2])
def match_on_integer(t, y):
    match int(t):
        case 0:
            return [y[0], y[1]]
        case 1 | 2:
            return [-y[1], y[0]]
        case n if n > 5:
            return [n * y[0], y[1]]
        case _:
            return [0.0, 0.0]


@snippet("numpy", [0.7, 0.2])
def branches_of_helpers(t, y):
    def leaky(x):
        return x if x > 0 else 0.1 * x

    return [leaky(y[0] - y[1]), leaky(y[1] - y[0]) + leaky(t - 0.5)]


@snippet("numpy", [0.7, 0.2])
def extremes_by_key(t, y):
    a, b, c = sorted([y[0], y[1], 0.5], reverse=True)
    return [max(y[0] - 1, y[1], key=abs), a * c + min([b, t, 3])]


@snippet("numpy", [0.7, 0.2])
def rounding(t, y):
    return [round(y[0]) * y[1] + t // 1, y[0] * (math.floor(t) % 2) + int(y[1]) / 2]


@snippet("numpy", [0.7, 0.2])
def roots_behind_a_branch(t, y):
    return [math.sqrt(y[0]) if y[0] > 0 else 0.0, y[1] / t if t > 0 else 0.0]


@snippet("numpy", [0.7, 0.2])
def all_of_them(t, y):
    return -y if all(v > 0 for v in y) else complex(y[0], y[1]).real * np.ones(2)


@snippet("numpy", [0.7, 0.2])
def writes_into_its_argument(t, y):
    y[0] = y[0] if y[0] > y[1] else 2 * y[1]
    y[1] *= 2
    return y
