"""Mass matrices, implicit and differential-algebraic equations: closed forms and other codes."""

import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from only_python import number
from scipy import sparse

import probode
from benchmarks import dae_problems, dae_reference
from probode import EK0, EK1, DiagonalEK1, Implicit, MassMatrix, PIControl, solve_ivp
from probode.base.status import Status

SOLVER = EK1(4)


def balance(t, y, rate):
    """``y1' = rate y2``, ``0 = y1 + y2 - sin t``."""
    return jnp.stack([rate * y[1], y[0] + y[1] - jnp.sin(t)])


def balanced(t, start=1.0):
    """Its solution for a rate of 1."""
    first = (np.sin(t) - np.cos(t)) / 2 + (start + 0.5) * np.exp(-t)
    return np.stack([first, np.sin(t) - first], axis=-1)


MASS = np.array([1.0, 0.0])
START = [1.0, -1.0]


def solve(span=(0.0, 2.0), start=START, equation=None, **options):
    equation = MassMatrix(balance, MASS) if equation is None else equation
    return probode.solve(equation, span, start, (1.0,), solver=SOLVER, **options)


def test_a_linear_algebraic_equation_is_solved():
    posterior = solve(control=PIControl(1e-8, 1e-8))
    assert posterior.success
    t = np.array([0.3, 1.7, 2.0])
    np.testing.assert_allclose(posterior(t).mean, balanced(t), atol=1e-7)


def test_algebraic_equations_hold_at_the_nodes_to_rounding():
    posterior = solve()
    left = posterior.mean.sum(axis=1) - np.sin(posterior.t)
    np.testing.assert_allclose(left, 0.0, atol=16 * np.finfo(float).eps)


def test_errors_fall_with_the_order():
    """Of algebraic components, too: with the power ``order`` of a constant step at least."""
    errors = [
        np.max(abs(posterior.mean - balanced(posterior.t)), axis=0)
        for posterior in (solve(step=2.0 / n) for n in (16, 32))
    ]
    assert np.all(errors[0] / errors[1] > 2 ** (SOLVER.order - 0.5))


@pytest.mark.parametrize(
    "mass",
    [np.diag(MASS), sparse.csr_matrix(np.diag(MASS)), lambda t, y, rate: jnp.array(MASS)],
    ids=["dense", "sparse", "function"],
)
def test_all_forms_of_a_mass_matrix_are_the_same(mass):
    one, other = solve(), solve(equation=MassMatrix(balance, mass))
    np.testing.assert_allclose(other.t, one.t, rtol=1e-9)
    np.testing.assert_allclose(other.mean, one.mean, rtol=1e-9, atol=1e-12)


def test_the_same_equation_as_a_residual():
    def residual(t, y, yp, rate):
        return MASS * yp - balance(t, y, rate)

    np.testing.assert_allclose(solve(equation=Implicit(residual)).mean, solve().mean, atol=1e-12)


def test_units_of_equations_and_components_do_not_matter():
    """Rows times 1e6, the second component in units of 1e-6: the same solution."""

    def scaled(t, y, rate):
        return 1e6 * balance(t, jnp.array([1.0, 1e6]) * y, rate)

    equation = MassMatrix(scaled, 1e6 * MASS)
    control = PIControl(1e-6, np.array([1e-9, 1e-15]))
    posterior = solve(equation=equation, start=[1.0, -1e-6], control=control)
    np.testing.assert_allclose(posterior.mean[-1] * [1.0, 1e6], balanced(2.0), atol=1e-5)


@pytest.mark.slow
def test_a_mass_that_depends_on_the_state():
    """``(1 + y²) y' = 1``: ``y + y³/3 = t``."""
    equation = MassMatrix(lambda t, y: jnp.ones(1), lambda t, y: 1.0 + y**2)
    posterior = probode.solve(equation, (0.0, 3.0), [0.0], solver=SOLVER)
    y = posterior.mean[:, 0]
    np.testing.assert_allclose(y + y**3 / 3, posterior.t, atol=1e-5)


