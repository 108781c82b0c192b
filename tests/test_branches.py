"""Functions that branch on values: followed along every path, or refused with the line."""

import logging
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special

from probode import solve_ivp
from probode.base.precision import double_precision
from probode.programs.tracing import Reason, Traceable, make_traceable, traceable_or_why
from probode.programs.tracing.branches import BranchPath, compared
from probode.programs.tracing.evaluate import count_equations
from probode.programs.tracing.watching import watch


def with_where(t, y):
    return np.array([np.where(t > 5, 1.0, 0.0) - y[0], y[0] - y[1]])


def with_if(t, y):
    return [(1.0 if t > 5 else 0.0) - y[0], y[0] - y[1]]


def with_steps(t, y):
    if t < 1:
        dose = 0.0
    elif 1 <= t <= 3.3:
        dose = 1.0
    else:
        dose = -1.0
    return [dose - y[0], y[0] - y[1]]


def of_steps(t):
    """The first component of the last one, which starts with zero."""
    at = 1.0 - np.exp(-2.3)
    return at * np.exp(-(t - 3.3)) - (1.0 - np.exp(-(t - 3.3)))


@pytest.mark.parametrize("method", ["EK0", "EK1"])
def test_a_branch_on_time_is_a_known_switch(method):
    call = ((0, 10), [0.0, 1.0])
    found, expected = (
        solve_ivp(fun, *call, method=method, rtol=1e-8, atol=1e-10) for fun in (with_if, with_where)
    )
    assert found.path == "numpy"
    np.testing.assert_array_equal(found.t, expected.t)
    np.testing.assert_array_equal(found.y, expected.y)
    assert abs(found.y[0, -1] - (1.0 - np.exp(-5.0))) < 1e-8


def test_a_chain_of_branches_on_time_is_solved_to_the_tolerance():
    result = solve_ivp(with_steps, (0, 10), [0.0, 1.0], rtol=1e-8, atol=1e-10)
    assert result.path == "numpy"
    assert abs(result.y[0, -1] - of_steps(10.0)) < 1e-8


def test_paths_that_no_number_takes_are_left_out():
    """A schedule of 40 intervals has 80 comparisons, and not 2⁸⁰ paths."""
    times = np.linspace(0.0, 10.0, 41)
    doses = np.sin(np.arange(40.0))

    def schedule(t, y):
        for start, end, dose in zip(times, times[1:], doses, strict=False):
            if start <= t < end:
                return [dose - y[0]]
        return [-y[0]]

    found = make_traceable(schedule, (0, 10), [1.0])
    assert found is not None
    with double_precision():
        times_between = np.linspace(-1.0, 11.0, 37)
        values = jax.jit(jax.vmap(lambda t: found.function(t, jnp.array([0.3]))))(times_between)
    np.testing.assert_array_equal(values, [schedule(t, [0.3]) for t in times_between])


@pytest.mark.parametrize(
    "before, outcome, kind, number, expected",
    [
        ("less", False, "greater_equal", 1.0, True),
        ("less", True, "greater_equal", 1.0, False),
        ("less", True, "less", 2.0, True),
        ("less", True, "less", 0.5, None),
        ("less_equal", True, "less", 1.0, None),
        ("less_equal", False, "greater", 1.0, True),
        ("less_equal", False, "equal", 1.0, False),
        ("equal", True, "less_equal", 1.0, True),
        ("equal", False, "not_equal", 1.0, True),
        ("not_equal", False, "greater", 0.0, True),
        ("greater", True, "equal", 2.0, None),
    ],
)
def test_what_is_known_of_a_number_decides_later_comparisons(
    before, outcome, kind, number, expected
):
    watch.start()
    with double_precision():
        x = jnp.asarray(3.0)
        path = BranchPath([outcome, False])
        assert path.decide(compared(before, x, 1.0)) is outcome
        answer = path.decide(compared(kind, x, number))
    asked = len(path.outcomes) == 2
    assert asked == (expected is None)
    assert asked or answer is expected
    watch.start()


def test_paths_share_what_they_have_in_common():
    def branched(t, y):
        x = np.sin(y[0]) * np.exp(y[1]) + np.cosh(y[0] * y[1])
        return [x, y[0] if y[0] > 0 else y[1] if y[1] > 0 else 0.0]

    def straight(t, y):
        x = np.sin(y[0]) * np.exp(y[1]) + np.cosh(y[0] * y[1])
        inner = np.where(y[1] > 0, y[1], 0.0)
        return np.array([x, np.where(y[0] > 0, y[0], inner)])

    with double_precision():
        sizes = [
            count_equations(
                jax.make_jaxpr(make_traceable(f, (0, 1), [1.0, 2.0]).function)(
                    0.0, np.array([1.0, 2.0])
                ).jaxpr
            )
            for f in (branched, straight)
        ]
    assert sizes[0] <= 2 * sizes[1]


