"""Equations of second order: against closed forms, and against systems of first order."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import probode
from probode import EK0, EK1, IWP, DiagonalEK1, Matern, PIControl, SecondOrder


def driven(t, y, v):
    return jnp.sin(2 * t) - y


def solve(span=(0.0, 6.0), start=(-1.0, 0.0), **options):
    return probode.solve(SecondOrder(driven), span, start, **options)


def exact(t):
    """Of ``x'' = sin 2t - x``, ``x(0) = -1``, ``x'(0) = 0``."""
    return (2 * np.sin(t) - 3 * np.cos(t) - np.sin(2 * t)) / 3


def exact_velocity(t):
    return (2 * np.cos(t) + 3 * np.sin(t) - 2 * np.cos(2 * t)) / 3


SOLVERS = [
    *(EK0(q) for q in (2, 8)),
    *(EK1(q) for q in (2, 8)),
    # Those in between are in other tests, too.
    *(pytest.param(solver(q), marks=pytest.mark.slow) for solver in (EK0, EK1) for q in (3, 5)),
    *(EK0(5, evaluations=2), DiagonalEK1(4), EK1(4, "fixed"), EK0(4, "dynamic-mv")),
    *(EK0(5, "damped"), EK1(5, initialization="runge-kutta")),
    pytest.param(EK1(Matern(4, 3.0)), marks=pytest.mark.slow),
]


@pytest.mark.parametrize("solver", SOLVERS, ids=lambda s: f"{s.name}-{s.diffusion.name}")
def test_value_and_velocity_are_right(solver):
    control = PIControl(1e-4, 1e-4) if solver.order < 4 else PIControl(1e-6, 1e-6)
    posterior = solve(solver=solver, control=control)
    assert posterior.success
    t = np.array([1.7, 6.0])
    bound = 20 * float(control.atol)
    np.testing.assert_allclose(posterior(t).mean, exact(t), atol=bound)
    np.testing.assert_allclose(posterior.derivative(t).mean, exact_velocity(t), atol=bound)


@pytest.mark.parametrize("solver", [EK0(3), EK1(3), EK1(5)], ids=lambda s: s.name)
def test_errors_fall_with_the_order(solver):
    """With a constant step, the error of ``y`` falls with (at least) the power ``order``."""
    errors = []
    for n in (40, 80):
        posterior = solve(solver=solver, step=6.0 / n)
        errors.append(np.max(abs(posterior.mean - exact(posterior.t))))
    assert errors[0] / errors[1] > 2 ** (solver.order - 0.5)


def pendulum(t, y, v, length):
    return -9.81 / length * jnp.sin(y) - 0.1 * v


def as_system(t, u, length):
    half = u.shape[0] // 2
    return jnp.concatenate([u[half:], pendulum(t, u[:half], u[half:], length)])


def test_it_agrees_with_the_system_of_first_order():
    y0, v0 = np.array([0.5, 2.0]), np.array([0.0, -1.0])
    length = np.array([1.0, 0.4])
    options = {"args": (length,), "solver": EK1(7), "control": PIControl(1e-9, 1e-9)}
    ours = probode.solve(SecondOrder(pendulum), (0.0, 3.0), (y0, v0), **options)
    system = probode.solve(as_system, (0.0, 3.0), np.concatenate([y0, v0]), **options)
    t = np.linspace(0.0, 3.0, 13)
    np.testing.assert_allclose(ours(t).mean, system(t).mean[:, :2], atol=1e-7)
    np.testing.assert_allclose(ours.derivative(t).mean, system(t).mean[:, 2:], atol=1e-7)


@pytest.mark.parametrize("solver", [EK0(4), EK1(4), EK1(3, "fixed")], ids=lambda s: s.name)
def test_a_solution_within_the_prior_is_found_exactly(solver):
    """``y'' = 6 t`` has a polynomial of degree 3 as its solution: no residual, no uncertainty."""
    posterior = probode.solve(
        SecondOrder(lambda t, y, v: 6.0 * t), (0.0, 2.0), (1.0, -1.0), solver=solver
    )
    np.testing.assert_allclose(posterior.mean, posterior.t**3 - posterior.t + 1.0, rtol=1e-12)
    assert np.all(posterior.std <= 1e-10)