@pytest.mark.slow
def test_a_mass_whose_kernel_turns():
    """``y1' + t y2' = -y1``, ``0 = y1 - y2``: ``y = 1 / (1 + t)``."""

    def mass(t, y):
        return jnp.array([[1.0, t], [0.0, 0.0]])

    equation = MassMatrix(lambda t, y: jnp.stack([-y[0], y[0] - y[1]]), mass)
    posterior = probode.solve(equation, (0.0, 2.0), np.ones(2), solver=SOLVER)
    np.testing.assert_allclose(posterior.mean[-1], 1 / 3, atol=1e-6)


@pytest.mark.slow
def test_an_equation_that_is_nonlinear_in_the_slope():
    """``y'³ + y' + y`` is what it is for ``y = sin t``."""

    def residual(t, y, yp):
        c = jnp.cos(t)
        return yp**3 + yp + y - (c**3 + c + jnp.sin(t))

    posterior = probode.solve(Implicit(residual), (0.0, 3.0), 0.0, solver=SOLVER)
    np.testing.assert_allclose(posterior.mean[-1], np.sin(3.0), atol=1e-6)
    np.testing.assert_allclose(posterior.derivative(1.3).mean, np.cos(1.3), atol=1e-4)


CLAIRAUT = Implicit(lambda t, y, yp: y - t * yp - yp**2)
"""``y = t y' + y'²``: all lines ``c t + c²``, two of them through each start."""


@pytest.mark.parametrize("slope", [0.5, -0.5])
def test_a_guess_of_the_slope_chooses_the_solution(slope):
    posterior = probode.solve(CLAIRAUT, (0.0, 0.8), ([0.25], [0.9 * slope]), solver=SOLVER)
    np.testing.assert_allclose(posterior.mean[:, 0], slope * posterior.t + 0.25, rtol=1e-12)


def test_derivatives_at_the_start_are_those_of_the_solution():
    posterior = solve()
    for k in range(5):
        sign, wave = (-1.0) ** k, [np.sin(0.0), np.cos(0.0), -np.sin(0.0), -np.cos(0.0)]
        first = (wave[k % 4] - wave[(k + 1) % 4]) / 2 + 1.5 * sign
        found = posterior.derivative(0.0, k=k).mean
        np.testing.assert_allclose(found, [first, wave[k % 4] - first], atol=1e-12)


def test_an_inconsistent_start_is_changed_in_its_algebraic_components_and_that_is_said():
    posterior = solve(start=[1.0, 3.0])
    np.testing.assert_allclose(posterior.mean[0], START, rtol=1e-14)
    assert posterior.mean[0][0] == 1.0
    assert any("algebraic" in note for note in posterior.calibrate().diagnose().notes)
    assert "does not fulfil the algebraic equations" in posterior.message
    assert "algebraic" not in solve().message


def test_an_inconsistent_start_is_refused_if_asked():
    equation = MassMatrix(balance, MASS, inconsistent="refuse")
    np.testing.assert_array_equal(solve(equation=equation).mean, solve().mean)
    with pytest.raises(ValueError, match=r"does not fulfil.*Pass y0 = \[ 1., -1.\]"):
        solve(equation=equation, start=[1.0, 3.0])


