"""Invariants and bounds: what a posterior is held to besides its equation."""

import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiling import jit_once
from only_python import number
from scipy.integrate import solve_ivp as scipy_solve_ivp

import probode
from probode import EK0, EK1, DiagonalEK1, PIControl, Posterior, SecondOrder, solve_ivp

INERTIA = np.array([1.0, 2.0, 3.0])
START = np.array([0.8, 0.0, 0.6])
SPAN = (0.0, 10.0)
LOOSE = PIControl(1e-3, 1e-6)
SOLVERS = pytest.mark.parametrize("solver", [EK0(3), EK1(3), DiagonalEK1(3)], ids=lambda s: s.name)


def rigid(t, y):
    """A body that turns freely: the momentum's length and the energy stay as they are."""
    a, b, c = (1 / INERTIA[k] - 1 / INERTIA[j] for j, k in ((1, 2), (2, 0), (0, 1)))
    return jnp.stack([a * y[1] * y[2], b * y[2] * y[0], c * y[0] * y[1]])


def length(y):
    return y @ y - START @ START


def energy(y):
    return y @ (y / INERTIA) - START @ (START / INERTIA)


def both(y):
    return jnp.stack([length(y), energy(y)])


EK = EK1(3)


def solve(solver=EK, **options):
    return probode.solve(rigid, SPAN, START, solver=solver, control=LOOSE, **options)


def violation(y):
    """The largest of both invariants, whatever axes there are in front."""
    y = np.asarray(y).reshape(-1, 3)
    lengths = np.sum(y * y, 1) - START @ START
    energies = np.sum(y * y / INERTIA, 1) - START @ (START / INERTIA)
    return max(np.max(abs(lengths)), np.max(abs(energies)))


def reference(t):
    return scipy_solve_ivp(in_numpy, SPAN, START, "DOP853", t, rtol=1e-12, atol=1e-13).y.T


ROUNDING = 2e-15
"""Several roundings of numbers of size one."""


@SOLVERS
def test_means_and_samples_fulfil_all_of_them_at_any_time(solver):
    posterior, t = solve(solver, invariants=[length, energy]), np.linspace(*SPAN, 31)
    assert violation(solve(solver).mean) > 1e-7
    assert violation(posterior.mean) < ROUNDING
    assert violation(posterior(t).mean) < ROUNDING
    assert violation(posterior.sample(3, seed=0)) < ROUNDING
    assert violation(posterior.sample(3, seed=0, t=t)) < ROUNDING
    assert violation(solve(solver, invariants=both, smooth=False).mean) < ROUNDING


@pytest.mark.slow
@pytest.mark.parametrize("save_at", [None, np.linspace(*SPAN, 7)], ids=["dense", "saved"])
def test_samples_of_calibrated_posteriors_fulfil_them_too(save_at):
    posterior = solve(invariants=both, save_at=save_at, calibration="defect")
    assert violation(posterior.sample(3, seed=0)) < ROUNDING
    if save_at is None:
        assert violation(posterior.sample(3, seed=0, t=np.linspace(*SPAN, 31))) < ROUNDING
        assert violation(posterior.sample(3, seed=0, t=1.0)) < ROUNDING


def test_samples_of_second_order_fulfil_them_with_their_velocities():
    spring = probode.solve(
        *(SecondOrder(lambda t, y, v: -y), (0.0, 3.0), (1.0, 0.0)),
        solver=EK, invariants=lambda t, y, v: y**2 + v**2 - 1.0, calibration="defect",
    )  # fmt: skip
    y, v = (spring.sample(3, seed=0, k=k) for k in (0, 1))
    assert np.max(abs(y**2 + v**2 - 1.0)) < ROUNDING


@SOLVERS
def test_steps_and_engine_are_those_without(solver):
    held, free = solve(solver, invariants=both), solve(solver)
    assert held.engine == free.engine
    np.testing.assert_array_equal(held.t, free.t)
    np.testing.assert_array_equal(held.derivative().mean, free.derivative().mean)


@SOLVERS
def test_the_error_is_not_larger(solver):
    t = np.linspace(*SPAN, 41)
    true, held, free = reference(t), solve(solver, invariants=both)(t), solve(solver)(t)
    assert np.max(abs(held.mean - true)) < 1.2 * np.max(abs(free.mean - true))