def test_a_user_gives_the_jacobians_by_value_and_velocity():
    def jac(t, y, v, length):
        by_value = jnp.diag(-9.81 / length * jnp.cos(y))
        return jnp.concatenate([by_value, -0.1 * jnp.eye(2)], axis=1)

    y0, v0, length = np.array([0.5, 2.0]), np.zeros(2), np.array([1.0, 0.4])
    given = probode.solve(SecondOrder(pendulum), (0.0, 1.0), (y0, v0), (length,), jac=jac)
    found = probode.solve(SecondOrder(pendulum), (0.0, 1.0), (y0, v0), (length,))
    np.testing.assert_allclose(given.mean, found.mean, rtol=1e-10)


def test_save_at_gives_what_dense_output_gives():
    at = np.array([0.7, 2.2, 3.0])
    equation, start = SecondOrder(driven), (-1.0, 0.0)
    whole = probode.solve(equation, (0.0, 3.0), start, solver=EK1(3))
    saved = probode.solve(equation, (0.0, 3.0), start, solver=EK1(3), save_at=at)
    np.testing.assert_allclose(saved.mean, whole(at).mean, rtol=1e-9)
    np.testing.assert_allclose(saved.std[:-1], whole(at).std[:-1], rtol=1e-4)


@pytest.mark.parametrize("k", [0, 1], ids=["values", "velocities"])
def test_samples_spread_as_the_posterior_says(k):
    posterior = solve((0.0, 3.0), solver=EK1(3), step=0.25)
    drawn, at = posterior.sample(4000, t=[0.6, 2.1], k=k), posterior.derivative([0.6, 2.1], k)
    np.testing.assert_allclose((drawn.mean(0) - at.mean) / at.std, 0.0, atol=5 / np.sqrt(4000))
    np.testing.assert_allclose(drawn.std(0) / at.std, 1.0, atol=5 / np.sqrt(8000))


def pair(posterior, t):
    """What is known of value and velocity at times: errors and standard deviations, ``(N, 2)``."""
    at = posterior.state(t)
    return at.mean - np.stack([exact(t), exact_velocity(t)], axis=1), at.std


@pytest.mark.parametrize(
    "solver",
    [EK0(5), EK1(5), EK1(3), DiagonalEK1(4)],
    ids=lambda s: s.name,
)
def test_global_errors_of_value_and_velocity_are_estimated(solver):
    posterior = solve(solver=solver, control=PIControl(1e-5, 1e-5)).calibrate()
    t = posterior.t[1:]
    error, std = pair(posterior, t)
    found = np.stack([posterior.global_error(t, k) for k in (0, 1)], axis=1)
    # Between the steps the error is interpolated: an estimate, of its size.
    assert np.all(abs(found - error) <= 0.25 * np.max(abs(error), axis=0))
    chi2 = np.mean((error / std) ** 2, axis=0)
    assert np.all((chi2 > 1 / 3) & (chi2 < 3)), chi2
    assert posterior.diagnose().trusted
    corrected = np.stack([posterior.corrected(t, k) for k in (0, 1)], axis=1)
    np.testing.assert_allclose(corrected, posterior.state(t).mean - found, rtol=1e-12)


def stiff(t, y, v):
    """``(D + 1)(D + 1000) y = (D + 1)(D + 1000) cos``: the solution comes to ``cos t``."""
    return -1000.0 * (y - jnp.cos(t)) - 1001.0 * (v + jnp.sin(t)) - jnp.cos(t)


@pytest.mark.parametrize("solver", [EK1(4), DiagonalEK1(4)], ids=lambda s: s.name)
def test_global_errors_are_estimated_where_it_is_stiff(solver):
    posterior = probode.solve(
        SecondOrder(stiff), (0.0, 5.0), (2.0, 0.0), solver=solver, calibration="defect"
    )
    t = np.linspace(0.5, 5.0, 31)
    # (D + 1)(D + 1000) z = 0 with z(0) = 1, z'(0) = 0; the fast part is gone.
    slow = 1000 / 999 * np.exp(-t)
    error = posterior(t).mean - np.cos(t) - slow, posterior.derivative(t).mean + np.sin(t) + slow
    std = posterior(t).std, posterior.derivative(t).std
    chi2 = np.mean((np.array(error) / np.array(std)) ** 2, axis=1)
    assert np.all((chi2 > 1 / 3) & (chi2 < 3)), chi2