def constrained(t, y):
    """A pendulum with its constraint as it is: of index 3."""
    x, z, v, w, force = y
    return jnp.stack([v, w, -force * x, -force * z - 9.8, x**2 + z**2 - 1.0])


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (
            lambda: probode.solve(
                *(MassMatrix(constrained, np.array([1.0, 1, 1, 1, 0])), (0, 1)),
                [1.0, 0, 0, 0, 0],
                solver=EK1(1),
            ),
            ValueError,
            "index of the equation is above 1",
        ),
        (
            lambda: probode.solve(MassMatrix(balance, MASS), (0, 1), START, (1.0,), solver=EK0(4)),
            ValueError,
            "needs EK1",
        ),
        (
            lambda: probode.solve(
                Implicit(lambda t, y, yp: yp + y), (0, 1), 1.0, solver=DiagonalEK1(4)
            ),
            ValueError,
            r"EK1\(\.\.\.\)",
        ),
        (lambda: MassMatrix(balance, np.ones((2, 3))), ValueError, r"square matrix.*\(2, 3\)"),
        (lambda: MassMatrix(balance, [[1.0, np.nan], [0.0, 1.0]]), ValueError, "finite"),
        (lambda: MassMatrix(balance, "diagonal"), TypeError, "real numbers"),
        (lambda: MassMatrix(balance, MASS, inconsistent="ignore"), ValueError, "inconsistent"),
        (lambda: solve(equation=MassMatrix(balance)), TypeError, "needs a mass matrix"),
        (
            lambda: solve(equation=MassMatrix(balance, np.ones(3))),
            ValueError,
            r"shape \(2, 2\), or \(2,\)",
        ),
        (
            lambda: solve(equation=MassMatrix(balance, lambda t, y, rate: np.ones(3))),
            ValueError,
            r"shape \(2, 2\), or \(2,\)",
        ),
        (
            lambda: solve(equation=MassMatrix(balance, lambda t, y, rate: MASS / t)),
            ValueError,
            "NaN or Inf at the start",
        ),
        (
            lambda: probode.solve(
                Implicit(lambda t, y, yp: yp**2 + y**2 + 1.0), (0, 1), (1.0, 1.0)
            ),
            ValueError,
            "no start that fulfils",
        ),
        (
            lambda: probode.solve(Implicit(lambda t, y, yp: yp), (0, 1), (START, [0.0])),
            ValueError,
            "same shape",
        ),
        (
            lambda: probode.solve(
                MassMatrix(balance, MASS),
                (0, 1),
                START,
                (1.0,),
                solver=EK1(4, initialization="diffuse"),
            ),
            ValueError,
            "initialization='taylor'",
        ),
    ],
)
def test_what_does_not_fit_is_said_before_any_step(call, error, words):
    with pytest.raises(error, match=words):
        call()


COUPLED = np.array([[2.0, 0.5], [0.5, 1.0]])


@pytest.mark.parametrize("solver", [SOLVER, EK0(4), DiagonalEK1(4)], ids=lambda s: s.name)
def test_a_regular_mass_matrix_is_for_all_solvers(solver):
    """``M y' = -y`` by the eigenvalues of ``M⁻¹``."""
    equation = MassMatrix(lambda t, y: -y, COUPLED)
    y0 = np.array([1.0, -0.5])
    posterior = probode.solve(equation, (0.0, 1.0), y0, solver=solver)
    values, modes = np.linalg.eig(np.linalg.inv(COUPLED))
    exact = modes @ (np.exp(-values) * np.linalg.solve(modes, y0))
    np.testing.assert_allclose(posterior.mean[-1], exact, atol=1e-5)


def test_a_user_gives_the_jacobian_of_f():
    def jac(t, y, rate):
        return jnp.array([[0.0, 1.0], [1.0, 1.0]]) * jnp.array([[rate], [1.0]])

    np.testing.assert_allclose(solve(jac=jac).mean, solve().mean, atol=1e-12)


AT = np.array([0.4, 1.3, 2.0])


def test_save_at_gives_what_dense_output_gives():
    whole, saved = solve(), solve(save_at=AT)
    np.testing.assert_allclose(saved.mean, whole(AT).mean, rtol=1e-9)
    np.testing.assert_allclose(saved.std[:-1], whole(AT).std[:-1], rtol=1e-4)


def test_samples_spread_as_the_posterior_says():
    posterior = solve(step=0.25)
    drawn, at = posterior.sample(4000, t=[0.6, 1.6]), posterior([0.6, 1.6])
    np.testing.assert_allclose((drawn.mean(0) - at.mean) / at.std, 0.0, atol=5 / np.sqrt(4000))
    np.testing.assert_allclose(drawn.std(0) / at.std, 1.0, atol=5 / np.sqrt(8000))


def test_backwards_in_time():
    posterior = solve((2.0, 0.0), balanced(2.0))
    np.testing.assert_allclose(posterior.mean[-1], START, atol=1e-5)


