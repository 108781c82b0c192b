"""``diagnose(again=True)``: error bars that are too small are found by a second solve."""

import pickle
from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest
from only_python import number
from scipy.sparse import csc_array, diags_array

import probode
from benchmarks import large_problems
from probode import EK0, PIControl, SecondOrder, SparseEK1

N = 60
X = np.arange(1, N + 1) / (N + 1)
Y0 = np.exp(-50 * (X - 0.3) ** 2)
BESIDE = diags_array([np.ones(N - 1), np.ones(N), np.ones(N - 1)], offsets=[-1, 0, 1])


def growth(t, y, rate=1.0):
    """Diffusion between cold ends, and logistic growth."""
    inside = jnp.concatenate([jnp.zeros(1), y, jnp.zeros(1)])
    return 0.01 * (N + 1) ** 2 * (inside[2:] - 2 * y + inside[:-2]) + rate * y * (1 - y)


def predators(t, y):
    return [1.5 * y[0] - y[0] * y[1], -3 * y[1] + y[0] * y[1]]


def in_jax(t, y):
    return jnp.stack(predators(t, y))


def stubborn(t, y):
    """Only Python can evaluate it."""
    return predators(number(t), [number(y[0]), number(y[1])])


def large(**options):
    return probode.solve_ivp(growth, (0, 2), Y0, "SparseEK1", rtol=1e-4, **options).posterior


def small(f=predators, span=(0, 10), y0=(1.0, 1.0), **options):
    return probode.solve_ivp(f, span, y0, **options).posterior


def solved(f=in_jax, y0=(1.0, 1.0), **options):
    return probode.solve(f, (0, 10), np.array(y0), calibration="defect", **options)


def bounced():
    def hit(t, y):
        return y[0]

    hit.direction = -1
    hit.reset = lambda t, y: np.array([0.0, -0.8 * y[1]])
    return small(lambda t, y: [y[1], -9.81 - 0.1 * y[1]], (0, 2), [1.0, 0.0], events=hit)


def ended():
    def half(t, y):
        return y[N - 5] - 0.5

    half.terminal = True
    return large(events=half)


WHAT = {
    "steps": large,
    "chosen times": lambda: large(t_eval=[0.1, 1.0, 2.0]),
    "dense output": lambda: large(dense_output=True),
    "bands": lambda: large(lband=1, uband=1),
    "a pattern": lambda: large(jac_sparsity=BESIDE),
    "arguments": lambda: large(args=(0.5,)),
    "a mass matrix": lambda: large(mass_matrix=csc_array(BESIDE + 4 * diags_array(np.ones(N)))),
    "Krylov": lambda: (
        probode.solve_ivp(growth, (0, 2), Y0, SparseEK1(linear="krylov"), rtol=1e-4).posterior
    ),
    "given jumps": lambda: large(jumps=[(0.5, lambda t, y: y + 0.1)]),
    "an event": ended,
    "EK1": small,
    "EK0 in Python": lambda: small(stubborn, method="EK0"),
    "a tolerance on the answer": lambda: small(global_rtol=1e-3),
    "resets": bounced,
    "complex": lambda: small(lambda t, y: 1j * y, y0=[1.0 + 0j]),
    "until": lambda: small(lambda t, y: y * (1 - y), (0, np.inf), [0.1], until="steady"),
    "solve": solved,
    "solve, chosen times": lambda: solved(solver=EK0(3), save_at=[1.0, 5.0, 10.0]),
    "solve, large": lambda: probode.solve(
        growth,
        *((0, 2), Y0),
        solver=SparseEK1(),
        control=PIControl(1e-4, 1e-4),
        calibration="defect",
        save_at=[1.0, 2.0],
        breakpoints=[1.5],
    ),
    "second order": lambda: probode.solve(
        SecondOrder(lambda t, y, v: -y), (0, 10), (1.0, 0.0), calibration="defect"
    ),
}


@pytest.mark.parametrize("what", WHAT)
def test_bars_of_the_size_of_the_error_are_not_suspected(what):
    found = WHAT[what]().diagnose(again=True)
    assert found.trusted, found
    # Of the size of the errors, up to a factor of three: they were not compared with themselves.
    assert 0.1 < found.numbers["again"] < 3
    assert "solved again at a tenth of the tolerance" in str(found)


def test_bars_that_are_too_small_are_found():
    problem = large_problems.held_out("fitzhugh-nagumo", True)

    def at(rtol, **options):
        return probode.solve(
            *(problem.in_jax, (0.0, problem.end), problem.y0),
            solver=SparseEK1(5),
            control=PIControl(rtol, rtol * problem.unit),
            calibration="defect",
            **options,
        )

    posterior = at(1e-2)
    exact = at(1e-8, save_at=posterior.t[1:])
    error = np.asarray(posterior.mean)[1:] - np.asarray(exact.mean)
    assert np.mean((error / np.asarray(posterior.std)[1:]) ** 2) > 3
    assert posterior.diagnose().trusted
    found = posterior.diagnose(again=True)
    assert found.flags == ("again",)
    assert "moves the solution by more than they are" in str(found)


def test_bars_of_the_model_are_compared_too():
    found = small(calibration="model").diagnose(again=True)
    assert found.numbers["again"] < 3
    assert str(found).startswith("not calibrated")
    assert "solved again" in str(found)


def test_steps_of_the_users_own_are_shorter_the_second_time():
    assert large(max_step=0.02).diagnose(again=True).numbers["again"] > 0.1


def test_errors_of_rounding_size_are_no_reason():
    posterior = small(lambda t, y: -1e6 * (y - 1.0), (0, 1), [2.0], rtol=1e-12, atol=1e-12)
    assert "again" not in posterior.diagnose(again=True).flags


def test_a_solve_that_ended_early_is_compared_as_far_as_it_came():
    found = small(max_num_steps=10).diagnose(again=True)
    assert "stopped" not in found.flags
    assert found.numbers["again"] < 3


def test_a_second_solve_that_ends_earlier_is_said():
    posterior = small()
    problem = posterior.problem.repeated_by(lambda *_: small(span=(0, 5)))
    assert "stopped" in replace(posterior, problem=problem).diagnose(again=True).flags


def test_what_becomes_of_the_start_later_does_not_matter():
    y0 = np.array([1.0, 1.0])
    posterior, other = small(y0=y0), solved(y0=y0)
    expected = posterior.diagnose(again=True).numbers, other.diagnose(again=True).numbers
    y0[:] = 5.0
    assert posterior.diagnose(again=True).numbers == expected[0]
    assert other.diagnose(again=True).numbers == expected[1]


def loaded(posterior):
    return pickle.loads(pickle.dumps(posterior))


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (lambda: solved(step=0.1), "steps were given"),
        (lambda: small(grid=np.linspace(0, 10, 50)), "steps were given"),
        (lambda: loaded(small()), "does not know how it was solved"),
        (lambda: loaded(bounced()), "does not know how it was solved"),
        (lambda: large(jumps=[(1, lambda t, y: y)], max_num_steps=9), "did not"),
    ],
)
def test_what_cannot_be_solved_again_is_said(made, words):
    with pytest.raises(ValueError, match=words):
        made().diagnose(again=True)
