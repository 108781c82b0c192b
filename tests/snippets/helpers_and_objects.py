"""Written with NumPy, helpers, closures, objects and arguments that are more than numbers."""

import functools
import math
from collections import namedtuple
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from snippets.registry import snippet


@snippet("numpy", [1.0, 0.5], (lambda t: np.sin(3 * t), 2))
def function_argument(t, y, control, power):
    return np.array([control(t) - y[0] ** power, y[0] - y[1]])


@snippet("numpy", [0.7, 0.2])
def keyword_defaults(t, y, *, gain=np.array([1.0, 2.0])):  # noqa: B008
    return gain * np.tanh(y)


def saturation(x, half=0.5):
    return x / (half + x)


def uptake(x, depth=2):
    return saturation(x) * math.exp(-x) if depth == 0 else uptake(x, depth - 1)


@snippet("numpy", [0.7, 0.2])
def helpers_in_the_module(t, y):
    return np.array([uptake(y[0]) - y[1], saturation(y[1])])


RATES = {"growth": 0.4, "loss": np.array([0.1, 0.2])}


@snippet("numpy", [0.7, 0.2])
def global_parameters(t, y):
    return RATES["growth"] * np.sqrt(y) - RATES["loss"] * y


def make_closure() -> Callable[..., Any]:
    matrix = np.array([[0.0, 1.0], [-1.0, -0.1]])
    forcing = np.array([0.0, 1.0])
    buffer = np.empty(2)

    def helper(t):
        return forcing * np.cos(t)

    def closure(t, y):
        buffer[:] = matrix.dot(y)
        buffer[1] += helper(t)[1]
        return buffer

    return closure


snippet("numpy", [0.7, 0.2], name="closure_over_arrays_and_buffer")(make_closure())


class Model:
    def __init__(self):
        self.k = np.array([1.0, 2.0])

    def rate(self, y):
        return self.k * np.sin(y)


class Extended(Model):
    def rate(self, y):
        return super().rate(y) + np.array([y[1], y[0]])

    def __call__(self, t, y):
        return self.rate(y)


snippet("numpy", [0.1, 0.2], name="inherited_method")(Extended())


class Oscillator:
    stiffness = np.array([[2.0, -1.0], [-1.0, 2.0]])

    def __init__(self, damping):
        self.damping = damping
        self.load = np.array([0.0, 1.0])

    def force(self, x):
        return -self.stiffness.dot(x) + self.load

    @property
    def friction(self):
        return np.exp(-self.damping)

    @staticmethod
    def split(y):
        return np.split(y, 2)

    def rhs(self, t, y):
        x, v = self.split(y)
        dy = np.zeros(4)
        dy[:2] = v
        dy[2:] = self.force(x) - self.friction * v
        return dy

    __call__ = rhs


snippet("numpy", [0.1, 0.2, 0.3, 0.4], name="bound_method")(Oscillator(0.3).rhs)
snippet("numpy", [0.1, 0.2, 0.3, 0.4], name="callable_object")(Oscillator(0.3))


@dataclass(frozen=True)
class Parameters:
    k: float = 0.3
    weights: np.ndarray = field(default_factory=lambda: np.array([1.0, 2.0]))

    def rate(self, y):
        return self.k * np.dot(self.weights, y)


@snippet("numpy", [0.7, 0.2], (Parameters(),))
def dataclass_argument(t, y, p):
    return np.array([-p.rate(y), p.weights.dot(y) ** 2])


class Strict:
    """Settings that refuse unknown names in their own way."""

    def __init__(self):
        self.gain = np.array([1.0, 2.0])

    def __getattr__(self, name):
        raise KeyError(name)


STRICT = Strict()


@snippet("numpy", [0.7, 0.2])
def object_that_raises_key_errors(t, y):
    return STRICT.gain * np.sin(y)


@snippet("numpy", [0.7, 0.2])
def handled_errors_of_known_values(t, y):
    try:
        rate = RATES["decay"]
    except KeyError:
        rate = RATES["growth"]
    return -rate * y


Constants = namedtuple("Constants", "a b")


@snippet("numpy", [0.7, 0.2], (Constants(1.5, 2.5),))
def named_tuple_argument(t, y, c):
    return np.array([c.a * y[1], -c.b * math.sqrt(y[0])])


def general(k, t, y, omega):
    return np.stack([y[1], -k * np.sin(omega * y[0])])


snippet("numpy", [0.7, 0.2], (1.3,), name="partial")(functools.partial(general, 2.0))


def logged(fun):
    @functools.wraps(fun)
    def wrapper(*args, **kwargs):
        return np.asarray(fun(*args, **kwargs))

    return wrapper


@snippet("numpy", [0.7, 0.2])
@logged
def decorated(t, y):
    return [math.tan(y[1]), -math.atan2(y[0], y[1])]


class Tank:
    area = np.array([[1.0, 0.2], [0.1, 2.0]])

    @classmethod
    def outflow(cls, t, y):
        return -cls.area.dot(np.sqrt(y))


snippet("numpy", [0.7, 0.2], name="class_method")(Tank.outflow)