def test_it_is_pickled_and_saved(tmp_path):
    posterior = solve()
    again = pickle.loads(pickle.dumps(posterior))
    np.testing.assert_array_equal(again(0.3).std, posterior(0.3).std)
    np.testing.assert_allclose(again.calibrate().std, posterior.calibrate().std, rtol=1e-9)
    posterior.save(tmp_path / "posterior.npz")
    loaded = probode.Posterior.load(tmp_path / "posterior.npz")
    np.testing.assert_array_equal(loaded(0.3).std, posterior(0.3).std)
    assert loaded.method == posterior.method
    calibrated = solve(calibration="defect", save_at=AT)
    calibrated.save(tmp_path / "calibrated.npz")
    loaded = probode.Posterior.load(tmp_path / "calibrated.npz")
    np.testing.assert_array_equal(loaded.std, calibrated.std)


@pytest.mark.slow
def test_it_runs_inside_jit_vmap_and_grad():
    """Derivatives by the matrix; and by a start that is put right: ``y2`` follows from ``y1``."""

    def end(mass, start):
        equation = MassMatrix(balance, jnp.array([1.0, 0.0]) * mass)
        return solve((0.0, 1.0), start, equation, grid=np.linspace(0.0, 1.0, 11)).mean[-1, 0]

    with jax.enable_x64(True):
        masses, start = jnp.array([1.0, 1.0 + 1e-5]), jnp.array([1.0, 3.0])
        derivative = jax.value_and_grad(end, argnums=(0, 1))
        ends, (slopes, by_start) = jax.jit(jax.vmap(derivative, (0, None)))(masses, start)
    np.testing.assert_allclose(ends[0], balanced(1.0)[0], atol=1e-5)
    assert slopes[0] == pytest.approx(float(ends[1] - ends[0]) / 1e-5, abs=1e-4)
    np.testing.assert_allclose(by_start[0], [np.exp(-1.0), 0.0], atol=1e-5)


@pytest.mark.parametrize("mode", ["defect", pytest.param("defect-fast", marks=pytest.mark.slow)])
def test_the_global_error_is_estimated_for_every_component(mode):
    """A step of 0.25 makes errors that are far above rounding: found to some percent."""
    posterior = solve(step=0.25, smooth=False).calibrate(mode)
    estimated = posterior.calibration.error[1:]
    made = posterior.mean[1:] - balanced(posterior.t[1:])
    np.testing.assert_allclose(estimated, made, rtol=0, atol=0.05 * np.max(abs(made)))


def test_calibration_beside_the_solve_is_that_after_it():
    options = {"calibration": "defect", "smooth": False}
    whole, saved = solve(**options), solve(save_at=AT, **options)
    np.testing.assert_allclose(saved.mean[-1], whole.mean[-1], rtol=1e-10)
    np.testing.assert_allclose(
        saved.calibration.error[-1], whole.calibration.error[-1], rtol=1e-2, atol=1e-13
    )


@pytest.mark.slow
def test_an_invariant_of_an_index_reduced_equation_is_kept():
    """The length of a pendulum, which its twice differentiated constraint lets drift."""
    problem = PROBLEMS["pendulum"]
    posterior = probode.solve(
        MassMatrix(lambda t, y: problem.f(jnp, t, y), problem.mass),
        (0.0, 2.0),
        np.array(problem.y0),
        solver=EK1(3),
        invariants=lambda y: y[0] ** 2 + y[1] ** 2 - 1.0,
    )
    np.testing.assert_allclose(np.sum(posterior.mean[:, :2] ** 2, axis=1), 1.0, atol=1e-13)


PROBLEMS = {problem.name: problem for problem in dae_problems.PROBLEMS}


def standard(name, order, rtol, atol, **options):
    problem = PROBLEMS[name]

    def f(t, y):
        return problem.f(jnp, t, y)

    equation, control = MassMatrix(f, problem.mass), PIControl(rtol, atol * problem.unit)
    span = (0.0, problem.end)
    posterior = probode.solve(
        equation, span, np.array(problem.y0), solver=EK1(order), control=control, **options
    )
    return posterior, np.array(problem.reference)


