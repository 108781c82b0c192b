"""The transport by native kernels is that of JAX, step by step."""

import jax
import numpy as np
import pytest

from benchmarks import held_out
from probode import EK0, EK1, DiagonalEK1, PIControl, problems, solve
from probode.base.limits import Limits
from probode.base.precision import double_precision
from probode.engines import native
from probode.global_error import native as by_kernels
from probode.global_error.in_jax import carry_over
from probode.global_error.schemes import MODES, scheme_for
from probode.global_error.transport import Carry
from probode.programs.field import bind

pytestmark = pytest.mark.skipif(not native.available(), reason="native kernels were not built")

CASES = {
    "Newton": ("lotka-volterra", EK1(4), 1e-4),
    "Newton, with pivots off the diagonal": ("akzo-nobel", EK1(3), 1e-3),
    "Newton, repeated in layers": ("brusselator", EK1(2), 1e-1),
    "Newton, corrected again": ("fitzhugh-nagumo", EK1(3), 1e-2),
    "Newton, five components and more": ("hires", EK1(3), 1e-2),
    "sweeps": ("lotka-volterra", EK0(3), 1e-4),
    "diagonal sweeps": ("lotka-volterra", DiagonalEK1(3), 1e-4),
}


def solved(case):
    """The problem of a case, its solver, its solution."""
    name, solver, tolerance = CASES[case]
    problem = (problems if name in problems.names() else held_out).get(name)
    given = (problem.vector_field, problem.t_span, problem.y0, problem.args)
    control = PIControl(tolerance, tolerance * 1e-3)
    return problem, solver, solve(*given, solver=solver, control=control)


def _weight(case, mode):
    """The fast mode makes fewer stages in the same way: once for each way will do."""
    often = mode == "defect-fast" and case.startswith("Newton, ")
    return pytest.mark.slow if often else ()


@pytest.fixture(
    scope="module",
    params=[pytest.param((c, m), marks=_weight(c, m)) for c in CASES for m in MODES],
    ids=str,
)
def both(request):
    """The transport by kernels and in JAX, of a solve with a repeated node."""
    case, mode = request.param
    problem, solver, posterior = solved(case)
    t = np.insert(posterior.t, 5, posterior.t[5])
    means = np.insert(posterior.path.means, 5, posterior.path.means[5], axis=0)
    d = means.shape[-1]
    scheme = scheme_for(solver.method(d), True, mode)
    with double_precision():
        field = bind(
            problem.vector_field,
            np.asarray(t[0]),
            np.asarray(problem.y0),
            problem.args,
            None,
            diagonal=solver.jacobian == "diagonal",
        )
        known = means[:, : scheme.k + 1]
        in_jax = jax.jit(lambda t, m: carry_over(scheme, field, t, m, Carry.start(np, d))[1])
        expected = jax.tree.map(np.asarray, in_jax(t, known))
    return by_kernels.transport(scheme, field, t, means, Limits()), expected


@pytest.mark.parametrize("what", ["error", "stages", "first", "second"])
def test_errors_are_those_of_jax(both, what):
    one, other = (getattr(x, what) for x in both)
    size = np.abs(both[1].error).max(axis=0)
    np.testing.assert_allclose(one / size, other / size, atol=1e-6)


@pytest.mark.parametrize("what", ["corrections", "repeats"])
def test_the_same_steps_are_iterated(both, what):
    np.testing.assert_array_equal(*(getattr(x, what) for x in both))


def test_layers_are_repeated():
    """The case above is one: else it would test nothing."""
    posterior = solved("Newton, repeated in layers")[2].calibrate()
    assert posterior.calibration.jacobian_evaluations > len(posterior.t) - 1
