"""Error bars where the solution crosses kinks of the vector field."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import solve_ivp as by_scipy

from probode import EK0, EK1, PIControl, SparseEK1, solve, solve_ivp
from probode.base.limits import Limits
from probode.base.precision import double_precision
from probode.global_error import closer, in_jax, interpolant, native
from probode.global_error.schemes import scheme_for
from probode.programs.field import bind
from probode.programs.kinks import has_kinks

KINKED = {
    "abs": lambda t, y: -jnp.abs(y) * y,
    "max": lambda t, y: jnp.maximum(y, 0.5),
    "max of all": lambda t, y: y - jnp.max(y),
    "where": lambda t, y: jnp.where(y > 1.0, -y, y),
    "sort": lambda t, y: jnp.sort(y),
    "rounded": lambda t, y: jnp.floor(y),
    "relu": lambda t, y: jax.nn.relu(y - 1.0),
    "in a branch": lambda t, y: jax.lax.cond(y[0] > 0.0, lambda y: y, lambda y: -y, y),
    "in a loop": lambda t, y: jax.lax.fori_loop(0, 3, lambda i, y: jnp.minimum(y, 1.0), y),
    "of both": lambda t, y: jnp.abs(y - t),
}
SMOOTH = {
    "polynomial": lambda t, y: y * (1.0 - y),
    "functions": lambda t, y: jnp.sin(y) + jnp.exp(-(y**2)) * jnp.sqrt(1.0 + y**2),
    "of time": lambda t, y: -y * jnp.abs(jnp.sin(t)) + jnp.where(t > 1.0, 1.0, 0.0),
    "places": lambda t, y: jnp.roll(y, 1) - y + y[jnp.argsort(jnp.array([2.0, 1.0]))],
    "a loop": lambda t, y: jax.lax.fori_loop(0, 3, lambda i, y: y * 0.5, y),
    "a matrix": lambda t, y: jnp.array([[0.0, 1.0], [-1.0, 0.0]]) @ y,
}


def program(function):
    with double_precision():
        return bind(function, np.asarray(0.0), np.ones(2), (), None, diagonal=False).program


@pytest.mark.parametrize("name", KINKED)
def test_kinks_in_the_state_are_read_from_the_program(name):
    assert has_kinks(program(KINKED[name]))


@pytest.mark.parametrize("name", SMOOTH)
def test_what_bends_in_time_or_not_at_all_has_no_kinks_in_the_state(name):
    assert not has_kinks(program(SMOOTH[name]))


random = np.random.default_rng(1)
INNER, SHIFT, OUTER = (random.normal(size=shape) for shape in ((8, 3), 8, (3, 8)))
START = random.normal(size=3)


def network(t, y):
    """A small network with ReLUs."""
    return OUTER @ np.maximum(INNER @ y + 0.3 * SHIFT, 0.0) / 8.0 - y


def friction(t, y):
    spring = np.maximum(0.0, 0.2 - y[0])
    return np.stack([y[1], -y[0] - 0.3 * y[1] * np.abs(y[1]) + spring])


def in_python(t, y):
    """The same, which cannot be traced."""
    spring = 0.2 - y[0] if float(y[0]) < 0.2 else 0.0
    return np.stack([y[1], -y[0] - 0.3 * y[1] * np.abs(y[1]) + spring])


def error_and_bars(function, start, solver, rtol, **options):
    """The posterior, its error at the steps, and chi²/d over them."""
    given = function, (0, 5), start
    options = {"dense_output": True, "rtol": rtol, "atol": 1e-3 * rtol, **options}
    posterior = solve_ivp(*given, solver, **options).posterior
    times = np.asarray(posterior.t)
    exact = by_scipy(*given, "DOP853", t_eval=times, rtol=1e-13, atol=1e-15, max_step=0.05).y.T
    error = np.asarray(posterior.mean) - exact
    chi2 = np.mean((error[1:] / np.asarray(posterior.std)[1:]) ** 2)
    return posterior, error, chi2


@pytest.mark.parametrize(
    ("function", "start", "solver"),
    [
        (network, START, EK0(3, evaluations=2)),
        (friction, [1.0, 0.0], EK1(3)),
        (in_python, [1.0, 0.0], EK0(3, evaluations=2)),
    ],
    ids=["EK0", "EK1", "by Python"],
)
def test_the_estimate_is_the_error_across_kinks(function, start, solver):
    posterior, error, chi2 = error_and_bars(function, start, solver, 1e-4)
    off = np.asarray(posterior.global_error()) - error
    assert np.linalg.norm(off) <= 0.05 * np.linalg.norm(error)
    assert 0.3 <= chi2 <= 3.0
    assert posterior.diagnose().trusted


CELLS = np.arange(12) / 12


def limited(t, u):
    """Advection with the minmod limiter."""
    left, right = u - np.roll(u, 1), np.roll(u, -1) - u
    slope = 0.5 * (np.sign(left) + np.sign(right)) * np.minimum(np.abs(left), np.abs(right))
    at_right = u + 0.5 * slope
    return -12.0 * (at_right - np.roll(at_right, 1))


def unlimited(t, u):
    return -6.0 * (np.roll(u, -1) - np.roll(u, 1)) + 12.0 * (
        np.roll(u, -1) - 2.0 * u + np.roll(u, 1)
    )


@pytest.mark.parametrize(
    "options", [{}, {"t_eval": [0.25, 0.5], "dense_output": False}], ids=["", "times"]
)
def test_an_estimate_that_cannot_see_kinks_is_flagged(options):
    """That of SparseEK1 compares slopes at the nodes."""
    given = (0, 0.5), 1.0 + 0.5 * np.sin(2.0 * np.pi * CELLS), SparseEK1(4)
    found = solve_ivp(limited, *given, rtol=1e-4, **options).posterior.diagnose()
    assert found.flags == ("kinks",)
    assert "max_step" in found.verdict
    assert solve_ivp(unlimited, *given, rtol=1e-4, **options).posterior.diagnose().trusted


def test_where_nothing_is_looked_at_the_verdict_says_so():
    control, times = PIControl(1e-4, 1e-7), [0.5, 1.0]
    options = {"solver": EK0(3), "control": control, "save_at": times, "calibration": "defect"}
    for function, words in (jnp.abs, True), (jnp.negative, False):
        posterior = solve(lambda t, y, f=function: f(y), (0, 1), [1.0], **options)
        assert ("f has kinks in y" in str(posterior.diagnose())) == words


def test_a_smooth_function_is_evaluated_no_more_often(monkeypatch):
    monkeypatch.setattr(closer, "missing", None)
    solve_ivp(lambda t, y: -y, (0, 1), [1.0], EK1(3))


def test_what_is_missed_is_seen_wherever_the_kink_is():
    """Gauss with four nodes is off by this on ``|t - a|``; one null rule alone loses some ``a``."""
    nodes, rules = closer.null_rules()
    gauss, of_gauss = np.polynomial.legendre.leggauss(4)
    for a in np.linspace(0.0, 1.0, 101):
        off = (a**2 + (1.0 - a) ** 2) / 2.0 - 0.5 * of_gauss @ np.abs(0.5 + 0.5 * gauss - a)
        seen = np.hypot(*(rules @ np.abs(nodes - a)))
        assert abs(off) <= 0.003 or 0.5 * abs(off) <= seen <= 3.0 * abs(off)
    for power in range(7):
        assert np.max(np.abs(rules @ nodes**power)) <= 1e-14


@pytest.mark.parametrize("k", [1, 2, 3])
def test_pieces_of_a_step_have_its_polynomial(k):
    t, means = np.array([0.0, 0.7, 1.5]), np.random.default_rng(k).normal(size=(3, k + 1, 2))
    times, values = closer.divided(k, t, means, np.array([8, 1]))
    assert len(times) == 10
    tau = (times[3] + 0.3 * (times[4] - times[3]) - t[0]) / 0.7

    def at(left, right, h, tau):
        w = interpolant.data(np, k, left, right, np.asarray(h))
        return left[0] + interpolant.value_rows(np, k, np.asarray(tau)) @ w

    one = at(values[3], values[4], times[4] - times[3], 0.3)
    np.testing.assert_allclose(one, at(means[0], means[1], 0.7, tau), rtol=1e-11)


def test_steps_divided_and_joined_are_as_exact_as_before():
    """Of a smooth function, where nothing is missed, errors and stages are the same."""
    given = lambda t, y: np.stack([y[1], -np.sin(y[0])]), (0, 5), [1.0, 0.0]
    posterior = solve_ivp(*given, EK0(3)).posterior
    scheme = scheme_for(posterior.method, True, "defect")
    t, means = np.asarray(posterior.t), np.asarray(posterior.path.means)
    pieces = np.where(np.arange(len(t) - 1) % 3 == 0, 8, 1)
    with double_precision():
        whole, parts = (
            native.transport(scheme, posterior.problem.field, *nodes, Limits())
            or in_jax.transport(scheme, posterior.problem.field, *nodes, Limits())
            for nodes in ((t, means), closer.divided(scheme.k, t, means, pieces))
        )
    parts, size = closer.joined(scheme, parts, pieces), np.abs(whole.error).max()
    np.testing.assert_allclose(parts.error, whole.error, atol=3e-3 * size)
    np.testing.assert_allclose(parts.stages, whole.stages, atol=1e-2 * size)