@pytest.mark.parametrize(
    ("order", "rtol", "evaluations", "error"),
    [
        pytest.param(3, 3.5e-4, 597, 3.0e-9, marks=pytest.mark.slow),
        pytest.param(5, 1.6e-3, 357, 1.2e-10, marks=pytest.mark.slow),
        (5, 6e-7, 1080, 2.0e-13),
    ],
)
def test_robertson_is_as_good_as_published_runs_of_another_probabilistic_solver(
    order, rtol, evaluations, error
):
    """With as many evaluations, of errors that change their signs: within a factor two."""
    posterior, reference = standard("robertson", order, rtol, 1e-3 * rtol, save_at=100.0)
    assert posterior.success
    assert posterior.stats.f_evaluations <= evaluations
    np.testing.assert_allclose(posterior.mean[-1], reference, rtol=0, atol=2 * error)


@pytest.mark.parametrize(
    ("name", "rtol"),
    [("robertson-longest", 1e-3), pytest.param("amplifier", 1e-2, marks=pytest.mark.slow)],
)
def test_loose_tolerances_are_enough_where_the_equation_is_far_from_linear(name, rtol):
    """Errors fade in both, so that what is left at the end is that of few steps: a tolerance.

    Linearised elsewhere than where the update leads, Robertson's first component is off by 16
    tolerances, and the amplifier stops on its way.
    """
    posterior, reference = standard(name, 5, rtol, 1e-3 * rtol)
    assert posterior.success
    np.testing.assert_allclose(posterior.mean[-1], reference, rtol=rtol, atol=1e-3 * rtol)


def test_evaluations_of_iterated_updates_are_counted():
    """Two linearisations in an attempt, one more in the update of an accepted step."""
    stats = solve().stats
    expected = 2 * stats.steps + stats.accepted
    start = stats.f_evaluations - expected
    assert 0 < start <= SOLVER.order + 3
    assert stats.jacobian_evaluations >= expected


def test_references_are_exact_at_any_time_and_say_how_exact():
    """Steps twice as long are wrong by less than their tolerance, a hundred times this estimate."""

    def residual(t, y, slope):
        return np.array([slope[0] - y[1], y[0] + y[1] - np.sin(t)])

    found = dae_reference.checked(residual, (0.0, 2.0), np.array(START))
    t = np.linspace(0.0, 2.0, 101).astype(np.longdouble)
    value, uncertainty = found(t)
    assert np.max(uncertainty) < dae_reference.TOLERANCE / dae_reference.HALVED
    rounding = np.finfo(np.longdouble).eps * 1e2  # of some hundred terms in a step
    assert np.all(abs(value - balanced(t, np.longdouble(1.0))) <= uncertainty + rounding)