count = 0


def counts(t, y):
    global count
    count += 1
    return -y


def reads_the_clock(t, y):
    return -y * time.time()


def indexes_a_list(t, y):
    table = [1.0, 2.0, 3.0]
    return [table[int(t)] * y[0]]


def has_a_range(t, y):
    return [sum(k * y[0] for k in range(int(2 * t) + 1))]


def looks_up(t, y):
    return [{0: 1.0, 1: 2.0}.get(int(t), 0.0) * y[0]]


def writes_a_text(t, y):
    return [float(f"{y[0]:.3f}")]


def halves(t, y):
    x = 1.0 + y[0] ** 2
    while x > 1e-3:
        x = x / 2
    return [x]


def has_many_paths(t, y):
    return [sum(v if v > k else -v for k, v in enumerate([y[0] * j for j in range(12)]))]


def raises_on_a_branch(t, y):
    if y[0] < -100:
        raise ValueError("y has become negative")
    return -y


def unknown_function(t, y):
    return scipy.special.mathieu_a(1, y)


def masks(t, y):
    return -y * len(y[y > 0])


REASONS = [
    (counts, ["the variable 'count'"]),
    (reads_the_clock, ["time.time"]),
    (indexes_a_list, ["`return [table[int(t)] * y[0]]`", "array of NumPy"]),
    (has_a_range, ["range(int(2 * t) + 1)", "a range"]),
    (looks_up, ["`return [{0: 1.0, 1: 2.0}.get(int(t), 0.0) * y[0]]`", "key", "numpy.select"]),
    (writes_a_text, ["a text"]),
    (halves, ["x", "operations"]),
    (has_many_paths, ["256", "numpy.where"]),
    (raises_on_a_branch, ["raise ValueError", "y has become negative"]),
    (unknown_function, ["scipy.special.mathieu_a is not known", "interpolator"]),
]


@pytest.mark.parametrize("fun, words", REASONS, ids=[f.__name__ for f, _ in REASONS])
def test_the_reason_names_the_line_and_what_to_write(fun, words):
    reason = traceable_or_why(fun, (0, 1), [0.7])
    assert isinstance(reason, Reason)
    for word in words:
        assert word in str(reason)
    if "line" in reason.place:
        first = fun.__code__.co_firstlineno
        line = int(reason.place.split()[1])
        assert first < line < first + 6 and "test_branches.py" in reason.place


def test_the_reason_is_said_to_the_user(caplog):
    with caplog.at_level(logging.WARNING, logger="probode"):
        result = solve_ivp(indexes_a_list, (0, 1), [1.0])
    assert result.path == "python" and result.success
    assert "`return [table[int(t)] * y[0]]`" in caplog.text
    assert "indexes_a_list cannot be traced" in caplog.text


def test_python_functions_without_traced_numbers_are_pythons_own():
    def plain(t, y):
        text = max(["a", "bc"], key=len) + str(int("3")) + str(float("2.5"))
        sizes = sorted([3, 1, 2], reverse=True), min((), default=4), list(range(1, 4, 2))
        known = [text == "bc32.5", sizes == ([3, 2, 1], 4, [1, 3]), isinstance(3, int)]
        kinds = np.zeros(2, dtype=float).dtype.kind + np.arange(3, dtype=int).dtype.kind
        return y * (1.0 if all(known) and any([0, 1]) and kinds == "fi" else 0.0)

    found = traceable_or_why(plain, (0, 1), [1.0, 2.0])
    assert isinstance(found, Traceable)
    with double_precision():
        np.testing.assert_array_equal(found.function(0.0, np.array([3.0, 4.0])), [3.0, 4.0])


@pytest.mark.parametrize("pair", [(np.nan, 1.0), (1.0, np.nan), (2.0, 2.0), (-0.0, 0.0)])
def test_extremes_are_pythons_for_ties_and_nan(pair):
    found = make_traceable(lambda t, y: [max(y), min(y), max(y[1], 0.5)], (0, 1), [1.0, 2.0, 0.0])
    assert found is not None
    y = np.array([*pair, 0.0])[:2]
    found = make_traceable(lambda t, y: [max(y), min(y)], (0, 1), [1.0, 2.0])
    with double_precision():
        np.testing.assert_array_equal(found.function(0.0, y), [max(y), min(y)])
