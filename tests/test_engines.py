"""Engines behind one protocol: each runs what it supports by the model's own formulas."""

from contextlib import nullcontext
from dataclasses import dataclass, replace

import jax
import numpy as np
import pytest

import probode
from probode import (
    EK0,
    EK1,
    IWP,
    DynamicDiffusion,
    FixedDiffusion,
    Matern,
    PControl,
    PIControl,
    SecondOrder,
)
from probode.engines import lanes, native
from probode.engines.choice import ENGINES, engine_for, interpolator_for
from probode.engines.in_jax import JAX
from probode.engines.native.engine import NATIVE
from probode.filter.control import ConstantStep, GridSteps
from probode.filter.start import TaylorStart
from probode.filter.step import Method
from probode.model.equation import FirstOrder
from probode.model.structure import BlockDiagonal, Dense, Isotropic

D = 2
KERNELS = pytest.mark.skipif(not native.available(), reason="native kernels were not built")
METHOD, CONTROL = EK0(3).method(D), PIControl()
GRID = np.linspace(0.0, 1.0, 17)


def heir(kind, name, formula):
    """A class that inherits all of one of ours but one formula; a dataclass, as ours are."""
    return dataclass(frozen=True)(type(f"Own{kind.__name__}", (kind,), {name: formula}))


def thrice(kind, name):
    """The formula of ``kind``, with a result three times as large."""
    return heir(kind, name, lambda self, *given: 3.0 * getattr(kind, name)(self, *given))


OWN_PARTS = {
    "prior": {"prior": heir(IWP, "noise_scale", lambda self, ratio: 2.0 * ratio)(3)},
    "equation": {"equation": thrice(FirstOrder, "residual")(None)},
    "second order": {"equation": thrice(SecondOrder, "local_error")(None)},
    "isotropic": {"structure": thrice(Isotropic, "std")(4, D)},
    "block-diagonal": {"structure": thrice(BlockDiagonal, "std")(4, D)},
    "dense": {"structure": thrice(Dense, "std")(4, D)},
    "dynamic": {"diffusion": thrice(DynamicDiffusion, "step_scale")()},
    "fixed": {"diffusion": thrice(FixedDiffusion, "calibration")()},
}
OWN_METHODS = [
    *(pytest.param(replace(METHOD, **part), id=name) for name, part in OWN_PARTS.items()),
    pytest.param(type("OwnMethod", (Method,), {})(**vars(METHOD)), id="method"),
]
OWN_CONTROLS = [
    thrice(PControl, "factor")(1e-3, 1e-6),
    thrice(PIControl, "factor")(1e-3, 1e-6),
    thrice(ConstantStep, "next_time")(0.1, 0.0),
    thrice(GridSteps, "next_time")(np.linspace(0.0, 1.0, 5)),
]


class Of(EK0):
    """A solver with any method."""

    made = METHOD

    def method(self, d, *equation):
        return self.made


def in_lanes(method, control):
    solver = Of(3)
    object.__setattr__(solver, "made", method)
    return lanes.supports(solver, control, D, platform="cpu")


GATES = [
    pytest.param(NATIVE.supports, marks=KERNELS, id="native"),
    pytest.param(in_lanes, id="lanes"),
]


@pytest.mark.parametrize("supports", GATES)
def test_an_engine_with_our_formulas_takes_our_models(supports):
    assert supports(METHOD, CONTROL)


def test_equations_of_second_order_are_for_the_kernels_but_not_for_lanes():
    method = EK0(3).method(D, SecondOrder())
    assert NATIVE.supports(method, CONTROL) == native.available()
    assert not in_lanes(method, CONTROL)


@pytest.mark.parametrize("method", OWN_METHODS)
@pytest.mark.parametrize("supports", GATES)
def test_an_engine_with_our_formulas_refuses_others(supports, method):
    assert not supports(method, CONTROL)


@pytest.mark.parametrize("control", OWN_CONTROLS, ids=lambda control: type(control).__name__)
@pytest.mark.parametrize("supports", GATES)
def test_an_engine_with_our_controls_refuses_others(supports, control):
    assert not supports(METHOD, control)


@pytest.mark.parametrize("method", OWN_METHODS)
def test_dense_output_is_by_ones_own_formulas_too(method):
    assert interpolator_for(method) is JAX


@pytest.mark.parametrize("method", OWN_METHODS)
def test_what_no_other_engine_supports_runs_on_jax(method):
    assert engine_for(method, CONTROL) is JAX


@KERNELS
@pytest.mark.parametrize(
    ("wanted", "engine"), [("steps", NATIVE), ("end", NATIVE), ("times", JAX), ("grid", JAX)]
)
def test_the_engine_depends_on_what_is_wanted(wanted, engine):
    assert engine_for(METHOD, CONTROL, wanted) is engine


def test_the_last_engine_supports_everything():
    assert ENGINES[-1] is JAX
    assert JAX.supports(EK1(Matern(3, 1.0)).method(D), CONTROL)


