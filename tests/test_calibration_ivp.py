"""``solve_ivp``: error bars of the size of the error, and a tolerance on the answer."""

import inspect

import jax.numpy as jnp
import numpy as np
import pytest
import scipy.integrate
from compiling import jit_once
from only_python import number

import probode
from probode import EK0, EK1, DiagonalEK1, solve_ivp
from probode.base.limits import Limits
from probode.base.precision import double_precision
from probode.global_error import in_jax, in_python, schemes
from probode.ivp.options import Options


def lotka_volterra(t, y):
    return [1.5 * y[0] - y[0] * y[1], -3 * y[1] + y[0] * y[1]]


def in_jax_numpy(t, y):
    return jnp.stack(lotka_volterra(t, y))


def stubborn(t, y):
    """The same, but only Python can evaluate it."""
    return lotka_volterra(number(t), [number(y[0]), number(y[1])])


@pytest.fixture(scope="module")
def reference():
    return scipy.integrate.solve_ivp(
        *(lotka_volterra, (0, 10), [1, 1], "DOP853"),
        rtol=1e-13,
        atol=1e-13,
        dense_output=True,
    ).sol


@pytest.mark.parametrize("function", [lotka_volterra, stubborn])
@pytest.mark.parametrize("method", ["EK1", "EK0", "DiagonalEK1"])
def test_error_bars_have_the_size_of_the_error(reference, function, method):
    result = solve_ivp(
        *(function, (0, 10), [1, 1], method),
        order=3,
        rtol=1e-4,
        atol=1e-7,
        dense_output=True,
    )
    scaled = ((result.y - reference(result.t)) / np.maximum(result.y_std, 1e-300))[:, 1:]
    assert 1 / 3 < np.mean(scaled**2) < 3
    t = np.linspace(0.1, 9.9, 50)
    between = (result.sol(t) - reference(t)) / result.sol.std(t)
    assert 0.1 < np.mean(between**2) < 10


@pytest.mark.parametrize("calibration", ["model", "defect"])
def test_standard_deviations_mean_the_same_at_every_front_door(calibration):
    field = in_jax_numpy
    given = {"control": probode.PIControl(1e-5, 1e-8), "calibration": calibration}
    ivp = solve_ivp(field, (0, 2), [1.0, 1.0], method=probode.EK1(3), **given).y_std[:, -1]
    given["solver"] = probode.EK1(3)
    steps = probode.solve(field, (0, 2), [1.0, 1.0], **given)
    np.testing.assert_allclose(ivp, steps.std[-1], rtol=1e-6)


@pytest.mark.parametrize(
    "calibration",
    ["model", pytest.param("defect", marks=pytest.mark.slow)],  # test_ensemble compares it, too
)
def test_standard_deviations_of_members_mean_the_same(calibration):
    given = {
        "control": probode.PIControl(1e-5, 1e-8),
        "calibration": calibration,
        "solver": probode.EK1(3),
        "save_at": 2.0,
    }
    end = probode.solve(in_jax_numpy, (0, 2), [1.0, 1.0], **given)
    members = probode.solve_ensemble(in_jax_numpy, (0, 2), np.ones((1, 2)), **given)
    np.testing.assert_allclose(members.std[0, -1], end.std[-1], rtol=1e-6)


def test_front_doors_say_what_their_standard_deviations_are():
    """The defaults that the documentation tells."""
    defaults = [
        inspect.signature(door).parameters["calibration"].default
        for door in (probode.solve, probode.solve_ensemble)
    ]
    assert defaults == ["model", "defect"]
    assert Options().calibration == "defect"


@pytest.mark.parametrize("mode", ["defect", "defect-fast"])
def test_the_transport_driven_from_python_inverts_no_more_than_a_jacobian(mode, monkeypatch):
    """Matrices of the size of the state, never of all stages of a step together."""
    sizes, inverse = set(), np.linalg.inv

    def noted(matrix):
        sizes.add(np.shape(matrix)[-1])
        return inverse(matrix)

    monkeypatch.setattr(np.linalg, "inv", noted)
    d = 12
    result = solve_ivp(lambda t, y: -number(t) * y, (0, 1), np.ones(d), calibration=mode)
    assert result.path == "python"
    assert max(sizes) == d


