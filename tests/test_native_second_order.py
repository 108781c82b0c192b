"""The native kernels compute what the JAX code computes, for equations of second order too.

The reference is compiled without LLVM's optimisations, which take most of its time: how it rounds
is no matter of these bounds. Where it is, the tests are in ``test_native``.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import probode
from probode import EK0, EK1, DiagonalEK1, PIControl, SecondOrder
from probode.engines import native

pytestmark = pytest.mark.skipif(not native.available(), reason="native kernels were not built")

GRID = np.r_[0.0, np.cumsum([0.1, 0.3, 0.2, 0.4])]
STIFFNESS = np.array([1.0, 4.0, 9.0, 2.0, 0.5, 3.0])


def chain(t, y, v):
    """Damped and coupled: both Jacobians are full."""
    springs = -jnp.asarray(STIFFNESS[: y.shape[0]]) * jnp.sin(y)
    return springs + 0.3 * jnp.roll(y, 1) * v - 0.2 * jnp.roll(v, -1) + jnp.cos(t)


def in_part_exact(t, y, v):
    """Components without residuals, without a Jacobian, and with one."""
    return jnp.array([0.0, 2.0, -y[2] - 0.1 * v[2]])


def start(d):
    return np.linspace(0.3, 1.0, d), np.linspace(-1.0, 0.5, d)


def both(function, values, t1=1.0, **options):
    """The same solve with native kernels, and without."""
    equation, span = SecondOrder(function), (0.0, t1)
    one = probode.solve(equation, span, values, **options)
    with native.disabled():
        other = probode.solve(equation, span, values, **options)
    assert (one.engine, other.engine) == ("native", "jax")
    return one, other


def assert_same(one, other, rtol=1e-7, derivatives=(0, 1, 2)):
    """Equal up to rounding: means in units of their size, covariances of their largest."""
    assert one.status == other.status
    assert one.stats.steps == other.stats.steps
    np.testing.assert_allclose(one.t, other.t, rtol=1e-9)
    inside = (one.t[1:] + one.t[:-1]) / 2
    for derivative in derivatives:
        ours, theirs = (x.derivative(inside, derivative) for x in (one, other))
        size = np.abs(theirs.mean).max()
        np.testing.assert_allclose(ours.mean, theirs.mean, rtol=1e-9, atol=1e-10 * size)
        largest = np.abs(theirs.cov).max()
        np.testing.assert_allclose(ours.cov, theirs.cov, rtol=rtol, atol=rtol * largest)


STRUCTURES = {
    "EK0": EK0(3),
    "EK0 twice": EK0(3, evaluations=2),
    "EK0 by component": EK0(3, "dynamic-mv"),
    "EK0 dense": EK0(3, structure="dense"),
    "EK0 fixed": EK0(3, "fixed"),
    "EK1": EK1(3),
    "EK1 fixed": EK1(3, "fixed"),
    "EK1 damped": EK1(3, "damped"),
    "DiagonalEK1": DiagonalEK1(3),
    "DiagonalEK1 by component": DiagonalEK1(3, "fixed-mv"),
    "DiagonalEK1 dense": DiagonalEK1(3, structure="dense"),
}


COSTLY = ("EK0 twice", "EK0 fixed", "EK1 damped", "DiagonalEK1 by component", "DiagonalEK1 dense")


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.slow] * (name in COSTLY)) for name in STRUCTURES],
)
def test_filter_and_smoother_of_every_structure(name):
    one, other = both(in_part_exact, start(3), solver=STRUCTURES[name], grid=GRID)
    assert_same(one, other)
    np.testing.assert_allclose(one.log_evidence, other.log_evidence, rtol=1e-9)
    np.testing.assert_allclose(one.diffusion, other.diffusion, rtol=1e-7)


@pytest.mark.parametrize("d", [1, 6, *(pytest.param(d, marks=pytest.mark.slow) for d in (2, 4))])
def test_every_width_of_a_block(d):
    """Loops unrolled, and (from five components on) covariances and the whitened smoother."""
    assert_same(*both(chain, start(d), solver=EK1(4), step=0.05), 1e-5)


@pytest.mark.parametrize("solver", [EK0, EK1], ids=["EK0", "EK1"])
@pytest.mark.parametrize("order", [2, *(pytest.param(q, marks=pytest.mark.slow) for q in (5, 8))])
def test_every_order(solver, order):
    assert_same(*both(chain, start(2), solver=solver(order), step=0.05), 1e-4)


def test_wide_blocks_that_are_too_steep_for_squares():
    stiffness = 10.0 ** np.arange(-1.0, 11.0, 2.0)

    def steep(t, y, v):
        return jnp.cos(t) - stiffness * y - 100.0 * v

    values = 1.0 / stiffness, np.zeros(6)
    # The acceleration has 1e9 times the rounding of the value.
    assert_same(*both(steep, values, solver=EK1(3), step=0.05), 1e-5, derivatives=(0, 1))


@pytest.mark.parametrize("t1", [2.0, -1.0])  # backwards it is unstable, and rounding grows
@pytest.mark.parametrize("solver", [EK0(4), EK1(4)], ids=["EK0", "EK1"])
def test_adaptive_steps(solver, t1):
    """Steps are chosen from residuals near rounding: equal to a few digits less than the rest."""
    one, other = both(chain, start(2), t1, solver=solver, control=PIControl(1e-5, 1e-7))
    assert_same(one, other, 1e-4)


def test_tolerances_of_values_and_of_velocities():
    """The velocity's may be loose, or the value's, or both tight: as many steps as with JAX."""
    steps = []
    for atol in ([1e-6, 1.0], [1.0, 1e-6], [1e-6, 1e-6]):
        control = PIControl(1e-12, np.array(atol)[:, None] * np.ones(2))
        one, other = both(chain, start(2), solver=EK1(4), control=control)
        assert one.stats.steps == other.stats.steps
        steps.append(one.stats.accepted)
    assert steps[0] < steps[1] <= steps[2]


def test_what_a_step_cannot_resolve_of_the_velocity_is_no_information():
    """Velocities of 1e6 and residuals of 1e-12: their last digit says nothing of ``y''``."""
    values = (np.zeros(2), np.array([1e6, -1e6]))
    one, other = both(lambda t, y, v: -1e-9 * v, values, solver=EK1(3), step=0.05)
    for posterior in (one, other):
        second = posterior.derivative(one.t, 2).mean
        np.testing.assert_allclose(second, -1e-9 * values[1] * np.ones_like(second), rtol=1e-6)


@pytest.mark.parametrize("solver", [EK0(4), EK1(4)], ids=["EK0", "EK1"])
def test_the_end_inside_jit(solver):
    def end(y0, v0):
        options = {"solver": solver, "save_at": 2.0, "control": PIControl(1e-8, 1e-8)}
        return probode.solve(SecondOrder(chain), (0.0, 2.0), (y0, v0), **options)

    with jax.enable_x64(True):
        inside = jax.jit(end)(*start(2))
    outside = end(*start(2))
    with native.disabled():
        reference = end(*start(2))
    assert inside.engine == "native or jax"
    assert (outside.engine, reference.engine) == ("native", "jax")
    for found in (inside, outside):
        np.testing.assert_allclose(found.mean, reference.mean, rtol=1e-9)
        np.testing.assert_allclose(found.std, reference.std, rtol=1e-4)


def test_a_function_that_is_not_listed():
    """XLA evaluates it between the steps: a loop inside of it."""

    def looping(t, y, v):
        def body(carry):
            n, x = carry
            return n + 1, x - 0.1 * y

        return jax.lax.while_loop(lambda carry: carry[0] < 10, body, (0, 0.0 * v))[1]

    one, _ = both(looping, start(2), solver=EK0(5), control=PIControl(1e-9, 1e-9))
    (y0, v0), t = start(2), one.t[:, None]
    np.testing.assert_allclose(one.mean, y0 * np.cos(t) + v0 * np.sin(t), atol=1e-7)


@pytest.mark.slow
def test_switches_in_time_start_anew():
    def kicked(t, y, v):
        return jnp.where(t < 0.5, 1.0, -1.0) - y

    # Within the step across the acceleration is anything.
    assert_same(*both(kicked, start(2), solver=EK1(3)), 1e-4, derivatives=(0, 1))
