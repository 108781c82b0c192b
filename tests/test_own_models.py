"""Equations and priors of a user's own, written with public names only."""

import pickle
from dataclasses import dataclass
from math import factorial
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiling import jit_once

import probode
from probode import EK0, EK1, IWP, DiagonalEK1, Equation, Matern, Prior, SecondOrder
from probode.base.jax_inside import equations
from probode.engines import native


@dataclass(frozen=True)
class ThirdOrder(Equation):
    """``y''' = f(t, y, y', y'')``: nothing but its order differs."""

    order: ClassVar[int] = 3


@dataclass(frozen=True)
class Weighed(Equation):
    """``m y'' = f(t, y, y')`` with a mass for each component."""

    masses: Any = 1.0

    order: ClassVar[int] = 2

    def residual(self, value, mean):
        return self.masses * mean[2] - value

    def blocks(self, jacobians):
        return {**super().blocks(jacobians), 2: self.masses}

    def explicit(self, value):
        return value / self.masses


@dataclass(frozen=True)
class Decaying(Prior):
    """The integrated Ornstein-Uhlenbeck process: ``d y^(q) = -rate y^(q) dt + σ dW``."""

    rate: float = 1.0

    def transition(self, h):
        # The drift in the coordinates of the step: as that of the integrated Wiener process, but
        # for the last derivative.
        drift = jnp.diag(self.order - jnp.arange(self.order, dtype=float), 1)
        return jax.scipy.linalg.expm(drift.at[-1, -1].set(-self.rate * h))


@pytest.mark.parametrize(
    "solver",
    [EK0(5), EK1(5), pytest.param(DiagonalEK1(5), marks=pytest.mark.slow)],
    ids=lambda s: s.name,
)
def test_an_equation_of_third_order(solver):
    """``y''' = -y''``: ``y = e^-t``."""
    equation = ThirdOrder(lambda t, y, v, a: -a)
    posterior = probode.solve(equation, (0.0, 2.0), (1.0, -1.0, 1.0), solver=solver)
    assert posterior.success
    np.testing.assert_allclose(posterior.mean[-1], np.exp(-2.0), atol=1e-5)
    np.testing.assert_allclose(posterior.derivative(k=2).mean[-1], np.exp(-2.0), atol=1e-5)


def spring(t, y, v, stiffness):
    return -stiffness * y


GRID = np.linspace(0.0, 1.0, 9)
MASSES = np.array([1.0, 4.0])
WEIGHED = [
    EK1(4),
    EK0(4, structure="block-diagonal"),
    *(pytest.param(s, marks=pytest.mark.slow) for s in (DiagonalEK1(4), EK1(4, "fixed"))),
]


@pytest.mark.parametrize("solver", WEIGHED, ids=lambda s: f"{s.name}-{s.diffusion.name}")
def test_an_equation_with_formulas_of_its_own(solver):
    start, stiffness = (np.ones(2), np.zeros(2)), np.array([1.0, 2.0])
    posterior = probode.solve(
        Weighed(spring, MASSES), (0.0, 2.0), start, (stiffness,), solver=solver
    )
    exact = np.cos(np.sqrt(stiffness / MASSES) * 2.0)
    np.testing.assert_allclose(posterior.mean[-1], exact, atol=1e-5)


def test_units_of_an_equation_do_not_matter():
    """All masses and forces a thousand times larger: the same steps, the same posterior."""
    start, stiffness = (np.ones(2), np.zeros(2)), np.array([1.0, 2.0])
    one, other = (
        probode.solve(
            Weighed(spring, s * MASSES), (0.0, 2.0), start, (s * stiffness,), solver=EK1(4)
        )
        for s in (1.0, 1024.0)
    )
    np.testing.assert_allclose(one.t, other.t, rtol=1e-12)
    np.testing.assert_allclose(one.mean, other.mean, rtol=1e-10)
    np.testing.assert_allclose(one.std, other.std, rtol=1e-6, atol=1e-14)


def test_with_unit_masses_it_is_the_library_s_own():
    start = (np.ones(2), np.zeros(2))
    with native.disabled():  # steps near rounding differ by it from engine to engine
        own, ours = (
            probode.solve(equation, (0.0, 2.0), start, (np.ones(2),), solver=EK1(4))
            for equation in (Weighed(spring, np.ones(2)), SecondOrder(spring))
        )
    np.testing.assert_allclose(own.mean, ours.mean, rtol=1e-11)


