"""The native kernels compute what the JAX code computes."""

import os
import subprocess
import sys
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiling import jit_once
from only_python import number

from probode import (
    EK0,
    EK1,
    DiagonalEK1,
    PControl,
    PIControl,
    SecondOrder,
    problems,
    solve,
    solve_ivp,
)
from probode.engines import native

pytestmark = [
    pytest.mark.skipif(not native.available(), reason="native kernels were not built"),
    pytest.mark.optimised,
]

DIFFUSIONS = ["dynamic", "dynamic-mv", "fixed", "fixed-mv", "damped", "damped-mv"]
SOLVERS = {
    "EK0": EK0,
    "EK1": EK1,
    "DiagonalEK1": DiagonalEK1,
    "EK0 dense": partial(EK0, structure="dense"),
    "DiagonalEK1 dense": partial(DiagonalEK1, structure="dense"),
}
FIELDS = {
    "one component": (lambda t, y: -2.0 * y + jnp.sin(t), np.array([1.0])),
    "lotka-volterra": (
        lambda t, y: jnp.array([y[0] - y[0] * y[1], y[0] * y[1] - y[1]]),
        np.array([1.5, 0.5]),
    ),
    "five components": (
        lambda t, y: jnp.roll(y, 1) * jnp.roll(y, -1) - y + 0.5,
        np.array([0.1, 0.3, 0.2, -0.1, 0.4]),
    ),
    "exact zeros": (lambda t, y: jnp.array([0.0, 1.0, -y[2]]), np.array([1.0, 2.0, 3.0])),
}


def fall(t, y):
    return -y


def both(field, y0, t1=1.0, **options):
    """The same solve with native kernels, and without."""
    with_kernels = solve(field, (0.0, t1), y0, **options)
    with native.disabled():
        without = solve(field, (0.0, t1), y0, **options)
    return with_kernels, without


def assert_same(one, other, rtol=1e-7):
    """Equal up to rounding: means in units of their size, covariances in units of their largest."""
    assert one.status == other.status
    np.testing.assert_allclose(one.t, other.t, rtol=1e-9)
    np.testing.assert_allclose(one.mean, other.mean, rtol=1e-9, atol=1e-11)
    scale = np.abs(other.cov).max()
    np.testing.assert_allclose(one.cov, other.cov, rtol=rtol, atol=rtol * scale)
    assert one.stats.steps == other.stats.steps


# EK1's Jacobian couples the components: it has no diffusion for each.
# Each structure with two diffusions, the others are slow: the oracle judges all of them anyway.
CASES = [
    pytest.param(s, d, marks=() if d in ("dynamic", "dynamic-mv") else pytest.mark.slow)
    for s in SOLVERS
    for d in DIFFUSIONS
    if not (s == "EK1" and d.endswith("-mv"))
]


@pytest.mark.parametrize(("solver", "diffusion"), CASES)
def test_filter_and_smoother_on_a_grid(solver, diffusion, name="exact zeros"):
    field, y0 = FIELDS[name]
    method = SOLVERS[solver]
    one, other = both(
        field, y0, solver=method(3, diffusion), grid=np.r_[0.0, np.cumsum([0.1, 0.3, 0.2, 0.4])]
    )
    assert_same(one, other)


@pytest.mark.parametrize("solver", ["EK0", "EK1"])
@pytest.mark.parametrize("name", FIELDS)
def test_every_dimension(name, solver):
    test_filter_and_smoother_on_a_grid(solver, "dynamic", name)


@pytest.mark.parametrize(
    "order", [1, 8, *(pytest.param(q, marks=pytest.mark.slow) for q in (2, 5))]
)
def test_every_order(order):
    field, y0 = FIELDS["lotka-volterra"]
    one, other = both(field, y0, solver=EK1(order), step=0.05)
    assert_same(one, other, 1e-5)


@pytest.mark.parametrize("control", [PControl, PIControl])
@pytest.mark.parametrize("backwards", [False, True])
def test_adaptive_steps(control, backwards):
    """Steps are chosen from residuals near rounding: equal to a few digits less than the rest."""
    field, y0 = FIELDS["lotka-volterra"]
    one, other = both(
        field, y0, -4.0 if backwards else 4.0, solver=EK1(3), control=control(1e-5, 1e-7)
    )
    assert_same(one, other, 1e-4)


