"""Functions that differ in numbers only share a trace, in which the numbers are inputs."""

import functools
import math
import types
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import solve_ivp as scipy_solve_ivp

import probode.ivp.function
from probode import solve_ivp

RATE = 1.0
POWER = 2.0


@dataclass
class Settings:
    k: float
    other: float = 2.0


class Model:
    def __init__(self, k):
        self.k, self.table = k, np.array([k, 1.0])

    def rate(self, y):
        return self.k * self.table[0] * y

    def method(self, t, y):
        return -self.rate(y)

    def __call__(self, t, y):
        return [-self.rate(y[0])]


def general(k, t, y):
    return [-k * y[0]]


def of_global(k):
    def fun(t, y):
        return [-RATE * y[0]]

    globals()["RATE"] = k
    return fun


def of_helper(k):
    def helper(y):
        return k * y

    return lambda t, y: -helper(y)


def of_dict(k):
    rates = {"all": {"k": k}, "other": 3.0}
    return lambda t, y: [-rates["all"]["k"] * y[0]]


def of_shared_dict(k):
    one = {"k": k}
    same = one
    return lambda t, y: [-one["k"] * same["k"] * y[0]]


def of_equal_dicts(k):
    one, other = {"k": k}, {"k": 0.5 * k}
    return lambda t, y: [-one["k"] * other["k"] * y[0]]


def of_list(k):
    rates = [3.0, k]
    return lambda t, y: [-rates[1] * y[0]]


def of_settings(k):
    settings = Settings(k)
    return lambda t, y: [-settings.k / settings.other * y[0]]


def of_namespace(k):
    space = types.SimpleNamespace(k=k)
    return lambda t, y: [-space.k * y[0]]


def of_array(k):
    p = np.array([k, 0.5 * k])
    return lambda t, y: [-p[0] * y[0] + p[1]]


def of_unpacked_array(k):
    p = np.array([k, 0.5 * k])

    def fun(t, y):
        a, b = p
        return np.array([-a * y[0] + b * np.sin(t)])

    return fun


def of_matrix(k):
    a = np.array([[-k, 0.1], [k, -1.0]])
    return lambda t, y: a @ np.append(y, 1.0)[:2] if y.size > 1 else a[0, :1] * y


def of_numpy_function(k):
    return lambda t, y: [-np.exp(-k) * y[0]]


def of_math(k):
    return lambda t, y: [-math.exp(-k) * y[0]]


def of_jax(k):
    return lambda t, y: -k * jnp.sin(y)


def beside_a_switch(k):
    switch, count = 1.0, 2.0

    def fun(t, y):
        total = sum(y[0] for _ in range(int(count)))
        return [-k * total if switch > 0 else k * total]

    return fun


def beside_an_exponent(k):
    return lambda t, y: [-k * y[0] ** POWER]


def of_exponent(k):
    return lambda t, y: [-(y[0] ** k)]


MAKERS = {
    "closure": lambda k: lambda t, y: [-k * y[0]],
    "numpy-number": lambda k: of_helper(np.float64(k)),
    "default": lambda k: lambda t, y, k=k: [-k * y[0]],
    "keyword": lambda k: lambda t, y, *, k=k: [-k * y[0]],
    "partial": lambda k: functools.partial(general, k),
    "partial-keyword": lambda k: functools.partial(lambda t, y, k: [-k * y[0]], k=k),
    "object": Model,
    "method": lambda k: Model(k).method,
    "global": of_global,
    "helper": of_helper,
    "dict": of_dict,
    "shared-dict": of_shared_dict,
    "equal-dicts": of_equal_dicts,
    "list": of_list,
    "dataclass": of_settings,
    "namespace": of_namespace,
    "array": of_array,
    "unpacked-array": of_unpacked_array,
    "matrix": of_matrix,
    "numpy": of_numpy_function,
    "math": of_math,
    "jax": of_jax,
    "switch": beside_a_switch,
    "exponent-stays": beside_an_exponent,
    "exponent": of_exponent,
}


def branching(k):
    return lambda t, y: [-k * y[0]] if k > 1.2 else [-2.0 * k * y[0]]


def formatted(k):
    return lambda t, y: [-float(f"{k:.3f}") * y[0]]


def as_key(k):
    table = {0.7: 1.0, 1.3: 2.0}
    return lambda t, y: [-table.get(k, 0.5) * y[0]]


def by_type(k):
    return lambda t, y: [-k * y[0]] if isinstance(k, float) else [y[0]]


def vectorized(k):
    helper = np.vectorize(lambda x: -k * x)
    return lambda t, y: helper(y) * k


def of_a_class(k):
    class Rates:
        @staticmethod
        def decay(y):
            return -k * y

    return lambda t, y: k * Rates.decay(y)


STEERING = {
    "branch": branching,
    "text": formatted,
    "key": as_key,
    "type": by_type,
    "vectorize": vectorized,
    "class": of_a_class,
}

NUMBERS = (1.0, 1.3, 0.7, 2.0)