@pytest.mark.slow
@SOLVERS
def test_save_at_is_dense_output(solver):
    t = np.linspace(*SPAN, 7)
    saved, dense = solve(solver, invariants=both, save_at=t), solve(solver, invariants=both)
    assert violation(saved.mean) < ROUNDING
    np.testing.assert_allclose(saved.mean, dense(t).mean, atol=1e-9)
    np.testing.assert_allclose(saved.std, dense(t).std, rtol=1e-4, atol=1e-9)
    assert violation(saved.sample(2, seed=0)) < ROUNDING


def test_dense_output_goes_through_the_steps():
    posterior = solve(invariants=both)
    near = posterior(posterior.t[1:-1] * (1 + 1e-12))
    np.testing.assert_allclose(near.mean, posterior.mean[1:-1], atol=1e-10)
    np.testing.assert_allclose(near.std, posterior.std[1:-1], rtol=1e-6)


def test_of_a_dense_covariance_nothing_is_left_across():
    posterior, free = solve(invariants=both), solve()
    across = 2 * posterior.mean[-1]  # the derivative of the length
    assert across @ free.cov[-1] @ across > 0
    assert across @ posterior.cov[-1] @ across < 1e-12 * (across @ free.cov[-1] @ across)


@pytest.mark.parametrize(
    "g",
    [
        lambda y: both(y),
        lambda t, y: both(y),
        lambda t, y, scale: scale * both(y),
        lambda t, y, *args: args[0] * both(y),
        (lambda y: length(y), lambda t, y, scale: energy(y)),
    ],
    ids=["y", "t-y", "args", "star", "mixed"],
)
def test_functions_may_leave_out_what_they_do_not_need(g):
    def scaled(t, y, scale):
        return scale * rigid(t, y)

    options = {"solver": EK1(3), "control": LOOSE, "args": (2.0,)}
    posterior = probode.solve(scaled, SPAN, START, invariants=g, **options)
    assert violation(posterior.mean) < ROUNDING


@pytest.mark.parametrize("solver", [EK0(3), EK1(3)], ids=lambda s: s.name)
def test_what_is_conserved_anyway_stays_as_it_is(solver):
    """Linear invariants: the sums of ``y`` and of ``f`` differ by rounding only."""

    def reactions(t, y):
        forth, back = y[0] - 0.5 * y[1], 0.2 * y[1] * y[2]
        return jnp.stack([back - forth, forth - 2 * back, back])

    y0 = np.array([1.0, 0.0, 0.5])
    options = {"solver": solver, "control": LOOSE}
    free = probode.solve(reactions, (0, 5), y0, **options)
    held = probode.solve(reactions, (0, 5), y0, invariants=lambda y: jnp.sum(y) - 1.5, **options)
    np.testing.assert_allclose(held.mean, free.mean, atol=1e-14)


@pytest.mark.parametrize("solver", [EK0(3), EK1(3)], ids=lambda s: s.name)
def test_error_bars_are_those_of_what_is_handed_out(solver):
    posterior = solve(solver, invariants=both).calibrate()
    true = reference(posterior.t)
    error = posterior.mean - true
    np.testing.assert_allclose(
        posterior.global_error()[-1], error[-1], rtol=0.1, atol=0.02 * np.max(abs(error))
    )
    square = np.mean((error[1:] / posterior.std[1:]) ** 2)
    assert 1 / 3 < square < 3
    assert posterior.diagnose().flags == ()


def swing(t, y, v):
    return -jnp.sin(y)


def swinging(t, y, v):
    return 0.5 * v**2 - jnp.cos(y) + jnp.cos(1.0)


@pytest.mark.parametrize("solver", [EK1(3), pytest.param(EK0(4), marks=pytest.mark.slow)])
def test_second_order_has_invariants_of_value_and_velocity(solver):
    def both_swinging(y, v):
        return swinging(0.0, y, v)

    for g in (swinging, both_swinging):
        posterior = probode.solve(
            SecondOrder(swing), (0, 8), (1.0, 0.0), solver=solver, control=LOOSE, invariants=g
        )
        for at in (None, np.linspace(0, 8, 9)):
            y = posterior.mean if at is None else posterior(at).mean
            v = posterior.derivative(at).mean
            assert np.max(abs(0.5 * v**2 - np.cos(y) + np.cos(1.0))) < ROUNDING


def in_numpy(t, y):
    a, b, c = (1 / INERTIA[k] - 1 / INERTIA[j] for j, k in ((1, 2), (2, 0), (0, 1)))
    return np.array([a * y[1] * y[2], b * y[2] * y[0], c * y[0] * y[1]])


def branching(t, y):
    return in_numpy(t, y) if number(y[0]) < 10 else y


def branching_length(y):
    return length(y) if number(y[0]) < 10 else 0.0