def test_a_dense_leading_block():
    """``M y'' = -K y`` with matrices, against its modes."""

    @dataclass(frozen=True)
    class Coupled(Equation):
        mass: Any = None
        order: ClassVar[int] = 2

        def residual(self, value, mean):
            return self.mass @ mean[2] - value

        def blocks(self, jacobians):
            return {**super().blocks(jacobians), 2: self.mass}

        def explicit(self, value):
            return jnp.linalg.solve(self.mass, value)

    mass, stiffness = np.array([[2.0, 0.5], [0.5, 1.0]]), np.array([[3.0, -1.0], [-1.0, 2.0]])
    y0 = np.array([1.0, -0.5])
    equation = Coupled(lambda t, y, v: -stiffness @ y, mass)
    posterior = probode.solve(equation, (0.0, 2.0), (y0, np.zeros(2)), solver=EK1(5))
    values, modes = np.linalg.eig(np.linalg.solve(mass, stiffness))
    exact = modes @ (np.cos(np.sqrt(values) * 2.0) * np.linalg.solve(modes, y0))
    np.testing.assert_allclose(posterior.mean[-1], exact, atol=1e-5)


@pytest.mark.parametrize(
    "solver", [EK0(Decaying(2, 2.0)), pytest.param(EK1(Decaying(4, 0.5)), marks=pytest.mark.slow)]
)
def test_a_prior_of_ones_own(solver):
    posterior = probode.solve(lambda t, y: -y, (0.0, 2.0), 1.0, solver=solver)
    assert posterior.solver.prior is solver.prior and posterior.method.prior == solver.prior
    np.testing.assert_allclose(posterior.mean[-1], np.exp(-2.0), rtol=1e-5)
    np.testing.assert_allclose(posterior(0.7).mean, np.exp(-0.7), rtol=1e-5)


def test_the_noise_of_a_prior_follows_from_its_transition():
    """``Q`` of order 1 has a closed form; the rest of the class is the library's quadrature."""
    rate, h = 1.5, 0.8
    with jax.enable_x64(True):
        factor = np.asarray(jit_once(Decaying(1, rate).noise_factor)(h))
    noise = factor.T @ factor * h  # s² = h for unit diffusion; T_0 = h, T_1 = 1
    e = np.exp(-rate * h)
    of_slopes = (1 - e**2) / (2 * rate)
    of_both = (1 - 2 * e + e**2) / (2 * rate**2) / h
    of_values = (h - 2 * (1 - e) / rate + (1 - e**2) / (2 * rate)) / rate**2 / h**2
    np.testing.assert_allclose(noise, [[of_values, of_both], [of_both, of_slopes]], rtol=1e-12)


def test_a_prior_that_knows_the_equation_makes_no_error_to_speak_of():
    """``y' = -y`` under a prior whose slope decays at that rate: predictions are exact."""
    posterior = probode.solve(
        lambda t, y: -y, (0.0, 10.0), 1.0, solver=EK1(Decaying(1, 1.0)), step=1.0
    )
    np.testing.assert_allclose(posterior.mean, np.exp(-posterior.t), rtol=1e-9)


@pytest.mark.slow
def test_priors_of_ones_own_are_for_ensembles_and_solve_ivp_too():
    solver = EK0(Decaying(3, 2.0))
    ensemble = probode.solve_ensemble(
        *(lambda t, y: -y, (0.0, 1.0), np.array([[1.0], [2.0]])),
        solver=solver,
        save_at=[1.0],
        smooth=False,
    )
    np.testing.assert_allclose(ensemble.mean[:, 0, 0], np.exp(-1.0) * np.array([1, 2]), rtol=1e-5)
    result = probode.solve_ivp(lambda t, y: -y, (0, 1), [1.0], method=solver, rtol=1e-6)
    np.testing.assert_allclose(result.y[0, -1], np.exp(-1.0), rtol=1e-5)
    assert result.posterior.solver.prior == Decaying(3, 2.0)


def test_libraries_are_not_called_for_batches():
    """Batches of triangular solves may wait for one another for ever."""
    prior = Decaying(2, 1.0)

    def matrices(h):
        made = prior.over(h)
        return made.matrix, made.factor

    program = jax.make_jaxpr(jax.vmap(matrices))(np.ones(5))
    solves = [e for e in equations(program.jaxpr) if e.primitive.name == "triangular_solve"]
    assert solves and all(len(atom.aval.shape) == 2 for e in solves for atom in e.invars)


def test_posteriors_with_other_models_are_pickled_and_saved(tmp_path):
    oscillator = SecondOrder(lambda t, y, v: -y)
    posterior = probode.solve(oscillator, (0.0, 1.0), (1.0, 0.0), solver=EK0(2), step=0.25)
    again = pickle.loads(pickle.dumps(posterior))
    np.testing.assert_array_equal(again(0.3).mean, posterior(0.3).mean)
    for model in (
        posterior,
        probode.solve(lambda t, y: -y, (0.0, 1.0), 1.0, solver=EK0(Matern(1, 2.0)), step=0.25),
    ):
        model.save(tmp_path / "posterior.npz")
        loaded = probode.Posterior.load(tmp_path / "posterior.npz")
        np.testing.assert_array_equal(loaded(0.3).std, model(0.3).std)
        assert loaded.method == model.method


def test_a_prior_can_be_replaced_with_the_rest_of_a_solver():
    from dataclasses import replace

    solver = EK1(Matern(3, 2.0))
    assert replace(solver, diffusion="fixed").prior == Matern(3, 2.0)
    assert replace(EK1(4), order=5).prior == IWP(5)
    with pytest.raises(ValueError, match="contradict"):
        replace(solver, order=4)