@pytest.fixture
def traces(monkeypatch):
    """A list that grows by one with every trace."""
    found = []
    make = probode.ivp.function.traceable_or_why

    def counted(*args, **kwargs):
        found.append(args)
        return make(*args, **kwargs)

    monkeypatch.setattr(probode.ivp.function, "traceable_or_why", counted)
    return found


def solved(fun, **options):
    return solve_ivp(fun, (0, 1), [1.0], rtol=1e-7, atol=1e-9, **options)


@pytest.mark.parametrize("name", [*MAKERS, *STEERING])
def test_every_number_gives_its_own_solution(name):
    make = {**MAKERS, **STEERING}[name]
    for k in (*NUMBERS, 1.0):
        fun = make(k)
        expected = scipy_solve_ivp(fun, (0, 1), [1.0], rtol=1e-9, atol=1e-11)
        assert solved(fun).y[0, -1] == pytest.approx(expected.y[0, -1], rel=1e-5)


@pytest.mark.parametrize("name", MAKERS)
def test_further_numbers_do_not_trace_again(name, traces):
    results = [solved(MAKERS[name](k)) for k in NUMBERS[:2]]
    before = len(traces)
    results += [solved(MAKERS[name](k)) for k in NUMBERS[2:]]
    assert len(traces) == before
    programs = [result.posterior.problem.field.program for result in results[1:]]
    assert all(program is programs[0] for program in programs)


def test_the_same_numbers_again_are_constants(traces):
    """Nothing is made an input for a function that stays the same."""

    def made(k):
        return lambda t, y: [-k * y[0] - 0.0]

    first, second = (solved(made(0.75)) for _ in range(2))
    assert len(traces) == 1
    assert second.posterior.problem.field.program is first.posterior.problem.field.program
    assert not second.posterior.problem.field.args


def test_numbers_of_a_closure_are_arguments():
    """A fit that defines its function anew gets what it would get with ``args``, to the bit."""
    t = np.linspace(0.0, 10.0, 20)

    def with_closure(a, b, c, d):
        def fun(t, y):
            return [a * y[0] - b * y[0] * y[1], -c * y[1] + d * y[0] * y[1]]

        return solve_ivp(fun, (0, 10), [1.0, 2.0], t_eval=t)

    def with_arguments(*p):
        def fun(t, y, a, b, c, d):
            return [a * y[0] - b * y[0] * y[1], -c * y[1] + d * y[0] * y[1]]

        return solve_ivp(fun, (0, 10), [1.0, 2.0], t_eval=t, args=p)

    for p in ((1.5, 1.0, 3.0, 1.0), (1.51, 1.0, 3.0, 1.0), (1.5, 1.02, 2.9, 1.1)):
        ours, theirs = with_closure(*p), with_arguments(*p)
    np.testing.assert_array_equal(ours.y, theirs.y)
    np.testing.assert_array_equal(ours.y_std, theirs.y_std)


def test_an_exponent_that_stays_is_a_constant():
    """``y**2.0`` has derivatives at negative ``y``, a power in general has none."""
    for k in NUMBERS[:2]:
        result = solved(beside_an_exponent(k))
    assert result.posterior.problem.field.args == [1.3]


def test_an_exponent_that_changes_later_becomes_an_input(traces, monkeypatch):
    for k in NUMBERS[:2]:
        solved(beside_an_exponent(k))
    monkeypatch.setitem(globals(), "POWER", 3.0)
    solved(beside_an_exponent(1.0))
    before = len(traces)
    monkeypatch.setitem(globals(), "POWER", 2.5)
    result = solved(beside_an_exponent(1.0))
    assert len(traces) == before
    # y' = -y^p from 1: y = (1 + (p - 1) t)^(-1/(p - 1)).
    assert result.y[0, -1] == pytest.approx(2.5 ** (-1 / 1.5), rel=1e-5)


def test_a_function_whose_numbers_steer_is_not_tried_again(traces):
    for k in (*NUMBERS[:2], 1.4):
        solved(formatted(k))
    before = len(traces)
    solved(formatted(1.6))
    assert len(traces) == before + 1


def test_numbers_of_a_jacobian_are_inputs_too(traces):
    def made(k):
        def jac(t, y):
            return [[-2.0 * k * y[0]]]

        return (lambda t, y: [-k * y[0] ** 2]), jac

    for k in NUMBERS[:2]:
        fun, jac = made(k)
        solved(fun, jac=jac)
    before = len(traces)
    for k in NUMBERS[2:]:
        fun, jac = made(k)
        assert solved(fun, jac=jac).y[0, -1] == pytest.approx(1 / (1 + k), rel=1e-5)
    assert len(traces) == before


@pytest.mark.parametrize("kind", ["complex", "vectorized"])
def test_numbers_are_found_behind_other_forms_of_the_state(kind, traces):
    y0 = [1.0 + 1.0j] if kind == "complex" else [1.0]
    values = []
    for k in NUMBERS:
        before = len(traces)
        result = solve_ivp(
            lambda t, y, k=k: -k * y, (0, 1), y0, vectorized=kind == "vectorized", rtol=1e-7
        )
        values.append(result.y[0, -1] / y0[0])
    assert len(traces) == before
    np.testing.assert_allclose(values, np.exp(-np.array(NUMBERS)), rtol=1e-5)
