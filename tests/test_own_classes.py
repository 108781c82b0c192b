"""Users' classes that inherit from ours run by their own formulas, whichever engine is fastest."""

from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import probode
from probode import EK0, DynamicDiffusion, FixedDiffusion, PControl
from probode.model.structure import Isotropic

Y0 = np.array([1.0, 0.5])
CONTROL = PControl(1e-4, 1e-6)


def field(t, y):
    return jnp.array([y[0] - y[0] * y[1], y[0] * y[1] - y[1]])


def opaque(t, y):
    """The same; only Python can evaluate it."""
    a, b = (float(str(x)) for x in y)
    return np.array([a - a * b, a * b - b])


def steps(solver, control):
    return probode.solve(field, (0.0, 2.0), Y0, solver=solver, control=control)


def end(solver, control):
    return probode.solve(field, (0.0, 2.0), Y0, solver=solver, control=control, save_at=2.0)


def in_a_trace(solver, control):
    return jax.jit(lambda y: end(solver, control))(Y0)


def driven_from_python(solver, control):
    options = {"method": solver, "control": control, "calibration": "model"}
    return probode.solve_ivp(opaque, (0.0, 2.0), Y0, **options).posterior


def ensemble(solver, control):
    options = {"solver": solver, "control": control, "calibration": "model"}
    return probode.solve_ensemble(field, (0.0, 2.0), Y0[None], **options)


DOORS = [steps, end, in_a_trace, driven_from_python, ensemble]


@dataclass(frozen=True)
class Wider(FixedDiffusion):
    """Error bars twice as wide as the estimate says."""

    def calibration(self, evidence):
        return 4.0 * super().calibration(evidence)


class Restless(DynamicDiffusion):
    """Thrice the noise."""

    def step_scale(self, local, unit, before):
        return 3.0 * super().step_scale(local, unit, before)


class Careful(PControl):
    """Steps as with half of ``rho``."""

    def factor(self, error, state, q):
        return 0.5 * super().factor(error, state, q)


@dataclass(frozen=True)
class Slower(PControl):
    """The same with a number of its own."""

    part: float = 0.5

    def factor(self, error, state, q):
        return self.part * super().factor(error, state, q)


class Twice(EK0):
    """EK0 with two evaluations in a step."""

    def method(self, d):
        return replace(super().method(d), evaluations=2)


class Plain(Isotropic):
    """A structure that inherits everything."""


class OwnStructure(EK0):
    def method(self, d):
        return replace(super().method(d), structure=Plain(self.order + 1, d))


@pytest.mark.parametrize("solved", DOORS)
def test_a_diffusion_calibrates_as_it_says(solved):
    own, ours = (solved(EK0(2, kind()), CONTROL) for kind in (Wider, FixedDiffusion))
    np.testing.assert_allclose(own.std, 2.0 * np.asarray(ours.std), rtol=1e-9)


@pytest.mark.parametrize("solved", [steps, driven_from_python])
def test_a_diffusion_adds_the_noise_it_says(solved):
    """At the end: what a start by Runge-Kutta does not know is no matter of the diffusion."""
    own, ours = (solved(EK0(2, kind()), CONTROL) for kind in (Restless, DynamicDiffusion))
    np.testing.assert_allclose(own.std[-1], 3.0 * np.asarray(ours.std[-1]), rtol=1e-6)


@pytest.mark.parametrize(
    ("solved", "kind"),
    [
        *((steps, Careful), (steps, Slower), (driven_from_python, Slower)),
        pytest.param(ensemble, Slower, marks=pytest.mark.slow),
    ],
)
def test_a_control_proposes_the_steps_it_says(solved, kind):
    own = solved(EK0(2), kind(1e-4, 1e-6))
    ours = solved(EK0(2), PControl(1e-4, 1e-6, rho=0.45))
    np.testing.assert_allclose(own.mean, ours.mean, rtol=1e-12)


@pytest.mark.parametrize("solved", [steps, driven_from_python])
def test_a_solver_runs_the_method_it_says(solved):
    own, ours = solved(Twice(2), CONTROL), solved(EK0(2, evaluations=2), CONTROL)
    np.testing.assert_allclose(own.mean, ours.mean, rtol=1e-12)


def test_a_structure_of_its_own_gives_what_it_inherits():
    own, ours = steps(OwnStructure(2), CONTROL), steps(EK0(2), CONTROL)
    np.testing.assert_allclose(own.std, ours.std, rtol=1e-6)