@pytest.mark.parametrize("mode", ["defect", "defect-fast"])
def test_the_transport_driven_from_python_is_the_compiled_one(mode, monkeypatch):
    """In blocks or not. Defects are differences of slopes: rounding of ten, times the length."""
    monkeypatch.setattr(in_python, "block_steps", lambda scheme, d: 7)

    posterior = probode.solve(in_jax_numpy, (0, 4), [1.0, 1.0], solver=probode.EK1(3))
    t, means = np.asarray(posterior.t), np.asarray(posterior.path.smoothed.mean)
    scheme = schemes.scheme_for(posterior.method, True, mode)
    problem = in_python.HostProblem(
        lambda t, y: np.array(lotka_volterra(t, y)),
        lambda t, y, f: np.array([[1.5 - y[1], -y[0]], [y[1], -3 + y[0]]]),
    )
    driven = in_python.transport(scheme, problem, t, means, Limits())
    with double_precision():
        compiled = jit_once(
            lambda t, means: in_jax.transport_traced(scheme, posterior.problem.field, t, means)
        )(t, means)
    for name in ("error", "stages", "first", "second"):
        ours, theirs = getattr(driven, name), getattr(compiled, name)
        np.testing.assert_allclose(ours, theirs, rtol=1e-6, atol=4 * 10 * np.finfo(float).eps * 4)


def test_the_model_is_left_untouched_if_asked_for():
    result = solve_ivp(lotka_volterra, (0, 2), [1, 1], calibration="model")
    assert result.posterior.calibration is None
    assert np.all(result.y_std == result.posterior.std.T)
    default = solve_ivp(lotka_volterra, (0, 2), [1, 1])
    np.testing.assert_array_equal(default.y, result.y)
    assert np.all(default.y_std[:, -1] != result.y_std[:, -1])
    assert default.nfev > result.nfev


def test_covariances_and_event_times_are_calibrated_too():
    def oscillator(t, y):
        return [y[1], -y[0]]

    options = {"rtol": 1e-6, "atol": 1e-9, "events": lambda t, y: y[0], "order": 3}
    result = solve_ivp(oscillator, (0, 20), [1.0, 0.0], **options)
    np.testing.assert_allclose(np.sqrt(np.einsum("tii->it", result.y_cov)), result.y_std)
    exact = np.pi * (np.arange(6) + 0.5)
    scaled = (result.t_events[0] - exact) / result.t_events_std[0]
    assert 0.1 < np.mean(scaled**2) < 10


@pytest.mark.parametrize("name", ["calibration", "global_at"])
def test_an_unknown_choice_is_an_error(name):
    with pytest.raises(ValueError, match=name):
        solve_ivp(lotka_volterra, (0, 1), [1, 1], **{name: "nonsense"})


@pytest.mark.parametrize("method", ["EK1", "EK0"])
@pytest.mark.parametrize("rtol", [1e-3, 1e-6, 1e-9])
def test_a_tolerance_on_the_answer_is_met(reference, method, rtol):
    result = solve_ivp(
        *(lotka_volterra, (0, 10), [1, 1], method), global_rtol=rtol, global_atol=1e-3 * rtol
    )
    assert result.success
    assert result.global_met
    assert result.global_rounds <= 3
    weight = rtol * (1e-3 + np.abs(result.y))
    error = np.max(np.abs(result.y - reference(result.t)) / weight)
    assert error <= 1.0
    assert result.global_estimate == pytest.approx(error, rel=0.1)


def test_a_tolerance_at_the_end_says_nothing_of_the_way(reference):
    result = solve_ivp(*(lotka_volterra, (0, 10), [1, 1], "EK0"), global_rtol=1e-7, global_at="end")
    assert result.global_met
    error = np.abs(result.y[:, -1] - reference(10.0)) / np.abs(result.y[:, -1])
    assert np.max(error) <= 1e-7