HARD = [
    ("robertson", 1e-5, 1e-8),
    ("robertson-long", 1e-5, 1e-8),
    pytest.param("akzo-nobel", 1e-5, 1e-8, marks=pytest.mark.slow),
    pytest.param("pendulum", 1e-6, 1e-6, marks=pytest.mark.slow),
    pytest.param("amplifier", 1e-4, 1e-4, marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("name", "rtol", "atol"), HARD)
def test_standard_problems_and_their_error_bars_agree_with_another_code(name, rtol, atol):
    """Errors are a few tolerances, times what the problem makes of them over its interval.

    The estimate of the error finds the error itself to ten percent, in every component.
    """
    posterior, reference = standard(name, 5, rtol, atol)
    assert posterior.success
    error = posterior.mean[-1] - reference
    np.testing.assert_array_less(abs(error), 1e2 * (atol + rtol * abs(reference)))
    calibrated = posterior.calibrate()
    np.testing.assert_allclose(calibrated.calibration.error[-1], error, rtol=0.1, atol=1e-12)
    assert 1 / 10 < np.mean((error / calibrated.std[-1]) ** 2) < 10


def robertson_in_numpy(t, y):
    slow, middle, fast = 0.04 * y[0], 1e4 * y[1] * y[2], 3e7 * y[1] ** 2
    return np.array([middle - slow, slow - middle - fast, y[0] + y[1] + y[2] - 1.0])


@pytest.mark.parametrize(
    "mass",
    [
        [1, 1, 0],
        pytest.param(lambda t, y: np.diag([1.0, 1.0, 0.0]), marks=pytest.mark.slow),
    ],
    ids=["diagonal", "function"],
)
def test_solve_ivp_takes_a_mass_matrix_and_numpy(mass):
    result = probode.solve_ivp(
        robertson_in_numpy,
        (0, 100),
        [1.0, 0.0, 0.2],
        mass_matrix=mass,
        method=EK1(3),
        rtol=1e-5,
        atol=1e-8,
        events=lambda t, y: y[0] - 0.8,
        dense_output=True,
    )
    assert result.success
    error = result.y[:, -1] - PROBLEMS["robertson"].reference
    assert 1 / 10 < np.mean((error / result.y_std[:, -1]) ** 2) < 10
    assert result.sol(result.t_events[0][0])[0] == pytest.approx(0.8, abs=1e-8)
    np.testing.assert_allclose(result.y[:, 0], [1.0, 0.0, 0.0], atol=1e-15)
    assert "algebraic" in result.posterior.message


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"mass_matrix": [1.0, 0.0], "method": "EK0"}, ValueError, "needs EK1"),
        ({"mass_matrix": np.ones(3)}, ValueError, r"shape \(2, 2\)"),
        ({"mass_matrix": np.ones(2), "second_order": True}, ValueError, "first order"),
        ({"mass_matrix": np.ones(2), "y0": [1j, 0.0]}, TypeError, "must be real"),
    ],
)
def test_solve_ivp_refuses_what_does_not_fit(options, error, words):
    options = {"y0": [1.0, 0.0], **options}
    with pytest.raises(error, match=words):
        probode.solve_ivp(lambda t, y: np.stack([y[1], -y[0]]), (0, 1), **options)


def test_solve_ivp_with_a_mass_matrix_cannot_be_driven_from_python():
    def branching(t, y):
        return [1.0] if number(y[0]) > 2.0 else [-y[0]]

    with pytest.raises(TypeError, match="traceable"):
        probode.solve_ivp(branching, (0, 1), [1.0], mass_matrix=[2.0])
    with pytest.raises(TypeError, match="implicit equation"):
        probode.solve_ivp(Implicit(lambda t, y, yp: yp + branching(t, y)), (0, 1), [1.0])


def residual(t, y, yp, k):
    """``y_0' = -k y_0`` and ``0 = y_1 - y_0²``, with NumPy."""
    return np.array([yp[0] + k * y[0], y[1] - y[0] ** 2])


def residual_jacobians(t, y, yp, k):
    return jnp.array([[k, 0.0], [-2.0 * y[0], 1.0]]), jnp.array([[1.0, 0.0], [0.0, 0.0]])


@pytest.mark.slow
@pytest.mark.parametrize("jac", [None, residual_jacobians])
def test_solve_ivp_takes_a_residual(jac):
    options = {} if jac is None else {"jac": jac}
    done = probode.solve_ivp(
        *(Implicit(residual), (0.0, 2.0), [1.0, 0.5]),
        **{"args": (0.7,), "rtol": 1e-6, "atol": 1e-8, **options},
        events=lambda t, y, k: y[1] - 0.5,
    )
    exact = np.exp(-0.7 * done.t)
    assert done.success and done.path == "numpy"
    np.testing.assert_allclose(done.y, [exact, exact**2], atol=1e-5)
    np.testing.assert_allclose(done.t_events[0], [np.log(2.0) / 1.4], atol=1e-5)
    assert np.mean(((done.y - [exact, exact**2])[:, 1:] / done.y_std[:, 1:]) ** 2) < 3
    assert "changed by" in done.posterior.message


@pytest.mark.parametrize("slope", [-0.5, 0.8])
def test_solve_ivp_takes_a_guess_of_the_slope(slope):
    done = probode.solve_ivp(CLAIRAUT, (0.0, 0.4), ([slope**2], [slope + 0.05]), method=SOLVER)
    np.testing.assert_allclose(done.y[0], slope * done.t + slope**2, rtol=1e-9)