def test_log_evidence_and_calibration():
    field, y0 = FIELDS["lotka-volterra"]
    for diffusion in ("fixed", "fixed-mv"):
        one, other = both(field, y0, solver=DiagonalEK1(3, diffusion), step=0.1)
        np.testing.assert_allclose(one.diffusion, other.diffusion, rtol=1e-7)
        np.testing.assert_allclose(one.log_evidence, other.log_evidence, rtol=1e-9)


def test_many_chunks():
    """More steps than a chunk holds: chunks are joined without a seam."""
    field, y0 = FIELDS["one component"]
    one, other = both(field, y0, 30.0, solver=EK0(2), step=0.01)
    assert len(one.t) == 3001
    assert_same(one, other)


def test_a_state_too_large_for_vectors_in_registers():
    matrix = np.random.default_rng(1).normal(size=(9, 9)) / 9
    one, other = both(
        lambda t, y: jnp.asarray(matrix) @ y, np.linspace(0, 1, 9), solver=EK1(4), step=0.1
    )
    assert_same(one, other, 1e-5)


def test_scales_that_would_overflow_when_squared():
    for size in (1e-170, 1e150):
        one, other = both(fall, np.array([size, 2 * size]), solver=EK1(3), step=0.1)
        np.testing.assert_allclose(one.mean, other.mean, rtol=1e-9)
        np.testing.assert_allclose(one.std, other.std, rtol=1e-6, atol=1e-6 * size)


def test_a_vector_field_that_fails_is_rejected():
    """NaN beyond y = 1: the step that would cross it is refused, and the solve says so."""
    one, other = both(
        lambda t, y: jnp.where(y < 1.0, 1.0, jnp.nan), np.array([0.0]), 2.0, solver=EK1(2)
    )
    assert one.status == other.status and not one.success
    assert one.t[-1] == pytest.approx(other.t[-1], rel=1e-6)


def test_samples_agree():
    """Kernels and JAX give the same joint distribution: the same noise, up to its rotation."""
    field, y0 = FIELDS["lotka-volterra"]
    one, other = both(field, y0, solver=EK1(2), step=0.2)
    drawn = [np.asarray(p.sample(4000, seed=0)) for p in (one, other)]
    for i in (2, 4):
        spread = [np.cov(x[:, i].T) for x in drawn]
        np.testing.assert_allclose(spread[0], spread[1], rtol=0.1, atol=0.1 * spread[1].max())


def test_a_function_that_only_python_can_evaluate():
    def field(t, y):
        return [-y[0]] if number(y[0]) > -1e9 else [0.0]

    one = solve_ivp(field, (0, 2), [1.0], rtol=1e-8, atol=1e-10)
    with native.disabled():
        other = solve_ivp(field, (0, 2), [1.0], rtol=1e-8, atol=1e-10)
    assert one.path == other.path == "python"
    np.testing.assert_allclose(one.y[:, -1], other.y[:, -1], rtol=1e-9)
    np.testing.assert_allclose(one.y_std[:, -1], other.y_std[:, -1], rtol=1e-2)


def chain(t, y, v):
    """Of second order, damped and coupled: both Jacobians are full."""
    springs = -jnp.array([1.0, 4.0]) * jnp.sin(y)
    return springs + 0.3 * jnp.roll(y, 1) * v - 0.2 * jnp.roll(v, -1) + jnp.cos(t)


@pytest.mark.parametrize("solver", [EK0, EK1], ids=["EK0", "EK1"])
def test_a_listed_and_a_compiled_function_are_the_same(solver, monkeypatch):
    start = np.array([0.3, 1.0]), np.array([-1.0, 0.5])
    run = partial(solve, SecondOrder(chain), (0.0, 1.0), start, solver=solver(3))
    listed = run()
    monkeypatch.setattr("probode.engines.native.driver.lists_of", lambda *given: None)
    compiled = run()
    np.testing.assert_allclose(listed.t, compiled.t, rtol=1e-9)
    np.testing.assert_allclose(listed.mean, compiled.mean, rtol=1e-9)