def test_a_tolerance_that_cannot_be_met_says_so_and_returns_the_best():
    result = solve_ivp(lotka_volterra, (0, 10), [1, 1], global_rtol=1e-16)
    assert not result.success
    assert not result.global_met
    assert "not met" in result.message
    assert result.t[-1] == 10.0


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"global_rtol": 1e-3, "calibration": "model"}, "calibration"),
        ({"global_rtol": -1.0}, "negative"),
        ({"global_rtol": [1e-3, 1e-3, 1e-3]}, "shape"),
        ({"global_rtol": 1e-3, "grid": [0.0, 1.0]}, "grid"),
    ],
)
def test_targets_that_make_no_sense_are_errors(options, word):
    with pytest.raises(ValueError, match=word):
        solve_ivp(lotka_volterra, (0, 1), [1, 1], **options)


@pytest.mark.parametrize("solver", [EK0(5), EK0(3), EK1(5)], ids=lambda s: s.name)
def test_error_bars_between_the_steps_are_of_the_size_of_the_error(solver):
    """The mean may be off by far more between two nodes than at them: relaxation, long steps."""
    result = solve_ivp(
        lambda t, y: 1.0 - y, (0, 10), [0.0], method=solver, rtol=1e-3, atol=1e-6, dense_output=True
    )
    t = np.linspace(0.05, 9.95, 200)
    off = np.abs(result.sol(t)[0] - (1.0 - np.exp(-t))) / result.sol.std(t)[0]
    assert np.max(off) < 4.0 and np.sqrt(np.mean(off**2)) < 1.6
    nodes = result.posterior(result.t)  # dense output at the nodes is what is there
    np.testing.assert_allclose(nodes.std[:, 0], result.y_std[0], rtol=1e-10)


def test_a_model_with_wrong_proportions_does_not_widen_the_others():
    rotation = np.array([[1.0, -3.0], [3.0, -1.0]])
    result = solve_ivp(
        lambda t, y: rotation @ y, (0, 20), [1.0, 0.0], method=DiagonalEK1(3), rtol=1e-4, atol=1e-7
    )
    assert np.all(result.y_std < 0.1)


# Components at rest ------------------------------------------------------------------------------


def density(t, y):
    """A density matrix under a Hamiltonian, with decay: real on the diagonal, but for rounding."""
    rho, hamiltonian = y.reshape(2, 2), np.array([[1.0, 0.3 - 0.7j], [0.3 + 0.7j, -0.4]])
    down = np.array([[0.0, 1.0], [0.0, 0.0]])
    loss = down.T @ down @ rho + rho @ down.T @ down
    return (-1j * (hamiltonian @ rho - rho @ hamiltonian) + down @ rho @ down.T - loss / 2).ravel()


def circling(t, y):
    """A circle, with what is zero to rounding, zero to errors of steps, and one to rounding."""
    nothing = 0.1 * y[0] + 0.2 * y[0] - 0.3 * y[0]
    return np.array([y[1], -y[0], nothing, y[0] ** 2 + y[1] ** 2 - 1.0, nothing])


AT_REST = {
    "density matrix": (density, np.array([0.0, 0.0, 0.0, 1.0 + 0j])),
    "circle": (circling, np.array([1.0, 0.0, 0.0, 0.0, 1.0])),
}


@pytest.mark.parametrize("rtol", [1e-3, 1e-6])
@pytest.mark.parametrize("method", ["EK0", "EK1"])
@pytest.mark.parametrize(("fun", "y0"), AT_REST.values(), ids=AT_REST)
def test_a_component_at_rest_does_not_speak_against_the_error_bars(fun, y0, method, rtol):
    result = solve_ivp(fun, (0, 10), y0, method, rtol=rtol, atol=1e-3 * rtol)
    assert result.posterior.diagnose().flags == ()
    assert result.posterior.diagnose().largest_error < 10 * rtol


def test_a_phase_that_is_lost_still_speaks_against_them():
    """With ``atol`` far above the solution errors are as large as what it does."""
    result = solve_ivp(lambda t, y: [3 * y[1], -3 * y[0]], (0, 20), [1e-9, 0.0])
    assert "size" in result.posterior.diagnose().flags