@pytest.mark.parametrize("smooth", [True, False], ids=["smoother", "filter"])
def test_error_bars_at_saved_times_are_those_of_both(smooth):
    t = np.linspace(0.3, 6.0, 41)
    posterior = solve(solver=EK0(5), save_at=t, calibration="defect", smooth=smooth)
    at = posterior.state()
    error, std = at.mean - np.stack([exact(t), exact_velocity(t)], axis=1), at.std
    chi2 = np.mean((error / std) ** 2, axis=0)
    assert np.all((chi2 > 1 / 3) & (chi2 < 3)), chi2


def test_two_saved_times_have_bars_like_all_steps():
    t = np.array([1.0, 4.0])
    saved = solve(solver=EK0(5), save_at=t, calibration="defect").state().std
    whole = solve(solver=EK0(5), calibration="defect").state(t).std
    assert np.all((saved > whole / 10) & (saved < 10 * whole)), saved / whole


@pytest.mark.slow  # compiled for long; ensembles hold it, too
def test_error_bars_inside_jit_and_vmap_are_those_outside():
    t = np.linspace(1.0, 6.0, 6)

    def stds(v0):
        posterior = solve(start=(-1.0, v0), solver=EK0(5), save_at=t, calibration="defect")
        return posterior.state().std

    with jax.enable_x64(True):
        inside = jax.jit(jax.vmap(stds))(jnp.array([0.0, 1.0]))
    for row, v0 in zip(inside, (0.0, 1.0), strict=True):
        # Steps of another program: rounding moves the error by parts of itself.
        np.testing.assert_allclose(row, stds(v0), rtol=1e-3)


@pytest.mark.parametrize(
    "solver",
    [EK0(4), *(pytest.param(s, marks=pytest.mark.slow) for s in (EK1(4), DiagonalEK1(4)))],
    ids=lambda s: s.name,
)
def test_the_joint_covariance_is_that_of_joint_samples(solver):
    y0, length = np.array([0.5, 2.0]), np.array([1.0, 0.4])
    options = {"args": (length,), "solver": solver, "calibration": "defect"}
    posterior = probode.solve(SecondOrder(pendulum), (0.0, 1.0), (y0, 0 * y0), **options)
    at, n = posterior.state(0.61), 4000
    drawn = np.concatenate([posterior.sample(n, t=0.61, k=k) for k in (0, 1)], axis=1)
    spread = at.std.reshape(-1)
    np.testing.assert_allclose(np.sqrt(np.diagonal(at.cov)), spread, rtol=1e-12)
    correlation = at.cov / np.outer(spread, spread)
    sampled = np.cov(drawn.T) / np.outer(spread, spread)
    np.testing.assert_allclose(sampled, correlation, atol=6 / np.sqrt(n))
    direction = np.array([0.3, -1.0, 0.1, 0.2])
    np.testing.assert_allclose(at.project(direction) ** 2, direction @ at.cov @ direction)


def test_states_of_first_order_are_the_values():
    posterior = probode.solve(lambda t, y: -y, (0.0, 1.0), np.ones(2), solver=EK0(3))
    np.testing.assert_array_equal(posterior.state(0.4).mean, posterior(0.4).mean)


@pytest.mark.parametrize(
    "ask",
    [
        lambda p: p.global_error(k=2),
        lambda p: p.corrected(k=2),
        lambda p: p.sample(k=2),
        lambda p: p.derivative(k=9),
    ],
)
def test_derivatives_that_are_not_known_are_refused(ask):
    posterior = solve(solver=EK0(5), control=PIControl(1e-5, 1e-5)).calibrate()
    with pytest.raises(ValueError, match="k "):
        ask(posterior)