@dataclass(frozen=True)
class Unfinished(Prior):
    """Says nothing."""


@dataclass(frozen=True)
class Misshapen(Prior):
    def transition(self, h):
        return jnp.eye(2)


@dataclass(frozen=True)
class InPlainUnits(Prior):
    """Forgets the coordinates of the step."""

    def transition(self, h):
        n = self.size
        powers = [
            [h ** max(j - i, 0) / factorial(max(j - i, 0)) for j in range(n)] for i in range(n)
        ]
        return jnp.asarray(np.triu(np.ones((n, n)))) * jnp.asarray(powers)


@dataclass(frozen=True)
class Listed(Prior):
    def transition(self, h):
        return IWP(self.order).transition().tolist()


@dataclass(frozen=True)
class NotTriangular(IWP):
    def noise_factor(self, h=None):
        return np.ones((self.size, self.size))


@pytest.mark.parametrize(
    ("prior", "error", "words"),
    [
        (Unfinished(3), NotImplementedError, r"no method transition\(h\)"),
        (Misshapen(3), ValueError, r"shape \(4, 4\).*got shape \(2, 2\)"),
        (NotTriangular(3), ValueError, "upper triangular"),
        (InPlainUnits(3), ValueError, "must tend to IWP"),
        (Listed(3), TypeError, "must return an array"),
    ],
)
def test_a_prior_that_cannot_be_one_is_refused(prior, error, words):
    with pytest.raises(error, match=words):
        EK1(prior)


def test_what_is_no_prior_is_refused():
    with pytest.raises(TypeError, match="order must be an integer from 1 to 11, or a prior"):
        EK1("Matern")


class WrongResidual(Weighed):
    def residual(self, value, mean):
        return mean[2:4]


class WrongBlock(Weighed):
    def blocks(self, jacobians):
        return {2: jnp.ones(5)}


class TooHigh(Weighed):
    def blocks(self, jacobians):
        return {9: 1.0}


class NothingExact(Weighed):
    def blocks(self, jacobians):
        return {1: 1.0}


class NoOrder(Equation):
    """Does not say which derivative it determines."""


@pytest.mark.parametrize(
    ("equation", "error", "words"),
    [
        (WrongResidual(spring), ValueError, r"shape \(2,\).*got \(2, 2\)"),
        (WrongBlock(spring), ValueError, r"block 2 must be a number, a diagonal \(2,\)"),
        (TooHigh(spring), ValueError, "derivatives from 0 to 4"),
        (NothingExact(spring), ValueError, "exact is 2"),
        (NoOrder(spring), TypeError, "order must be a positive integer"),
    ],
    ids=lambda x: getattr(type(x), "__name__", ""),
)
def test_an_equation_that_does_not_fit_is_refused_before_any_step(equation, error, words):
    with pytest.raises(error, match=words):
        probode.solve(equation, (0.0, 1.0), (np.ones(2), np.ones(2)), (1.0,), solver=EK1(4))


def test_lists_among_the_fields_are_refused():
    with pytest.raises(TypeError, match=r"masses must be .* use np.array"):
        probode.solve(Weighed(spring, [1.0, 4.0]), (0.0, 1.0), (np.ones(2), np.ones(2)), (1.0,))


def test_a_class_is_no_equation():
    with pytest.raises(TypeError, match=r"pass an equation, SecondOrder\(f\)"):
        probode.solve(SecondOrder, (0.0, 1.0), (1.0, 1.0))


def test_the_printed_form_of_a_solver_shows_its_prior():
    assert "Matern(order=3, lengthscale=2.0)" in repr(EK1(Matern(3, 2.0)))
    assert "prior" not in repr(EK1(3))


def test_blocks_that_a_structure_has_no_room_for_are_refused():
    with pytest.raises(ValueError, match="structure"):
        probode.solve(
            Weighed(spring, MASSES), (0.0, 1.0), (np.ones(2), np.ones(2)), (1.0,), solver=EK0(4)
        )


@pytest.mark.parametrize("door", [probode.solve_ivp, probode.solve_ensemble])
def test_doors_say_what_an_equation_is_called_with(door):
    with pytest.raises(TypeError, match="SecondOrder"):
        door(SecondOrder(spring), (0.0, 1.0), [1.0])


@pytest.mark.slow
def test_numbers_of_an_equation_are_data():
    """Other masses compile nothing, and have derivatives."""

    def end(mass):
        start = (np.ones(1), np.zeros(1))
        posterior = probode.solve(Weighed(spring, mass), (0.0, 1.0), start, (1.0,), grid=GRID)
        return posterior.mean[-1, 0]

    with jax.enable_x64(True):
        slope = jax.jacfwd(end)(jnp.ones(1))[0]
    # cos(1/sqrt(m)) at m = 1 has the derivative sin(1) / 2.
    assert slope == pytest.approx(0.5 * np.sin(1.0), abs=1e-4)