@pytest.mark.parametrize("fun", [in_numpy, branching], ids=["traced", "python"])
@pytest.mark.parametrize("g", [[length, energy], [branching_length, energy]], ids=["t", "p"])
def test_solve_ivp_takes_functions_as_they_are(fun, g):
    t = np.linspace(*SPAN, 5)
    result = solve_ivp(fun, SPAN, START, method=EK1(3), invariants=g, t_eval=t)
    assert result.success and violation(result.y.T) < ROUNDING
    assert np.all(abs(result.y.T - reference(t))[1:] < 5 * result.y_std.T[1:])


def test_states_at_events_fulfil_them():
    def crossing(t, y):
        return y[1]

    crossing.terminal = 2
    result = solve_ivp(in_numpy, (0, 100), START, EK1(3), events=crossing, invariants=both_in_numpy)
    assert result.status == 1 and len(result.t_events[0]) == 2
    assert violation(result.y_events[0]) < ROUNDING and violation(result.y.T) < ROUNDING


def both_in_numpy(y):
    return np.array([length(y), energy(y)])


def test_a_large_solve_at_chosen_times(monkeypatch):
    t = np.linspace(*SPAN, 5)
    full = solve_ivp(in_numpy, SPAN, START, EK1(3), invariants=both_in_numpy, t_eval=t)
    monkeypatch.setattr("probode.engines.kept.SPARSE_FROM", 2000)
    sparse = solve_ivp(in_numpy, SPAN, START, EK1(3), invariants=both_in_numpy, t_eval=t)
    assert type(sparse.posterior.path).__name__ == "ChosenPath"
    np.testing.assert_allclose(sparse.y, full.y, atol=1e-14)
    np.testing.assert_allclose(sparse.y_std, full.y_std, rtol=1e-6)


def test_a_tolerance_on_the_answer_is_met():
    result = solve_ivp(in_numpy, SPAN, START, method=EK1(3), invariants=length, global_rtol=1e-4)
    assert result.success and np.max(abs(length(result.y[:, -1]))) < ROUNDING


def test_complex_states():
    y0 = np.array([1.0 + 0j, 0.5j])
    norm = lambda y: np.sum(np.abs(y) ** 2) - 1.25  # noqa: E731
    turn = np.array([[0, 1], [1, 0.5]])
    result = solve_ivp(lambda t, y: -1j * (turn @ y), (0, 5), y0, invariants=norm)
    np.testing.assert_allclose(np.sum(abs(result.y) ** 2, 0), 1.25, atol=ROUNDING)


@pytest.mark.slow
def test_inside_jit_vmap_and_grad():
    grid = np.linspace(0.0, 1.0, 6)

    def end(y0):
        def g(y):
            return jnp.stack([y @ y - y0 @ y0, y @ (y / INERTIA) - y0 @ (y0 / INERTIA)])

        found = probode.solve(rigid, (0.0, 1.0), y0, solver=EK0(2), grid=grid, invariants=g)
        return jnp.sum(found.mean[-1] ** 2), (found.mean, found(0.5).mean)

    with jax.enable_x64(True):
        starts = jnp.stack([START, 2 * START])
        (squares, (means, between)), slopes = jit_once(
            jax.vmap(jax.value_and_grad(end, has_aux=True))
        )(starts)
    assert violation(means[0]) < ROUNDING and violation(between[0]) < ROUNDING
    np.testing.assert_allclose(squares, [1.0, 4.0], rtol=ROUNDING)
    # The invariant says how the length of the end depends on the start.
    np.testing.assert_allclose(slopes, 2 * np.asarray(starts), atol=1e-13)
    outside = probode.solve(rigid, (0.0, 1.0), START, solver=EK0(2), grid=grid, invariants=both)
    np.testing.assert_allclose(means[0], outside.mean, atol=1e-14)


def test_files_and_pickles_keep_it(tmp_path, caplog):
    posterior, t = solve(invariants=both), np.array([3.3])
    again = pickle.loads(pickle.dumps(posterior))
    np.testing.assert_array_equal(again(t).mean, posterior(t).mean)
    posterior.save(tmp_path / "it.npz")
    loaded = Posterior.load(tmp_path / "it.npz")
    np.testing.assert_array_equal(loaded.mean, posterior.mean)
    np.testing.assert_array_equal(loaded.std, posterior.std)
    assert violation(loaded(t).mean) > ROUNDING
    assert "does not have the functions of its invariants" in caplog.text