def test_can_be_switched_off_by_the_environment():
    code = "from probode import native; print(native.available())"
    out = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={"PROBODE_NATIVE": "0", "PATH": ""},
    )
    assert out.stdout.strip() == "False"


def test_van_der_pol_takes_the_same_steps():
    problem = problems.get("van-der-pol")
    one, other = both(
        lambda t, y: problem.vector_field(t, y, *problem.args),
        problem.y0,
        float(problem.t_span[1]) / 100,
        solver=EK1(3),
        control=PControl(1e-3, 1e-6),
    )
    assert abs(int(one.stats.steps) - int(other.stats.steps)) <= 2


@jax.jit
def end_inside_jit(y0):
    posterior = solve(FIELDS["lotka-volterra"][0], (0.0, 3.0), y0, solver=EK1(2), save_at=3.0)
    return posterior.mean[-1], posterior.std[-1], posterior.stats.steps


def end_of(y0):
    """The same outside of any trace."""
    posterior = solve(FIELDS["lotka-volterra"][0], (0.0, 3.0), y0, solver=EK1(2), save_at=3.0)
    return posterior.mean[-1], posterior.std[-1], posterior.stats.steps


def test_the_kernels_run_inside_jit():
    assert "probode_solve_to_end" in str(jax.make_jaxpr(end_inside_jit)(np.ones(2)))


@pytest.mark.parametrize("what", range(3), ids=["mean", "std", "steps"])
def test_inside_jit_the_result_is_that_outside(what):
    y0 = FIELDS["lotka-volterra"][1]
    np.testing.assert_allclose(end_inside_jit(y0)[what], end_of(y0)[what], rtol=1e-9)


@pytest.mark.parametrize(
    "transform",
    [
        lambda f: jax.jit(jax.vmap(f)),
        pytest.param(lambda f: jax.vmap(jax.jit(f)), marks=pytest.mark.slow),
    ],
    ids=["vmap in jit", "jit in vmap"],
)
def test_a_batch_inside_jit_is_what_single_solves_are(transform):
    starts = np.array([[1.5, 0.5], [1.0, 2.0], [0.25, 0.5]])  # exact in single precision
    batch = transform(end_inside_jit)(starts)
    for i, start in enumerate(starts):
        np.testing.assert_allclose(batch[0][i], end_of(start)[0], rtol=1e-9)


def test_forward_derivatives_inside_jit_are_those_without_kernels():
    y0, direction = FIELDS["lotka-volterra"][1], np.array([1.0, -2.0])
    _, tangent = jax.jvp(lambda y: end_inside_jit(y)[0], (y0,), (direction,))
    with native.disabled():
        without = jit_once(lambda y, v: jax.jvp(lambda y: end_of(y)[0], (y,), (v,)))
        _, expected = without(y0, direction)
    np.testing.assert_allclose(tangent, expected, rtol=1e-8)


def test_a_solve_that_fails_inside_jit_says_so():
    def blow_up(y0):
        posterior = solve(lambda t, y: y**2, (0.0, 2.0), y0, save_at=2.0)
        return posterior.success, posterior.mean

    success, mean = jit_once(blow_up)(1.0)
    assert not success and np.all(np.isnan(mean))


def test_an_end_known_only_inside_the_trace():
    @jax.jit
    def at(t1):
        return solve(lambda t, y: -y, (0.0, t1), 1.0, save_at=t1).mean[-1]

    np.testing.assert_allclose(at(2.0), np.exp(-2.0), rtol=1e-5)


def in_new_process(expression, **environment):
    """What an expression about the library is in a process with these variables, or its error."""
    code = f"from probode.engines.native import library; print({expression})"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.strip() or done.stderr.strip().splitlines()[-1]


@pytest.mark.parametrize(
    ("wanted", "words"),
    [("baseline", "baseline"), ("sse9", "PROBODE_ISA=sse9: no kernels for it")],
    ids=["there", "unknown"],
)
def test_an_instruction_set_can_be_asked_for(wanted, words):
    """One that is not there is an error: nothing else is run in its place."""
    assert words in in_new_process("library.instruction_set()", PROBODE_ISA=wanted)