@pytest.mark.parametrize(
    ("y0", "options", "words"),
    [
        (([1.0], [0.0, 0.0]), {}, "guess of the slope"),
        ([1.0 + 1j], {}, "must be real"),
        ([1.0], {"method": "EK0"}, "Use EK1"),
        ([1.0], {"lband": 0, "uband": 0}, "lband"),
    ],
)
def test_solve_ivp_says_what_does_not_fit_a_residual(y0, options, words):
    with pytest.raises((TypeError, ValueError), match=words):
        probode.solve_ivp(Implicit(lambda t, y, yp: yp + y), (0, 1), y0, **options)


@pytest.mark.slow
def test_bounds_and_invariants_hold_with_a_mass_matrix_too():
    done = probode.solve_ivp(
        lambda t, y: np.stack([-y[0], y[0] + y[1] - 1.0]),
        *((0, 20), [1.0, 0.0]),
        mass_matrix=[1.0, 0.0],
        invariants=lambda y: y[0] + y[1] - 1.0,
        bounds=(0.0, 1.0),
    )
    assert np.max(abs(done.y.sum(0) - 1.0)) < 1e-15
    assert np.all((done.y >= 0.0) & (done.y <= 1.0))


# Early ends and jumps ---------------------------------------------------------------------------


def pushed(t, y, yp, begin, end, growth):
    """``y' = growth y² - y``, with a push of one between two times."""
    return yp + y - growth * y**2 - jnp.where((t >= begin) & (t < end), 1.0, 0.0)


ENDED = {
    "too few steps": ({"max_num_steps": 3}, (2.0, 3.0, 0.0), Status.MAX_STEPS),
    "a callback": (
        {"callback": lambda _: True, "max_step": 1e-4},
        (2.0, 3.0, 0.0),
        Status.CALLBACK,
    ),
    "blow-up": ({}, (2.0, 3.0, 3.0), Status.STEP_TOO_SMALL),
}


@pytest.mark.parametrize(("options", "args", "status"), ENDED.values(), ids=ENDED)
def test_a_residual_is_solved_to_where_it_ends(options, args, status):
    result = solve_ivp(Implicit(pushed), (0, 1), [1.0], args=args, rtol=1e-6, **options)
    assert result.posterior.status == status
    if args[2] == 0.0:
        error = np.abs(result.y[0, -1] - np.exp(-result.t[-1]))
        assert error <= 1e-6 and len(result.t) > 1
    else:  # y = 1 / (3 - 2 exp(t)), infinite at log(1.5)
        assert result.t[-1] == pytest.approx(np.log(1.5), abs=1e-3)


@pytest.mark.parametrize(
    ("begin", "end"), [(0.5, 0.7), (0.6, 0.601)], ids=["wide", "shorter than a step"]
)
@pytest.mark.parametrize("span", [(0.0, 1.0), (1.0, 0.0)], ids=["forward", "backward"])
def test_steps_on_a_residual_end_at_its_switches(begin, end, span):
    known = [lambda t: np.exp(-t), lambda t: np.exp(-(t - 1.0))][span[0] > 0]
    pushes = np.exp(end - 1.0) - np.exp(begin - 1.0), np.exp(begin) - np.exp(end)
    exact = known(span[1]) + pushes[span[0] > 0]
    result = solve_ivp(Implicit(pushed), span, [1.0], args=(begin, end, 0.0), rtol=1e-6, atol=1e-9)
    assert result.y[0, -1] == pytest.approx(exact, abs=1e-5)
    assert np.abs(result.y[0, -1] - exact) <= 4.0 * result.y_std[0, -1]


def test_a_jump_of_a_residual_by_the_state_is_noticed():
    def falling(t, y, yp):
        return yp + y + jnp.where(y < 0.6, 1.0, 0.0)

    result = solve_ivp(Implicit(falling), (0, 1), [1.0], rtol=1e-6, atol=1e-9)
    crossing = np.log(1 / 0.6)
    assert f"where the solution is at t = {crossing:.5g}"[:-1] in result.message
    exact = 1.6 * np.exp(crossing - 1.0) - 1.0
    assert result.y[0, -1] == pytest.approx(exact, abs=1e-5)
