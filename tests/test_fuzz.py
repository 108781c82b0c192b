"""Random problems, options and nonsense: right or flagged, in time, and never a crash.

Examples are the same in every run of ``make test``, and many more of ``make slow``. ``make fuzz``
draws new ones each time, and prints what reproduces a failure.
"""

import os
import time
import warnings

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from only_python import number
from scipy.integrate import solve_ivp as scipy_ivp

import probode
from probode import EK0, EK1, DiagonalEK1, SparseEK1, Status, solve_ensemble, solve_ivp
from probode.cli import main

REFUSALS = (TypeError, ValueError, OverflowError)
"""What nonsense may raise; anything else is a defect."""
SECONDS = 1.0
"""How much longer than allowed a solve may take."""


def fuzz(few, many):
    """How many examples: a few that never change, or many."""
    return pytest.mark.parametrize("count", [few, pytest.param(many, marks=pytest.mark.slow)])


def run(check, strategy, count):
    """Check so many examples."""
    chosen = settings(
        max_examples=count,
        derandomize="PROBODE_FUZZ" not in os.environ,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        chosen(given(strategy)(check))()


def linear(t, y, a, b, w):
    """Parameters are arguments: one program for all of them."""
    return a @ y + b * np.sin(w * t) - 0.1 * y * y * y


def by_python(t, y, a, b, w):
    """The same, evaluated by Python."""
    return linear(t, y, a, b, w) if number(y[0]) < 1e300 else 0.0 * y


def crosses(t, y, *args):
    return y[0] - 0.5


numbers = st.floats(-2.0, 2.0, allow_subnormal=False)
exponents = st.integers(-9, -2)


@st.composite
def problems(draw):
    """A function, an interval, a start and parameters."""
    d = draw(st.sampled_from([1, 2, 3]))
    a = np.array(draw(st.lists(numbers, min_size=d * d, max_size=d * d))).reshape(d, d)
    a = a - draw(st.sampled_from([0.0, 2.0, 200.0])) * np.eye(d)[:1].T @ np.eye(d)[:1]
    b = np.array(draw(st.lists(numbers, min_size=d, max_size=d)))
    y0 = np.array(draw(st.lists(numbers, min_size=d, max_size=d)))
    t0, length = draw(st.sampled_from([0.0, -3.0, 1e3])), draw(st.sampled_from([1e-9, 0.3, 4.0]))
    fun = draw(st.sampled_from([linear, linear, linear, by_python]))
    return fun, (t0, t0 + length), y0, (a, b, draw(numbers))


@st.composite
def options(draw):
    """Those that keep an answer right."""
    rtol = 10.0 ** draw(exponents)
    chosen = {
        "method": draw(st.sampled_from(["EK0", "EK1", "DiagonalEK1", "auto"])),
        "rtol": rtol,
        "atol": rtol * 10.0 ** draw(st.integers(-3, 0)),
        "dense_output": draw(st.booleans()),
        "smooth": draw(st.sampled_from([True, True, False])),
        "calibration": draw(st.sampled_from(["defect", "defect", "defect-fast"])),
        "events": draw(st.sampled_from([None, crosses])),
        "control": draw(st.sampled_from(["PI", "P"])),
    }
    if chosen["method"] != "auto":
        chosen["order"] = draw(st.sampled_from([2, 3, 5]))
    return chosen


def check_right_or_flagged(case):
    """Within error bars of SciPy's solution, or not called a success."""
    (fun, span, y0, args), chosen = case
    result = solve_ivp(fun, span, y0, args=args, max_num_steps=3000, **chosen)
    assert np.all(np.isfinite(result.t)) and np.all(np.isfinite(result.y))
    assert np.all(result.y_std >= 0.0)
    assert result.status in (-1, 0, 1) and result.success == (result.status >= 0)
    if not result.success:
        assert result.message
        return
    exact = scipy_ivp(linear, span, y0, method="Radau", rtol=1e-10, atol=1e-12, args=args)
    error = np.abs(result.y[:, -1] - exact.y[:, -1])
    size = result.y_std[:, -1]
    if chosen["calibration"] == "defect-fast":  # which, over a step or two, may see next to nothing
        size = size.max()  # of the error of a component
    allowed = 30.0 * size + 1e-8 * (1.0 + np.abs(exact.y).max())
    flagged = bool(result.posterior.diagnose().flags) or not np.all(np.isfinite(result.y_std))
    assert flagged or np.all(error <= allowed), (error, result.y_std[:, -1])


@fuzz(20, 1500)
def test_random_problems_are_solved_right_or_flagged(count):
    run(check_right_or_flagged, st.tuples(problems(), options()), count)


JUNK = st.sampled_from(
    [
        *(None, True, 0, -1, 7, 0.0, -0.0, 1e-320, 1e308, -1e308, np.nan, np.inf, -np.inf, 1j),
        *("", "EK1", "1e-3", b"bytes", (), [], {}, set(), [[]], [None], ["a", "b"], object()),
        *(np.array([]), np.zeros((2, 2)), np.ones(3), np.array(["a"]), np.array([np.nan, 1.0])),
        *(np.array(1.0), np.array([1 + 2j, 0]), np.datetime64("2020-01-01"), range(3), slice(3)),
        *(lambda: None, lambda *a: None, lambda *a: "text", lambda *a: np.nan, int, np, 10**400),
        *([1e308, -1e308], [1, 2], (0.0, 1.0), (1.0, 0.0), (0.0, 0.0), (np.nan, 1.0), [0.2, 0.1]),
    ]
)


def oscillator(t, y):
    return np.array([y[1], -y[0]])


VALID = {"fun": oscillator, "t_span": (0.0, 1.0), "y0": [1.0, 0.0], "time_limit": 5.0}
NAMES = [
    *("fun", "t_span", "y0", "method", "t_eval", "dense_output", "events", "vectorized", "args"),
    *(name for name in probode.ivp.options.Options._fields if name != "checkpoint"),
]


def harmless(call):
    """What a call gives, or nothing where it was refused in words."""
    try:
        return call()
    except REFUSALS as error:
        assert str(error), "an error without words"
        return None


def check_solve_ivp_with_nonsense(changed):
    """Refused, or a result that is finite and says how it ended."""
    given = {**VALID, "max_num_steps": 500, **changed}
    result = harmless(lambda: solve_ivp(**given))
    if result is not None:
        assert isinstance(result.message, str) and result.status in (-1, 0, 1)
        assert np.all(np.isfinite(np.asarray(result.y, complex)))


@fuzz(90, 3000)
def test_nonsense_in_solve_ivp_is_refused_or_harmless(count):
    changed = st.dictionaries(st.sampled_from(NAMES), JUNK, min_size=1, max_size=2)
    run(check_solve_ivp_with_nonsense, changed, count)


def small(t, y, p=1.0):
    return -p * y


def ensemble(**changed):
    given = {"vector_field": small, "t_span": (0.0, 1.0), "y0": [1.0], **changed}
    return probode.solve_ensemble(**{"args": (probode.Sweep([1.0, 2.0]),), **given})


def fitted(**changed):
    given = {"t": [0.5, 1.0], "y": [0.6, 0.4], "y0": [1.0], "noise": 0.1, "t_span": (0.0, 1.0)}
    parameters = {"p": probode.Parameter(1.0)}
    return probode.fit(
        lambda t, y, p: -p["p"] * y, **{"parameters": parameters, **given, **changed}
    )


POSTERIOR = solve_ivp(oscillator, (0.0, 1.0), [1.0, 0.0], dense_output=True).posterior
CALLS = {
    "solve": (
        lambda **x: probode.solve(**{"vector_field": small, "t_span": (0.0, 1.0), "y0": 1.0, **x}),
        *("vector_field", "t_span", "y0", "args", "solver", "control", "grid", "step", "save_at"),
        *("max_steps", "jac", "calibration", "time_limit", "max_memory", "callback", "bounds"),
        *("invariants", "breakpoints"),
    ),
    "EK0": (EK0, "order", "diffusion", "initialization", "evaluations", "prior"),
    "EK1": (EK1, "order", "diffusion", "initialization", "error", "prior"),
    "DiagonalEK1": (DiagonalEK1, "order", "diffusion", "initialization"),
    "SparseEK1": (SparseEK1, "order", "linear", "preconditioner"),
    "PIControl": (probode.PIControl, "rtol", "atol", "first_step", "min_step", "max_step"),
    "Steady": (probode.Steady, "rtol", "atol"),
    "Periodic": (probode.Periodic, "rtol", "atol"),
    "Checkpoint": (probode.Checkpoint, "path", "every"),
    "doses": (probode.doses, "amount", "times", "compartment", "duration", "every", "repeats"),
    "Normal": (probode.Normal, "mean", "std"),
    "Parameter": (probode.Parameter, "start", "prior", "bounds"),
    "Sweep": (probode.Sweep, "values", "dim", "coords"),
    "posterior": (POSTERIOR.__call__, "t"),
    "derivative": (POSTERIOR.derivative, "t", "k"),
    "sample": (POSTERIOR.sample, "n", "seed", "t", "k"),
    "problems.get": (probode.problems.get, "name"),
}
MORE_CALLS = {
    "solve_ensemble": (
        ensemble,
        *("vector_field", "t_span", "y0", "args", "solver", "save_at", "rtol", "atol", "max_steps"),
    ),
    "fit": (fitted, "t", "y", "y0", "noise", "t_span", "parameters", "rtol", "starts", "seed"),
}


@pytest.mark.parametrize(
    "name", [*CALLS, *(pytest.param(name, marks=pytest.mark.slow) for name in MORE_CALLS)]
)
@fuzz(12, 300)
def test_nonsense_in_other_functions_is_refused_or_harmless(name, count):
    call, *names = {**CALLS, **MORE_CALLS}[name]
    changed = st.dictionaries(st.sampled_from(names), JUNK, min_size=1, max_size=2)

    def check(given):
        harmless(lambda: call(**given))

    run(check, changed, count)


WORDS = st.sampled_from(
    [
        *("solve", "fit", "problems", "demo", "--method", "EK0", "--order", "3", "--rtol", "1e-3"),
        *(
            "--atol",
            "nan",
            "inf",
            "-1",
            "--t-span",
            "0",
            "1",
            "--y0",
            "--json",
            "--filter",
            "--t-eval",
        ),
        *("lotka-volterra", "logistic", "--max-steps", "--time-limit", "0.2", "--samples", "2", ""),
        *("no-such", "--", "-", "--diffusion", "fixed", "x.py:f", "--save", "/nonexistent/x.npz"),
        *("--help", "--version", "--control", "P", "--evaluations", "\x00", "ä" * 300),
    ]
)


def check_command_line(words):
    """An exit code, and no exception."""
    if "demo" in words or "fit" in words[:1]:
        words = [*words, "--help"]
    assert main([*words, "--time-limit", "0.5"] if words[:1] == ["solve"] else words) in (0, 1, 2)


@fuzz(40, 800)
def test_any_words_on_the_command_line_end_with_a_code(count, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    lists = st.lists(WORDS, max_size=7)
    solving = lists.map(lambda words: ["solve", "logistic", *words])
    run(check_command_line, st.one_of(lists, solving, solving), count)
    capsys.readouterr()


def stiff(t, y):
    """EK0 takes ten million steps for it."""
    return np.array([-1e7 * (y[0] - np.cos(t)), y[0] - y[1]])


def stiff_by_python(t, y):
    return stiff(t, y) if number(y[0]) < 1e300 else y


def noisy(t, y):
    return -y + 1e-3 * np.sin(1e12 * t * y)


def blows_up(t, y):
    return y * y


def nowhere(t, y):
    return y * np.nan


ENDLESS = {
    "stiff": (stiff, (0.0, 10.0), [1.0, 0.0], {"method": "EK0"}),
    "python": (stiff_by_python, (0.0, 10.0), [1.0, 0.0], {"method": "EK0"}),
    "rough": (noisy, (0.0, 10.0), [1.0], {"rtol": 1e-10, "atol": 1e-12}),
    "events": (stiff, (0.0, 10.0), [1.0, 0.0], {"method": "EK0", "events": crosses}),
    "rounds": (stiff, (0.0, 10.0), [1.0, 0.0], {"method": "EK0", "global_rtol": 1e-12}),
    "steady": (stiff, (0.0, 10.0), [1.0, 0.0], {"method": "EK0", "until": "steady"}),
    "periodic": (stiff, (0.0, 10.0), [1.0, 0.0], {"method": "EK0", "until": "periodic"}),
    "SparseEK1": (noisy, (0.0, 10.0), [1.0] * 5, {"method": "SparseEK1", "rtol": 1e-10}),
}


@pytest.mark.parametrize("name", ENDLESS)
def test_limits_of_time_are_honoured(name):
    """Of the processor: the machine may be busy. Not of a first call, which compiles."""
    fun, span, y0, chosen = ENDLESS[name]
    solve_ivp(fun, span, y0, max_num_steps=20, **{**chosen, "global_rtol": None})
    before = time.process_time()
    result = solve_ivp(fun, span, y0, time_limit=0.4, **chosen)
    assert time.process_time() - before < 0.4 + SECONDS
    assert not result.success and result.message
    assert np.all(np.isfinite(result.y))


@pytest.mark.parametrize("name", ENDLESS)
def test_limits_of_steps_are_honoured(name):
    fun, span, y0, chosen = ENDLESS[name]
    result = solve_ivp(fun, span, y0, max_num_steps=50, **{**chosen, "global_rtol": None})
    assert result.posterior.stats.steps <= 50 and not result.success
    assert np.all(np.isfinite(result.y))


@pytest.mark.parametrize("method", ["EK0", "EK1", "DiagonalEK1", "SparseEK1"])
@pytest.mark.parametrize("fun", [blows_up, nowhere])
def test_where_there_is_no_solution_nothing_is_made_up(fun, method):
    result = solve_ivp(fun, (0.0, 2.0), [1.0], method=method, max_num_steps=5000)
    assert not result.success and result.message
    assert np.all(np.isfinite(result.y)) and np.all(result.t < 1.01)


@pytest.mark.parametrize("y0", [5e-324, 2.3e-308, 1e-300, 1e-150])
@pytest.mark.parametrize("method", ["EK0", "EK1"])
def test_next_to_nothing_is_not_nan(y0, method):
    """A rounding of y that has no digits left is none."""
    result = solve_ivp(lambda t, y: 0.0 * y, (0.0, 1.0), [y0], method=method, order=2)
    np.testing.assert_array_equal(result.y, np.full_like(result.y, y0))


HARDLY_NORMAL = 10.0 ** -np.array([295.3, 302.2, 303.7244, 304.1, 306, 308, 311, 320, 323.3])


def decay(t, y):
    return -200.0 * y


@pytest.mark.parametrize("order", [1, 2, 5])
@pytest.mark.parametrize("method", ["EK0", "EK1"])
@pytest.mark.parametrize("d", [1, 2, 6])
def test_uncertainties_below_the_normal_numbers_are_not_nan(method, order, d):
    """Their inverses may overflow: found with y(0) = 1.9e-304 over 1e-9."""
    for size in HARDLY_NORMAL:
        result = solve_ivp(decay, (0.0, 1e-9), np.full(d, size), method=method, order=order)
        np.testing.assert_allclose(result.y, size, rtol=1e-6, atol=1e-323)
        assert np.all(np.isfinite(result.y_std))


@pytest.mark.parametrize("length", [1e-9, 1e-2])
@pytest.mark.parametrize("solver", [EK0(1), EK0(3), EK1(2)], ids=lambda s: s.name)
def test_members_below_the_normal_numbers_are_not_nan(solver, length):
    starts, times = np.repeat(HARDLY_NORMAL[:, None], 2, axis=1), np.linspace(0.0, length, 5)
    found = solve_ensemble(decay, (0.0, length), starts, solver=solver, save_at=times)
    assert np.all(found.status == Status.SUCCESS.value)
    assert np.all(np.abs(found.mean) <= 1.001 * starts[:, None] + 1e-323)
    assert np.all(np.isfinite(found.std))