@pytest.mark.parametrize(
    ("g", "words"),
    [
        (lambda y: y @ y, "is 1 at the start: subtract its value"),
        (lambda y: jnp.stack([length(y), 3 * length(y)]), "number 1 of 2 is not: .* leave it out"),
        (lambda y: length(y) ** 2, "its derivative by y is zero there"),
        (lambda y: y - START, "changes at the rate"),
        (lambda y: y[0] - START[0] + y[2] - START[2] + y[1], "does not conserve it"),
        (lambda y: jnp.tile(length(y), 4), "4 of them for 3 components"),
        (lambda y: jnp.nan * length(y), "must be finite"),
        (lambda y: None, "returned None"),
        (7, "must be a function"),
        ([], "empty list"),
    ],
)
def test_what_is_no_invariant_is_refused(g, words):
    with pytest.raises((ValueError, TypeError), match=words):
        solve(invariants=g)
    with pytest.raises((ValueError, TypeError), match=words):
        solve_ivp(in_numpy, SPAN, START, invariants=g)


# Bounds -------------------------------------------------------------------------------------------


def drain(t, y):
    return -np.sqrt(y)


@pytest.mark.parametrize("method", ["EK0", "EK1"])
def test_a_tank_runs_empty(method):
    """``y = (1 - t/2)²`` until it is empty; without a bound f is asked for a root of ``y < 0``."""
    t = np.linspace(0, 5, 11)
    assert not solve_ivp(drain, (0, 5), [1.0], method).success
    result = solve_ivp(drain, (0, 5), [1.0], method, bounds=(0, np.inf), t_eval=t)
    assert result.success and np.all(result.y >= 0)
    np.testing.assert_allclose(result.y[0], np.maximum(1 - t / 2, 0) ** 2, atol=1e-3)


def test_values_are_inside_at_any_time():
    posterior = probode.solve(
        lambda t, y: -50 * y, (0, 2), [1.0], solver=EK0(3), control=PIControl(1e-2, 1e-2)
    )
    t = np.linspace(0, 2, 101)
    assert np.min(posterior(t).mean) < 0
    bounded = probode.solve(
        lambda t, y: -50 * y,
        *((0, 2), [1.0]),
        solver=EK0(3),
        control=PIControl(1e-2, 1e-2),
        bounds=(0, np.inf),
    )
    for values in (bounded.mean, bounded(t).mean, bounded.sample(5, seed=0)):
        assert np.min(values) == 0


def robertson(t, y):
    slow, fast, back = 0.04 * y[0], 3e7 * y[1] ** 2, 1e4 * y[1] * y[2]
    return np.array([back - slow, slow - back - fast, fast])


@pytest.mark.parametrize("rtol", [1e-1, 1e-3])
def test_mass_and_signs_hold_together(rtol):
    result = solve_ivp(
        *(robertson, (0, 1e4), [1.0, 0.0, 0.0], EK1(3)),
        rtol=rtol,
        atol=1e-3 * rtol,
        bounds=(0, 1),
        invariants=lambda y: y.sum() - 1,
    )
    assert result.success
    assert np.min(result.y) >= 0 and np.max(abs(result.y.sum(0) - 1)) < ROUNDING


def test_what_meets_its_bound_leaves_the_rest_to_others():
    """The nearest of ``(-1, 4, 4)`` with a sum of 6 and without negative numbers."""
    from probode.model.invariant import Bounds, Constraint
    from probode.programs.field import bind_values

    with jax.enable_x64(True):
        g = bind_values(
            *([lambda t, y: jnp.sum(y) - 6.0], lambda g: g, np.zeros(()), np.zeros(3), ()),
            name="invariants",
        )
        box = Bounds(np.zeros(3), np.full(3, np.inf))
        held = Constraint(g, box, 1e-3, 1.0)
        found = jit_once(lambda y, scale: held.land(0.0, y, scale))(
            jnp.array([-1.0, 4.0, 4.0]), jnp.ones(3)
        )
        np.testing.assert_allclose(found.state, [0.0, 3.0, 3.0], atol=1e-15)


@pytest.mark.parametrize(
    ("bounds", "words"),
    [
        ((0, 0.5), "y0`? is outside of bounds: component 0 is 0.8"),
        ((1, -1), "low <= high"),
        (0, "must be a pair"),
        ((0, [1.0, 2.0]), "high must be a number or have the shape"),
        (("a", 1), "made of numbers"),
    ],
)
def test_bounds_that_make_no_sense_are_refused(bounds, words):
    with pytest.raises((ValueError, TypeError), match=words):
        solve(bounds=bounds)
    with pytest.raises((ValueError, TypeError), match=words):
        solve_ivp(in_numpy, SPAN, START, bounds=bounds)