@pytest.mark.slow
def test_it_runs_inside_jit_vmap_and_grad():
    def end(v0):
        options = {"solver": EK0(4), "save_at": 2.0, "max_steps": 256}
        return solve((0.0, 2.0), (-1.0, v0), **options).mean[-1]

    with jax.enable_x64(True):
        ends, slopes = jax.jit(jax.vmap(jax.value_and_grad(end)))(jnp.array([0.0, 1.0]))
    # Linear in v0, with the solution sin t.
    assert ends[1] - ends[0] == pytest.approx(np.sin(2.0), abs=1e-5)
    np.testing.assert_allclose(slopes, np.sin(2.0), atol=1e-5)


def test_backwards_in_time():
    posterior = probode.solve(SecondOrder(driven), (3.0, 0.0), (exact(3.0), exact_velocity(3.0)))
    np.testing.assert_allclose(posterior.mean[-1], -1.0, atol=1e-5)


def test_states_keep_their_shape():
    y0 = np.ones((2, 3))
    posterior = probode.solve(
        SecondOrder(lambda t, y, v: -y), (0.0, 1.0), (y0, 0 * y0), solver=EK0(4)
    )
    assert posterior.mean.shape[1:] == (2, 3)
    np.testing.assert_allclose(posterior.mean[-1], np.cos(1.0), atol=1e-5)


@pytest.mark.parametrize(
    "atol", [[1e-3, 1e-8], [[1e-3, 1e-8], [1e-3, 1e-8]]], ids=["for-each", "pairs"]
)
def test_tolerances_of_components_hold_for_values_and_velocities(atol):
    control = PIControl(1e-12, np.array(atol))
    zeros = np.zeros(2)
    start = (np.array([1.0, 1.0]), zeros)
    posterior = probode.solve(SecondOrder(lambda t, y, v: -y), (0.0, 1.0), start, control=control)
    np.testing.assert_allclose(posterior.mean[-1][1], np.cos(1.0), atol=1e-7)


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (
            lambda: solve((0, 1), 1.0),
            TypeError,
            "needs 2 values at t0",
        ),
        (
            lambda: solve((0, 1), (1.0, [0.0, 1.0])),
            ValueError,
            "one shape",
        ),
        (
            lambda: solve((0, 1), (1.0, 0.0), solver=EK1(1)),
            ValueError,
            "too low",
        ),
        (lambda: SecondOrder(3.0), TypeError, "takes a function f"),
        (lambda: probode.solve(SecondOrder(), (0, 1), (1.0, 0.0)), TypeError, "has no function"),
    ],
)
def test_what_does_not_fit_is_said_before_any_step(call, error, words):
    with pytest.raises(error, match=words):
        call()


def test_the_prior_of_a_solver_is_the_one_that_was_given():
    assert EK1(Matern(3, 2.0)).prior == Matern(3, 2.0)
    assert EK1(IWP(4)).prior == IWP(4) == EK1(4).prior


def test_a_solve_that_leaves_the_domain_returns_what_it_has():
    equation = SecondOrder(lambda t, y, v: jnp.sqrt(y - 0.5))
    posterior = probode.solve(equation, (0.0, 10.0), (1.0, -2.0))
    assert posterior.status == probode.Status.NOT_FINITE
    assert 0.2 < posterior.t[-1] < 0.3


@pytest.fixture(scope="module")
def calibrated():
    return solve(solver=EK0(5), control=PIControl(1e-5, 1e-5)).calibrate()


@pytest.mark.parametrize("save_at", [None, [2.0, 6.0]], ids=["steps", "saved"])
def test_files_keep_value_and_velocity(tmp_path, save_at):
    posterior = solve(solver=EK0(5), save_at=save_at, calibration="defect")
    posterior.save(tmp_path / "swing.npz")
    again = probode.Posterior.load(tmp_path / "swing.npz")
    assert again.method.equation == posterior.method.equation
    np.testing.assert_array_equal(again.state().mean, posterior.state().mean)
    np.testing.assert_array_equal(again.state().std, posterior.state().std)
    assert again.diagnose().trusted


def test_pickles_keep_the_equation_for_a_later_calibration(calibrated):
    import pickle

    plain = solve(solver=EK0(5), control=PIControl(1e-5, 1e-5))
    again = pickle.loads(pickle.dumps(plain)).calibrate()
    np.testing.assert_allclose(again.state().std, calibrated.state().std, rtol=1e-6)


