"""Lanes: the same answers as one solve at a time, whoever the neighbours are."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import probode
from probode.base.precision import double_precision
from probode.engines.lanes import Members, Unsupported, engine, solve_lanes, supports
from probode.engines.lanes.problem import Problem
from probode.programs.unroll import entries as e
from probode.programs.unroll.entries import Lanes
from probode.programs.unroll.interpret import lift

pytestmark = pytest.mark.optimised

CONTROL = probode.PIControl(rtol=1e-5, atol=1e-7)


def lotka_volterra(t, y, a, shared):
    return jnp.array([a * y[0] - y[0] * y[1], shared["b"] * y[0] * y[1] - 3 * y[1]])


def ensemble(count, save_at=2.0, t1=2.0, rate=None):
    rate = np.linspace(0.5, 2.5, count) if rate is None else rate
    start = np.stack([np.linspace(1.0, 2.0, count), np.ones(count)], axis=1)
    return Members(
        t0=np.zeros(count),
        t1=np.full(count, t1),
        y0=start,
        rtol=np.full(count, 1e-5),
        atol=np.full(count, 1e-7),
        save_at=np.atleast_1d(save_at),
        args=(rate, {"b": 1.1}),
        axes=(0, None),
    )


def one_at_a_time(members, i, solver, control=CONTROL, **options):
    return probode.solve(
        lotka_volterra,
        (members.t0[i], members.t1[i]),
        members.y0[i],
        (members.args[0][i], members.args[1]),
        solver=solver,
        control=control,
        save_at=members.times[i],
        **options,
    )


def assert_equal(results, members, solver, indices, control=CONTROL, **options):
    """Means agree to 1e-6 of a standard deviation, which is rounding: a step has 1e-10 of it."""
    for i in indices:
        alone = one_at_a_time(members, i, solver, control, **options)
        assert alone.stats.steps == results.steps[i]
        assert alone.stats.f_evaluations == results.f_evaluations[i]
        assert np.max(np.abs(alone.mean - results.mean[i]) / alone.std) < 1e-6
        np.testing.assert_allclose(results.std[i], alone.std, rtol=1e-6)


# --- programs on lanes


def matrix_program(x):
    turned = x[::-1].T @ x
    return jnp.concatenate([turned, jnp.diag(x[0])])[1:].sum(0), jnp.where(x[0] > 0, x[1], 2.0)


def branching_program(x):
    low = jax.lax.cond(x[0, 0] > 0, lambda: x.sum(), lambda: jnp.max(x))
    return jax.lax.fori_loop(0, 3, lambda k, y: jnp.sin(y) + k, low)


def updating_program(x):
    return x.at[1].set(x[0] / x[2, 1]), x[jnp.array([2, 0]), 1], jnp.prod(x), jnp.all(x > -9)


def transforming_program(x):
    modes = jnp.fft.rfft(x, axis=0)
    return jnp.fft.irfft(modes * jnp.abs(modes), 3, axis=0), jnp.fft.fft2(x).imag


PROGRAMS = [matrix_program, branching_program, updating_program, transforming_program]


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_lifted_program_is_the_batched_one(program):
    with double_precision():
        batch = jnp.asarray(np.random.default_rng(1).normal(size=(8, 3, 2)))
        expected = jax.vmap(program)(batch)
        lanes = Lanes((3, 2), [batch[:, i, j] for i in range(3) for j in range(2)])
        lifted = lift(program, lanes)
        for lane, array in zip(jax.tree.leaves(lifted), jax.tree.leaves(expected), strict=True):
            stacked = np.stack([np.broadcast_to(x, (8,)) for x in lane.entries], axis=1)
            np.testing.assert_allclose(stacked, np.asarray(array).reshape(8, -1), rtol=1e-13)


def test_known_zeros_of_a_jacobian_cost_nothing():
    def jacobian(y):
        return jax.jacfwd(lambda y: jnp.array([y[0] * y[0], y[1] * y[2], 3.0 * y[2]]))(y)

    with double_precision():
        y = jnp.ones(4)
        entries = lift(jacobian, Lanes((3,), [y, 2 * y, 3 * y])).entries
    assert [i for i, x in enumerate(entries) if not e.zero(x)] == [0, 4, 5, 8]
    assert entries[8] == 3.0


def test_a_triangular_factor_keeps_the_covariance():
    with double_precision():
        matrix = np.random.default_rng(2).normal(size=(7, 4))
        matrix[4:, :2] = 0.0
        rows = [[x if x == 0.0 else jnp.full(3, x) for x in row] for row in matrix]
        factor = e.triangular(rows, 4)
        full = np.array([[np.broadcast_to(x, 3)[1] for x in row] for row in factor])
    assert np.all(np.tril(full, -1) == 0.0)
    np.testing.assert_allclose(full.T @ full, matrix.T @ matrix, rtol=1e-12, atol=1e-12)


def test_a_loop_until_convergence_has_no_form_on_lanes():
    def newton(t, y, a, shared):
        return jax.lax.while_loop(lambda x: x[0] > 1, lambda x: 0.5 * x, y)

    with pytest.raises(Unsupported, match="while"):
        solve_lanes(newton, ensemble(3), solver=probode.EK0(1), control=CONTROL)


# --- the same answers

SOLVERS = [
    probode.EK0(2),
    probode.EK0(1, "damped", evaluations=2),
    pytest.param(probode.EK0(1, "dynamic-mv", evaluations=2), marks=pytest.mark.slow),
    pytest.param(probode.EK0(2, "fixed"), marks=pytest.mark.slow),
    probode.EK0(1, "dynamic-mv", initialization="runge-kutta"),
    probode.DiagonalEK1(1),
    probode.EK1(1),
]


@pytest.mark.parametrize("solver", SOLVERS, ids=lambda s: f"{s.name}-{s.diffusion.name}")
def test_the_end_is_that_of_one_solve_at_a_time(solver):
    members = ensemble(150)  # more than there are lanes: members wait for their turn
    results = solve_lanes(lotka_volterra, members, solver=solver, control=CONTROL)
    assert np.all(results.status == 0)
    assert_equal(results, members, solver, [0, 70, 149])


def test_backwards_in_time_with_proportional_control():
    members, solver = ensemble(5, save_at=-1.0, t1=-1.0), probode.EK0(1)
    control = probode.PControl(rtol=1e-5, atol=1e-7)
    results = solve_lanes(lotka_volterra, members, solver=solver, control=control)
    assert_equal(results, members, solver, [0, 4], control)


@pytest.mark.parametrize("smooth", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_save_points_are_those_of_one_solve_at_a_time(smooth):
    times = [0.0, 0.5, 0.5001, 1.7]  # the start, two within a step, and none at the end
    members, solver = ensemble(70, save_at=times), probode.EK0(1)
    results = solve_lanes(
        lotka_volterra, members, solver=solver, control=CONTROL, smooth=smooth, covariance=True
    )
    for i in (0, 33, 69):
        alone = one_at_a_time(members, i, solver, smooth=smooth)
        scale = np.where(alone.std > 0, alone.std, 1.0)
        assert alone.stats.steps == results.steps[i]
        assert np.max(np.abs(alone.mean - results.mean[i]) / scale) < 1e-6
        np.testing.assert_allclose(results.std[i], alone.std, rtol=1e-6)
        np.testing.assert_allclose(results.cov[i], alone.cov, rtol=2e-6, atol=0)


def test_a_member_is_the_same_bit_by_bit_whoever_its_neighbours_are():
    members, solver = ensemble(150), probode.EK0(2)
    together = solve_lanes(lotka_volterra, members, solver=solver, control=CONTROL)
    alone = np.array([17, 149])
    few = Members(
        **{name: getattr(members, name)[alone] for name in ("t0", "t1", "y0", "rtol", "atol")},
        save_at=members.save_at,
        args=(members.args[0][alone], members.args[1]),
        axes=members.axes,
    )
    again = solve_lanes(lotka_volterra, few, solver=solver, control=CONTROL)
    assert np.array_equal(again.mean, together.mean[alone])
    assert np.array_equal(again.std, together.std[alone])


def test_a_member_that_fails_is_marked_and_the_others_are_not_touched():
    rate = np.linspace(0.5, 2.5, 70)
    bad = rate.copy()
    bad[5] = np.nan
    solver = probode.EK0(2)
    good = solve_lanes(lotka_volterra, ensemble(70), solver=solver, control=CONTROL)
    results = solve_lanes(lotka_volterra, ensemble(70, rate=bad), solver=solver, control=CONTROL)
    others = np.arange(70) != 5
    assert probode.Status(results.status[5]) is probode.Status.START_NOT_FINITE
    assert np.all(np.isnan(results.mean[5])) and np.all(np.isnan(results.std[5]))
    assert np.array_equal(results.mean[others], good.mean[others])


def test_the_number_of_steps_can_be_bounded():
    members, solver = ensemble(3), probode.EK0(2)
    results = solve_lanes(lotka_volterra, members, solver=solver, control=CONTROL, max_steps=7)
    assert np.all(results.status == probode.Status.MAX_STEPS)
    assert np.all(results.steps == 7)


def test_new_values_do_not_recompile():
    compiled = []

    def record(event, duration, **_):
        if event == "/jax/core/compile/backend_compile_duration":
            compiled.append(event)

    jax.monitoring.register_event_duration_secs_listener(record)
    solver = probode.EK0(probode.IWP(1))  # of no other test here
    solve_lanes(lotka_volterra, ensemble(3), solver=solver, control=CONTROL)
    once = len(compiled)
    control = probode.PIControl(rtol=1e-3, rho=0.8)
    solve_lanes(lotka_volterra, ensemble(9, 1.0, 1.0), solver=solver, control=control)
    assert once >= 1 and len(compiled) == once


def test_the_kernel_for_gpus_does_the_same():
    members, solver = ensemble(32), probode.EK0(1)
    expected = solve_lanes(lotka_volterra, members, solver=solver, control=CONTROL)
    with double_precision():
        problem = Problem.of(lotka_volterra, members, solver, CONTROL)
        inputs = problem.part(slice(0, 32), 32)
        run = engine._compiled_kernel(problem.task, interpret=True)
        counts, marginals = run(np.inf, 32, *inputs)
        results = problem.results(np.asarray(counts), np.asarray(marginals))
    assert np.array_equal(results.steps, expected.steps)
    np.testing.assert_allclose(results.mean, expected.mean, rtol=1e-11)


def test_large_systems_and_unknown_controls_are_left_to_other_engines():
    assert supports(probode.EK0(3), CONTROL, 3, platform="cpu")
    assert supports(probode.EK1(2), CONTROL, 3, platform="gpu")
    assert not supports(probode.EK1(5), CONTROL, 10, platform="gpu")
    assert not supports(probode.EK0(3), CONTROL, 3, only_end=False, platform="gpu")
    assert not supports(probode.EK0(3), CONTROL, 3, count=10, platform="cpu")
    assert not supports(probode.EK0(3), object(), 3)
    assert not supports(probode.EK0(3), CONTROL, 3, numbers=10_000)