# The posterior says who took the steps


def decay(t, y):
    return -y


def opaque(t, y):
    return np.array([-float(str(x)) for x in y])


def by_solve(**options):
    return probode.solve(decay, (0.0, 1.0), np.ones(D), **options)


def by_solve_ivp(function=decay, method="EK0", **options):
    return probode.solve_ivp(function, (0.0, 1.0), np.ones(D), method=method, **options).posterior


SOLVES = {
    "steps": by_solve,
    "end": lambda **options: by_solve(save_at=1.0, **options),
    "grid": lambda **options: by_solve(grid=np.linspace(0.0, 1.0, 9), **options),
    "solve_ivp": by_solve_ivp,
    "python": lambda **options: by_solve_ivp(opaque, **options),
}


@KERNELS
@pytest.mark.parametrize("solved", SOLVES.values(), ids=SOLVES)
def test_our_models_run_on_the_kernels(solved):
    assert solved().engine == "native"


@pytest.mark.parametrize("solved", SOLVES.values(), ids=SOLVES)
def test_without_the_kernels_on_jax(solved):
    with native.disabled():
        posterior = solved()
    assert posterior.engine == "jax"
    assert "by the jax engine" in repr(posterior)


@pytest.mark.parametrize("name", SOLVES)
def test_other_models_run_on_jax(name):
    solver = EK0(Matern(3, 1.0))
    how = {"method": solver} if name in ("solve_ivp", "python") else {"solver": solver}
    assert SOLVES[name](**how).engine == "jax"


def test_given_times_are_for_jax():
    assert by_solve(save_at=[0.5, 1.0]).engine == "jax"


def test_how_f_was_evaluated_is_another_matter():
    assert [by_solve_ivp(f).stats.path for f in (decay, opaque)] == ["jax", "python"]


def test_inside_a_trace_the_transformation_decides():
    def end(y0):
        return probode.solve(decay, (0.0, 1.0), y0, save_at=1.0)

    says = jax.jit(end)(np.ones(D)).engine
    assert says == ("native or jax" if native.available() else "jax")
    with native.disabled():
        assert jax.jit(lambda y0: end(y0 + 0.0))(np.ones(D)).engine == "jax"


@pytest.mark.parametrize("engine", ["vmapped", "kernels"])
def test_an_ensemble_says_who_solved_it(engine):
    if engine == "kernels" and not native.available():
        pytest.skip("native kernels were not built")
    ensemble = probode.solve_ensemble(
        decay, (0.0, 1.0), np.ones((3, D)), solver=EK0(2), save_at=1.0, engine=engine
    )
    assert ensemble.engine == engine
    assert engine in repr(ensemble)


def test_files_and_printed_forms_say_it(tmp_path):
    posterior = by_solve()
    posterior.save(tmp_path / "posterior.npz")
    assert probode.Posterior.load(tmp_path / "posterior.npz").engine == posterior.engine
    assert f"by the {posterior.engine} engine" in repr(posterior)


def test_of_an_older_posterior_nothing_is_said():
    older = replace(by_solve(), engine="unknown")
    assert "engine" not in repr(older)


# All engines give the same


@KERNELS
@pytest.mark.parametrize("solved", SOLVES.values(), ids=SOLVES)
def test_engines_agree(solved):
    with native.disabled():
        reference = solved()
    posterior = solved()
    np.testing.assert_allclose(posterior.t, reference.t, rtol=1e-9)
    np.testing.assert_allclose(posterior.mean, reference.mean, rtol=1e-9)
    np.testing.assert_allclose(posterior.std, reference.std, rtol=1e-5, atol=1e-14)


@dataclass(frozen=True)
class Half(TaylorStart):
    """Takes the third derivative, and those above, for half as large."""

    def __call__(self, *given):
        start = super().__call__(*given)
        return start._replace(mean=start.mean.at[3:].multiply(0.5))


@pytest.mark.parametrize("kernels", [True, False])
def test_a_start_of_ones_own_is_run_by_every_engine(kernels):
    """No engine has starts written out: they are programs, listed or compiled."""
    with nullcontext() if kernels else native.disabled():
        own, ours = (by_solve(solver=EK0(3, initialization=x())) for x in (Half, TaylorStart))
    ratio = own.derivative(0.0, 3).mean / ours.derivative(0.0, 3).mean
    np.testing.assert_allclose(ratio, 0.5, rtol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("kernels", [True, False])
def test_the_end_of_a_grid_has_derivatives_in_reverse(kernels):
    """Their number of steps is known: ``y(1) = y0 / e``."""

    def end(y0):
        return probode.solve(decay, (0.0, 1.0), y0, grid=GRID, save_at=1.0).mean[0]

    with nullcontext() if kernels else native.disabled(), jax.enable_x64(True):
        slope = jax.grad(end)(1.0)
    np.testing.assert_allclose(slope, np.exp(-1.0), rtol=1e-6)