def test_tables_have_velocities_beside_values(calibrated):
    pytest.importorskip("xarray")
    table = calibrated.to_xarray()
    np.testing.assert_array_equal(table.dy[:, 0], calibrated.derivative().mean)
    np.testing.assert_array_equal(table.dy_std[:, 0], calibrated.derivative().std)
    frame = calibrated.to_dataframe(t=[1.0, 2.0])
    assert list(frame.columns) == ["y", "y_std", "dy", "dy_std"]
    np.testing.assert_array_equal(frame.dy, calibrated.derivative([1.0, 2.0]).mean)


def test_velocities_are_drawn_where_they_are_asked_for(calibrated):
    plt = pytest.importorskip("matplotlib.pyplot")
    for k, truth in ((0, exact), (1, exact_velocity)):
        figure = calibrated.plot(k=k, reference=lambda t, truth=truth: [truth(t)])
        line = figure.axes[0].lines[0]
        np.testing.assert_allclose(line.get_ydata(), truth(line.get_xdata()), atol=1e-4)
        calibrated.plot_samples(3, k=k)
    portrait = calibrated.plot_phase(enlarge=1.0).lines[0]
    value, velocity = portrait.get_data()
    np.testing.assert_allclose(
        (value[-1], velocity[-1]), (exact(6.0), exact_velocity(6.0)), atol=1e-4
    )
    plt.close("all")


def test_axes_say_that_they_show_velocities(calibrated):
    plt = pytest.importorskip("matplotlib.pyplot")
    labels = [ax.get_ylabel() for ax in calibrated.plot(k=1).axes]
    assert labels == ["velocity", "standard deviation,\nvelocity", "step size"]
    assert calibrated.plot_samples(3, k=1).get_ylabel() == "sample − mean,\nvelocity"
    assert calibrated.plot(k=2).axes[0].get_ylabel() == "acceleration"
    plt.close("all")


def test_it_is_shown_in_words(calibrated):
    assert "EK0(5)" in repr(calibrated) and calibrated._repr_html_()


def test_the_message_says_where_the_function_is_not_finite():
    equation = SecondOrder(lambda t, y, v: jnp.sqrt(y - 0.5))
    posterior = probode.solve(equation, (0.0, 10.0), (1.0, -2.0))
    assert "NaN" in posterior.message


@pytest.mark.slow
def test_a_switch_in_time_starts_anew_with_both():
    """``y'' = 1`` until ``t = 1``, then ``-1``: a parabola, and another one."""
    equation = SecondOrder(lambda t, y, v: jnp.where(t < 1.0, 1.0, -1.0))
    for save_at in (None, [0.5, 1.5, 2.0]):
        posterior = probode.solve(
            equation, (0.0, 2.0), (0.0, 0.0), solver=EK0(5), save_at=save_at, calibration="defect"
        )
        np.testing.assert_allclose(posterior.state().mean[-1], [1.0, 0.0], atol=1e-9)


@pytest.mark.slow
def test_an_equation_of_a_users_own_is_calibrated():
    """``4 y'' = -y``: cos(t / 2)."""
    from dataclasses import dataclass
    from typing import Any, ClassVar

    @dataclass(frozen=True)
    class Weighed(probode.Equation):
        masses: Any = 1.0
        order: ClassVar[int] = 2

        def residual(self, value, mean):
            return self.masses * mean[2] - value

        def blocks(self, jacobians):
            return {**super().blocks(jacobians), 2: self.masses}

        def explicit(self, value):
            return value / self.masses

    for solver in (EK0(4), EK1(4), DiagonalEK1(4)):
        posterior = probode.solve(
            Weighed(lambda t, y, v: -y, 4.0), (0.0, 6.0), (1.0, 0.0), solver=solver
        ).calibrate()
        t = np.linspace(0.5, 6.0, 23)
        error = posterior(t).mean - np.cos(t / 2)
        assert np.all(abs(posterior.global_error(t) - error) <= 0.1 * np.max(abs(error)))
