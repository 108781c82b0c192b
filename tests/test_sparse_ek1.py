"""SparseEK1 at the front doors: where Jacobians come from, how results are kept, error bars."""

from contextlib import nullcontext

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from only_python import number
from scipy.integrate import solve_ivp as scipy_solve_ivp
from scipy.sparse import block_diag, csc_array, diags_array, kron

import probode
from probode import EK1, MassMatrix, PIControl, SecondOrder, SparseEK1, Status
from probode.engines.native.library import disabled
from probode.filter.solvers import EK0
from probode.ivp.method import large_kind
from probode.ivp.options import Options

N = 40
WIDTH = 0.02 * (N + 1) ** 2
X = np.arange(1, N + 1) / (N + 1)
Y0 = np.stack([1.0 + np.sin(2 * np.pi * X), np.full(N, 3.0)], axis=1).reshape(-1)
SPAN = (0.0, 5.0)
PATTERN = diags_array([np.ones(2 * N)] * 5, offsets=range(-2, 3), shape=(2 * N, 2 * N))


def brusselator(t, y, xp=jnp):
    u, v = y[0::2], y[1::2]
    one = xp.ones(1)
    left, right = xp.concatenate([one, u[:-1]]), xp.concatenate([u[1:], one])
    below, above = xp.concatenate([3 * one, v[:-1]]), xp.concatenate([v[1:], 3 * one])
    du = 1.0 + u * u * v - 4.0 * u + WIDTH * (left - 2 * u + right)
    dv = 3.0 * u - u * u * v + WIDTH * (below - 2 * v + above)
    return xp.stack([du, dv], axis=1).reshape(-1)


def in_python(t, y):
    """The same, in a way that cannot be traced."""
    return brusselator(number(t), np.asarray(y, float).copy(), np)


def jacobian(t, y):
    u, v = np.asarray(y[0::2]), np.asarray(y[1::2])
    second = diags_array([1.0, -2.0, 1.0], offsets=(-1, 0, 1), shape=(N, N))
    local = np.stack([2 * u * v - 4, u * u, 3 - 2 * u * v, -u * u], axis=1).reshape(N, 2, 2)
    return csc_array(WIDTH * kron(second, np.eye(2)) + block_diag(list(local)))


@pytest.fixture(scope="module")
def reference():
    times = np.linspace(0.25, 5.0, 20)
    found = scipy_solve_ivp(
        lambda t, y: brusselator(t, y, np),
        *(SPAN, Y0, "Radau", times),
        jac=jacobian,
        rtol=1e-10,
        atol=1e-10,
    )
    return times, found.y.T


def solve(f=brusselator, solver=SparseEK1(), rtol=1e-5, **options):  # noqa: B008
    return probode.solve(f, SPAN, Y0, solver=solver, control=PIControl(rtol, rtol), **options)


def solve_ivp(f=in_python, rtol=1e-5, **options):
    options = {"method": "SparseEK1", "rtol": rtol, "atol": rtol, **options}
    return probode.solve_ivp(f, SPAN, Y0, **options)


# Solutions and error bars -------------------------------------------------------------------------


@pytest.mark.parametrize("order", [2, 3, 4, 5])
@pytest.mark.parametrize("rtol", [1e-4, 1e-6])
def test_errors_are_of_the_size_of_the_tolerance_and_of_the_bars(order, rtol, reference):
    times, values = reference
    posterior = solve(solver=SparseEK1(order), rtol=rtol, calibration="defect")
    found = posterior(times)
    error = found.mean - values
    assert np.sqrt(np.mean(error**2)) < 20 * rtol
    assert 1 / 3 < np.mean((error / found.std) ** 2) < 3
    assert posterior.diagnose().trusted


@pytest.mark.parametrize("end", [0.001, 0.1])
@pytest.mark.parametrize("switches", [False, True])
def test_what_one_step_would_solve_has_error_bars(end, switches):
    """Of one step the estimate would find nothing; nor of one from the start to a switch."""
    start = np.linspace(1.0, 2.0, 50)

    def f(t, y):
        return -0.3 * y * y + (jnp.where(t > end, 1.0, 0.0) if switches else 0.0)

    found = probode.solve_ivp(f, (0.0, 2.0 * end if switches else end), start, t_eval=[end],
                              method="SparseEK1", rtol=1e-2, atol=1e-2)  # fmt: skip
    error = found.y[:, -1] - 1.0 / (1.0 / start + 0.3 * end)
    assert 1 / 3 < np.mean((error / found.y_std[:, -1]) ** 2) < 3


CELLS = 8
SLOW = 0.04 * (1.0 + 0.9 * np.sin(2.0 * np.pi * np.arange(CELLS) / CELLS))


def robertson(t, y, xp=jnp):
    """In cells next to each other, each with its own rate."""
    u = y.reshape(CELLS, 3)
    wide = xp.concatenate([u[:1], u, u[-1:]])
    first, second, third = SLOW * u[:, 0], 1e4 * u[:, 1] * u[:, 2], 3e7 * u[:, 1] ** 2
    made = xp.stack([second - first, first - second - third, third], axis=1)
    return (made + 1e-4 * CELLS**2 * (wide[:-2] - 2 * u + wide[2:])).reshape(-1)


@pytest.mark.parametrize(("order", "rtol"), [(5, 1e-2), (4, 3e-3)])
def test_errors_are_followed_where_newtons_method_converges_slowly(order, rtol):
    """With two iterations a step for the error, bars would be ten times too small."""
    times, start = np.geomspace(1.0, 1e3, 30), np.tile([1.0, 0.0, 0.0], CELLS)
    exact = scipy_solve_ivp(
        lambda t, y: robertson(t, y, np), (0, 1e3), start, "Radau", times, rtol=1e-8, atol=1e-11
    )
    options = {"control": PIControl(rtol, 1e-3 * rtol), "calibration": "defect"}
    found = probode.solve(robertson, (0, 1e3), start, solver=SparseEK1(order), **options)(times)
    assert 1 / 3 < np.mean(((found.mean - exact.y.T) / found.std) ** 2) < 3


POINTS = (np.arange(150) + 0.5) / 150


def invasion(t, y, xp=jnp):
    """A front that moves into ``y = 0``, where whatever is there grows by ``exp(20 t)``."""
    wide = xp.concatenate([y[:1], y, y[-1:]])
    return 4.5 * (wide[:-2] - 2 * y + wide[2:]) + 20 * y * (1 - y)


@pytest.fixture(scope="module")
def invaded():
    start, options = np.exp(-80 * POINTS**2), {"rtol": 1e-8, "atol": 1e-10, "lband": 1, "uband": 1}
    found = scipy_solve_ivp(lambda t, y: invasion(t, y, np), (0, 1.5), start, "LSODA", **options)
    return start, found.y[:, -1]


@pytest.mark.parametrize("order", [3, 4, 5])
@pytest.mark.parametrize("rtol", [3e-2, 1e-2, 3e-3])
def test_nothing_runs_off_ahead_of_a_front_into_an_unstable_state(order, rtol, invaded):
    start, exact = invaded
    options = {"solver": SparseEK1(order), "control": PIControl(rtol, rtol)}
    posterior = probode.solve(invasion, (0, 1.5), start, **options)
    assert posterior.success
    # The front, a step from one to zero, is off by at most a twentieth of the interval.
    assert np.mean(np.abs(posterior.mean[-1] - exact)) < 0.05


def test_the_corrected_mean_is_more_exact(reference):
    times, values = reference
    posterior = solve(calibration="defect", rtol=1e-6)
    error = np.sqrt(np.mean((posterior(times).mean - values) ** 2))
    assert np.sqrt(np.mean((posterior.corrected(times) - values) ** 2)) < 0.5 * error


def test_a_heat_equation_has_its_closed_form():
    n = 200
    x = np.arange(1, n + 1) / (n + 1)
    rate = 4 * (n + 1) ** 2 * np.sin(np.pi / (2 * (n + 1))) ** 2

    def heat(t, y):
        wide = jnp.pad(y, 1)
        return (n + 1) ** 2 * (wide[:-2] - 2 * y + wide[2:])

    posterior = probode.solve(
        *(heat, (0.0, 0.2), np.sin(np.pi * x)),
        solver=SparseEK1(),
        control=PIControl(1e-6, 1e-6),
        calibration="defect",
    )
    exact = np.exp(-rate * posterior.t)[:, None] * np.sin(np.pi * x)
    error = posterior.mean - exact
    assert np.abs(error).max() < 1e-5
    assert 1 / 3 < np.mean((error[1:] / posterior.std[1:]) ** 2) < 3


SECOND = csc_array(diags_array([1.0, -2.0, 1.0], offsets=(-1, 0, 1), shape=(N, N)) * (N + 1) ** 2)
HALF = 0.5j * SECOND - diags_array(np.full(N, 1.0))
PARTICLE = {
    "traced": {},
    "pattern": {"jac_sparsity": SECOND},
    "bands": {"lband": 1, "uband": 1},
    "its own": {"jac": lambda t, y: HALF},
    "constant": {"jac": HALF},
    "mass": {"mass_matrix": np.full(N, 2.0j)},
}


@pytest.mark.parametrize("source", PARTICLE)
def test_complex_states_are_solved_in_real_form(source):
    """``y' = i y_xx / 2 - y``: a wave in a box, that fades."""

    def f(t, y):
        if source in ("pattern", "its own"):  # of NumPy's alone
            number(t)
            return HALF @ np.array(y)
        wide = jnp.pad(jnp.asarray(y), 1)
        slope = 0.5j * (N + 1) ** 2 * (wide[:-2] - 2 * wide[1:-1] + wide[2:]) - wide[1:-1]
        return 2.0j * slope if source == "mass" else slope

    start = np.sin(np.pi * X) + 0.5j * np.sin(2 * np.pi * X)
    rates = 2j * (N + 1) ** 2 * np.sin(0.5 * np.pi * np.arange(1, 3) / (N + 1)) ** 2 + 1.0
    options = {"method": "SparseEK1", "rtol": 1e-6, "atol": 1e-6}
    found = probode.solve_ivp(f, (0.0, 0.5), start, **options, **PARTICLE[source])
    waves = np.stack([np.sin(np.pi * X), 0.5j * np.sin(2 * np.pi * X)])
    error = np.abs(found.y[:, -1] - np.exp(-0.5 * rates) @ waves)
    assert error.max() < 1e-4
    assert 0.2 < np.mean((error / found.y_std[:, -1]) ** 2) < 5.0


def test_a_switch_at_the_very_end_is_not_started_anew_at():
    def driven(t, y):
        return -50.0 * y + jnp.where((t % 0.5) < 0.1, 1.0, 0.0)

    found = probode.solve_ivp(driven, (0.0, 0.6), np.zeros(80), "SparseEK1", rtol=1e-6, atol=1e-8)
    assert found.success
    np.testing.assert_allclose(found.y[:, -1], (1.0 - np.exp(-5.0)) / 50.0, rtol=1e-4)


def test_a_tolerance_on_the_answer_is_met(reference):
    times, values = reference
    found = solve_ivp(rtol=1e-3, global_rtol=1e-5, jac_sparsity=PATTERN, dense_output=True)
    assert found.success
    assert np.max(np.abs(found.sol(times).T - values) / np.abs(values)) < 3e-5


# Where the Jacobian comes from --------------------------------------------------------------------

SOURCES = {
    "program": {"f": brusselator},
    "pattern": {"f": in_python, "jac_sparsity": PATTERN},
    "bands": {"f": in_python, "lband": 2, "uband": 2},
    "program-and-pattern": {"f": brusselator, "jac_sparsity": PATTERN},
    "given": {"f": in_python, "jac": jacobian},
    "given-full": {"f": in_python, "jac": lambda t, y: jacobian(t, y).toarray()},
    "differences-of-all": {"f": in_python},
    "products": {"f": brusselator, "method": SparseEK1(linear="krylov")},
}


@pytest.mark.parametrize("source", SOURCES)
def test_every_source_of_the_jacobian_leads_to_the_same_solution(source, reference):
    times, values = reference
    found = solve_ivp(**SOURCES[source], t_eval=times)
    assert found.success
    assert np.sqrt(np.mean((found.y.T - values) ** 2)) < 2e-4
    assert 1 / 4 < np.mean(((found.y.T - values) / found.y_std.T) ** 2) < 4


def test_a_preconditioner_is_used():
    def near(t, y, c, b):
        pairs = b.reshape(N, 2)
        modes = jnp.fft.rfft(
            jnp.concatenate([pairs, -pairs[::-1]]), axis=0
        )  # odd: zero at the ends
        rates = WIDTH * (2 * jnp.cos(2 * jnp.pi * jnp.arange(len(modes)) / (2 * N)) - 2)
        smooth = jnp.fft.irfft(modes / (1.0 - c * rates)[:, None], 2 * N, axis=0)
        return smooth[:N].reshape(-1)

    posterior = solve(solver=SparseEK1(linear="krylov", preconditioner=near))
    assert posterior.success
    np.testing.assert_allclose(posterior.mean[-1], solve().mean[-1], atol=1e-3)


@pytest.mark.parametrize("i", [(0, 5), (77, 3)])
@pytest.mark.parametrize("traced", [True, False])
def test_an_entry_outside_of_the_pattern_is_named(i, traced):
    def f(t, y):
        value = brusselator(t, y, jnp if traced else np)
        if traced:
            return value.at[i[0]].add(0.5 * y[i[1]])
        value[i[0]] += 0.5 * number(y[i[1]])
        return value

    with pytest.raises(ValueError, match=rf"\({i[0]}, {i[1]}\).*jac_sparsity"):
        solve_ivp(f, jac_sparsity=PATTERN)


def test_a_state_of_any_shape_has_a_jacobian_of_it_flattened():
    def relax(t, y):
        return -jnp.array([[1.0, 2.0], [3.0, 40.0]]) * y

    def jac(t, y):
        assert y.shape == (2, 2)
        return csc_array(np.diag([-1.0, -2.0, -3.0, -40.0]))

    posterior = probode.solve(relax, (0.0, 1.0), np.ones((2, 2)), solver=SparseEK1(), jac=jac)
    np.testing.assert_allclose(posterior.mean[-1], np.exp([[-1.0, -2.0], [-3.0, -40.0]]), atol=1e-6)


# Mass matrices ------------------------------------------------------------------------------------


def test_a_mass_matrix_is_part_of_the_linear_algebra():
    mass = csc_array(diags_array([1.0, 4.0, 1.0], offsets=(-1, 0, 1), shape=(60, 60)) / 6)
    stiff = 60**2 * diags_array([1.0, -2.0, 1.0], offsets=(-1, 0, 1), shape=(60, 60)).toarray()
    y0 = np.sin(np.pi * np.arange(1, 61) / 61)
    inverse = np.linalg.inv(mass.toarray())
    options = {"solver": SparseEK1(), "control": PIControl(1e-7, 1e-9), "calibration": "defect"}
    weighed = probode.solve(MassMatrix(lambda t, y: stiff @ y, mass), (0, 0.1), y0, **options)
    plain = probode.solve(lambda t, y: inverse @ (stiff @ y), (0, 0.1), y0, **options)
    through_scipy = probode.solve_ivp(
        *(lambda t, y: stiff @ y, (0, 0.1), y0, "SparseEK1"),
        mass_matrix=mass,
        rtol=1e-7,
        atol=1e-9,
    )
    np.testing.assert_allclose(weighed.mean[-1], plain.mean[-1], atol=1e-6)
    np.testing.assert_allclose(weighed.std[-1], plain.std[-1], rtol=0.3)
    np.testing.assert_allclose(through_scipy.y[:, -1], weighed.mean[-1], atol=1e-12)


# What is kept -------------------------------------------------------------------------------------


def test_chosen_times_are_those_of_dense_output():
    times = np.linspace(0.0, 5.0, 7)
    saved, every = solve(save_at=times, calibration="defect"), solve(calibration="defect")
    np.testing.assert_allclose(saved.mean, every(times).mean, rtol=1e-12, atol=1e-12)
    ratio = saved.std[1:] / every(times).std[1:]
    assert 0.3 < np.median(ratio) < 3


def test_the_end_alone_takes_no_memory_for_steps():
    posterior = solve(save_at=5.0)
    np.testing.assert_array_equal(posterior.mean[-1], solve().mean[-1])
    assert posterior.mean.shape == (1, 2 * N)


def test_backwards_in_time():
    forward = probode.solve(
        lambda t, y: 0.3 * y, (0.0, 2.0), np.ones(3), solver=SparseEK1(), calibration="defect"
    )
    back = probode.solve(
        lambda t, y: 0.3 * y, (2.0, 0.0), forward.mean[-1], solver=SparseEK1(), calibration="defect"
    )
    np.testing.assert_allclose(back.mean[-1], 1.0, rtol=1e-5)
    np.testing.assert_allclose(back(1.0).mean, np.exp(0.3), rtol=1e-5)


@pytest.mark.parametrize("kernels", [True, False])
def test_backwards_in_time_chosen_times_have_error_bars(kernels):
    times, start = np.array([1.5, 1.0, 0.0]), np.linspace(1.0, 2.0, 50)
    options = {"method": "SparseEK1", "rtol": 1e-4, "atol": 1e-4, "t_eval": times}
    with nullcontext() if kernels else disabled():
        found = probode.solve_ivp(lambda t, y: jnp.sin(3 * t) * y, (2.0, 0.0), start, **options)
    error = found.y - start[:, None] * np.exp((np.cos(6.0) - np.cos(3.0 * times)) / 3.0)
    assert 1 / 3 < np.mean((error / found.y_std) ** 2) < 3


NAMED = {
    "few": ({}, np.ones(120), EK1),
    "seconds a step": ({}, np.ones(400), SparseEK1),
    "lower order": ({"order": 2}, np.ones(200), EK1),
    "sparse": ({"lband": 1, "uband": 1}, np.ones(120), SparseEK1),
    "what only EK1 has": ({"bounds": (0.0, 2.0)}, np.ones(400), EK1),
    "complex": ({}, np.ones(400) * 1j, EK1),
}


@pytest.mark.parametrize(("options", "y0", "expected"), NAMED.values(), ids=NAMED)
def test_the_name_of_ek1_stands_for_the_one_that_ends(options, y0, expected):
    assert large_kind(EK1, Options(**options), y0) is expected


def test_events_are_found():
    def crossing(t, y):
        return y[0] - 1.05

    found = solve_ivp(events=crossing, jac_sparsity=PATTERN, rtol=1e-7)
    exact = scipy_solve_ivp(
        *(lambda t, y: brusselator(t, y, np), SPAN, Y0, "Radau"),
        events=crossing,
        jac=jacobian,
        rtol=1e-9,
        atol=1e-9,
    )
    assert len(found.t_events[0]) == len(exact.t_events[0])
    np.testing.assert_allclose(found.t_events[0], exact.t_events[0], atol=1e-4)


def test_a_switch_in_time_is_started_anew_at():
    def pushed(t, y):
        return -50.0 * (y - jnp.where(t < 1.0, 0.0, 1.0))

    posterior = probode.solve(
        *(pushed, (0.0, 2.0), np.array([1.0, 2.0])),
        solver=SparseEK1(),
        control=PIControl(1e-8, 1e-8),
        calibration="defect",
    )
    t = np.array([0.5, 1.0, 1.01, 1.5])
    exact = np.where(t < 1, np.exp(-50 * t), 1 - np.exp(-50 * (t - 1)) * (1 - np.exp(-50)))
    np.testing.assert_allclose(posterior(t).mean[:, 0], exact, atol=1e-6)


def test_after_a_jump_the_first_bars_are_those_of_the_error_that_goes_through():
    found = probode.solve_ivp(
        brusselator, (0, 1), Y0, "SparseEK1", rtol=1e-4, jumps=[(0.5, lambda t, y: 2 * y)]
    )
    before, after = (piece.std for piece in found.posterior.pieces)
    # The jump doubles the error; what lies around counts in the bars, too.
    assert 1.0 < np.sqrt(np.mean(after[0] ** 2) / np.mean(before[-1] ** 2)) < 4.0


@pytest.mark.parametrize(("order", "rtol"), [(4, 1e-4), (5, 1e-2)])
def test_steps_grow_again_behind_a_layer(order, rtol):
    def relaxing(t, y):  # two oscillators of Van der Pol, stiff, and weakly coupled
        u, v = y[0::2], y[1::2]
        return jnp.stack([v, 1e6 * ((1 - u * u) * v - u) + 1e3 * (u[::-1] - u)], 1).reshape(-1)

    y0 = np.array([2.0, 0.0, -1.5, 0.0])
    options = {"order": order, "rtol": rtol, "atol": rtol, "calibration": "model"}
    found = probode.solve_ivp(relaxing, (0, 2), y0, "SparseEK1", max_num_steps=3000, **options)
    # BDF takes about 1000. What has grown in a layer bounds the steps in it, not those behind it.
    assert found.success


def pulse(t, y):
    """A dose of the first chemical in the middle."""
    after = np.array(y)
    after[0::2] += np.exp(-(((X - 0.5) / 0.1) ** 2))
    return after


@pytest.mark.parametrize("kernels", [True, False])
def test_error_bars_go_through_jumps(kernels):
    with nullcontext() if kernels else disabled():
        found = probode.solve_ivp(
            *(brusselator, (0, 4), Y0, "SparseEK1"), rtol=1e-4, atol=1e-4, jumps=[(1.0, pulse)]
        )
    y, errors = Y0, []
    for piece, ends in zip(found.posterior.pieces, ((0.0, 1.0), (1.0, 4.0)), strict=True):
        options = {"jac": jacobian, "rtol": 1e-9, "atol": 1e-9, "dense_output": True}
        exact = scipy_solve_ivp(lambda t, y: brusselator(t, y, np), ends, y, "Radau", **options)
        rows = slice(1, None) if ends[0] == 0.0 else slice(None)
        errors.append((piece.mean - exact.sol(piece.t).T)[rows] / piece.std[rows])
        y = pulse(1.0, exact.y[:, -1])
    assert 1 / 3 < np.mean(np.concatenate(errors) ** 2) < 3


def test_jumps_of_many_components_need_no_matrix():
    x = np.arange(1, 5001) / 5001
    shape, rate = np.sin(np.pi * x), -(5001**2) * (2 - 2 * np.cos(np.pi / 5001))

    def heat(t, y):
        ends = jnp.zeros(1)
        inside = jnp.concatenate([ends, y, ends])
        return 5001**2 * (inside[2:] - 2 * y + inside[:-2])

    options = {"rtol": 1e-4, "atol": 1e-4, "jumps": [(0.05, lambda t, y: y + y**2)]}
    found = probode.solve_ivp(heat, (0, 0.06), shape, "SparseEK1", **options)
    before, after = found.posterior.pieces
    error = np.asarray(before.global_error()[-1])
    # What the jump makes of an error e is (1 + 2 y) e.
    expected = (1 + 2 * shape * np.exp(0.05 * rate)) * error
    np.testing.assert_allclose(after.global_error()[0], expected, atol=1e-3 * np.max(expected))
    with pytest.raises(ValueError, match="use SparseEK1"):
        probode.solve_ivp(heat, (0, 0.06), shape, "EK0", **options)


def test_a_posterior_is_saved_and_loaded(tmp_path):
    posterior = solve(calibration="defect")
    posterior.save(tmp_path / "large.npz")
    again = probode.Posterior.load(tmp_path / "large.npz")
    np.testing.assert_array_equal(again(1.3).std, posterior(1.3).std)
    assert again.solver == posterior.solver


def test_other_numbers_do_not_change_the_programs():
    def decay(t, y, rate):
        return -rate * y + jnp.roll(y, 1)

    found = [
        probode.solve(decay, (0.0, 1.0), np.ones(80), (rate,), solver=SparseEK1()).mean[-1, 0]
        for rate in (1.5, 3.0)
    ]
    np.testing.assert_allclose(found, np.exp([-0.5, -2.0]), rtol=1e-5)


# How it ends --------------------------------------------------------------------------------------


def test_a_limit_of_steps_returns_what_there_is():
    posterior = solve(max_steps=20, calibration="defect")
    assert posterior.status == Status.MAX_STEPS
    assert 0 < posterior.t[-1] < 5
    assert np.all(np.isfinite(posterior.std))


def test_a_limit_before_the_first_chosen_time_returns_none_of_them():
    result = solve_ivp(brusselator, max_num_steps=5, t_eval=[4.0, 5.0])
    assert not result.success
    assert len(result.t) == 0
    assert np.size(result.y) == np.size(result.y_std) == 0
    assert result.posterior.diagnose().numbers


def test_a_preconditioner_that_is_not_finite_is_not_taken_for_f():
    solver = SparseEK1(linear="krylov", preconditioner=lambda t, y, c, b: b * jnp.nan)
    posterior = probode.solve(lambda t, y: -y, (0.0, 1.0), np.ones(2), solver=solver)
    assert posterior.status == Status.STEP_TOO_SMALL


def test_what_is_not_finite_returns_what_came_before():
    def root(t, y):
        return -jnp.sqrt(1.0 - t) * jnp.ones_like(y) - y

    posterior = probode.solve(root, (0.0, 2.0), np.ones(3), solver=SparseEK1())
    assert posterior.status in (Status.NOT_FINITE, Status.STEP_TOO_SMALL)
    assert posterior.t[-1] == pytest.approx(1.0, abs=1e-2)


def test_given_steps_are_taken():
    grid = np.linspace(0.0, 1.0, 51)
    posterior = probode.solve(
        lambda t, y: -y, (0.0, 1.0), np.ones(2), solver=SparseEK1(), grid=grid
    )
    np.testing.assert_array_equal(posterior.t, grid)
    np.testing.assert_allclose(posterior.mean[-1], np.exp(-1.0), rtol=1e-4)


@pytest.mark.parametrize(("steps", "flags"), [(2, ("few",)), (3, ())])
def test_error_bars_of_too_few_given_steps_are_flagged(steps, flags):
    options = {"solver": SparseEK1(), "calibration": "defect"}
    grid = np.linspace(0.0, 0.1, steps + 1)
    posterior = probode.solve(lambda t, y: -y, (0.0, 0.1), np.ones(2), grid=grid, **options)
    assert posterior.diagnose().flags == flags


# What is refused ----------------------------------------------------------------------------------

REFUSED = {
    "order": (lambda: SparseEK1(6), "orders 1 to 5"),
    "prior": (lambda: SparseEK1(probode.Matern(3, 1.0)), "IWP"),
    "start": (lambda: SparseEK1(initialization="taylor"), "'slope'"),
    "diffusion": (lambda: SparseEK1(4, "fixed"), "calibrated"),
    "preconditioner": (lambda: SparseEK1(preconditioner=lambda *_: 0), "krylov"),
    "second order": (
        lambda: probode.solve(
            *(SecondOrder(lambda t, y, v: -y), (0.0, 1.0), (np.ones(2), np.ones(2))),
            solver=SparseEK1(),
        ),
        "M y' = f",
    ),
    "samples": (lambda: solve(save_at=5.0).sample(2), "no samples"),
    "evidence": (lambda: solve(save_at=5.0).log_evidence, "no evidence"),
    "calibrate": (lambda: solve(rtol=1e-2).calibrate(), "calibration='defect'"),
    "inside jit": (
        lambda: jax.jit(lambda y: solve(save_at=5.0).mean * 0 + solved_inside(y))(Y0),
        "outside of jit",
    ),
    "singular mass": (
        lambda: probode.solve(
            MassMatrix(lambda t, y: -y, np.array([1.0, 0.0])),
            (0, 1),
            [1.0, 1.0],
            solver=SparseEK1(),
        ),
        "singular",
    ),
    "mass function": (
        lambda: probode.solve(
            MassMatrix(lambda t, y: -y, lambda t, y: jnp.eye(2)),
            (0, 1),
            [1.0, 1.0],
            solver=SparseEK1(),
        ),
        "constant",
    ),
    "shape of mass": (
        lambda: probode.solve(
            MassMatrix(lambda t, y: -y, np.eye(3)), (0, 1), [1.0, 1.0], solver=SparseEK1()
        ),
        r"\(2, 2\)",
    ),
    "shape of the pattern": (lambda: solve_ivp(jac_sparsity=np.eye(3)), "jac_sparsity"),
    "bands below zero": (lambda: solve_ivp(lband=-1, uband=1), "lband must be at least 0"),
    "bands and a pattern": (
        lambda: solve_ivp(lband=1, jac_sparsity=np.eye(6)),
        "give one of them",
    ),
    "bands of fractions": (lambda: solve_ivp(lband=1, uband=1.5), "uband must be a whole"),
    "a Jacobian that is not finite": (
        lambda: solve_ivp(jac=lambda t, y: csc_array(np.diag(np.where(Y0 > 1.5, np.nan, 1.0)))),
        "nan in row 1 and column 1",
    ),
    "a preconditioner that is none": (
        lambda: SparseEK1(linear="krylov", preconditioner=np.eye(3)),
        "must be a function",
    ),
    "shape of what a preconditioner returns": (
        lambda: solve(solver=SparseEK1(linear="krylov", preconditioner=lambda t, y, c, b: b[1:])),
        r"of shape \(80,\)",
    ),
    "a preconditioner by another name": (
        lambda: SparseEK1(linear="krylov", preconditioner="ilu"),
        "jacobi",
    ),
    "the diagonal of what is full": (
        lambda: probode.solve(
            *(lambda t, y: -jnp.tanh(jnp.mean(y)) * y, (0, 1), np.ones(8000)),
            solver=SparseEK1(linear="krylov", preconditioner="jacobi"),
        ),
        "jac_sparsity",
    ),
    "bands of a complex matrix": (
        lambda: probode.solve_ivp(
            *(lambda t, y: 1j * y, (0, 1), [1j, 1.0], "SparseEK1"), jac=np.eye(2), lband=1
        ),
        "sparse matrix",
    ),
    "ensembles": (
        lambda: probode.solve_ensemble(
            lambda t, y, p: -p * y, (0, 1), [1.0], (probode.Sweep(np.ones(3)),), solver=SparseEK1()
        ),
        "SparseEK1",
    ),
    "too large for EK1": (
        lambda: probode.solve(lambda t, y: -y, (0, 1), np.ones(20_000), solver=EK1()),
        "SparseEK1",
    ),
}


def solved_inside(y):
    return probode.solve(brusselator, SPAN, y, solver=SparseEK1(), save_at=5.0).mean


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_done_is_said(what):
    call, words = REFUSED[what]
    with pytest.raises((ValueError, TypeError), match=words):
        call()


def test_it_is_chosen_by_itself_for_large_sparse_problems(caplog):
    n = 150
    pattern = diags_array([np.ones(n)] * 3, offsets=(-1, 0, 1), shape=(n, n))

    def heat(t, y):
        wide = np.concatenate([[0.0], y, [0.0]])
        return n**2 * (wide[:-2] - 2 * y + wide[2:])

    with caplog.at_level("WARNING", "probode"):
        found = probode.solve_ivp(heat, (0, 0.01), np.ones(n), jac_sparsity=pattern)
    assert isinstance(found.posterior.solver, SparseEK1)
    assert "SparseEK1" in caplog.text


@pytest.mark.parametrize("method", ["EK0", EK0(2)])
def test_a_method_that_was_asked_for_is_used(method):
    pattern = np.ones((120, 120))
    found = probode.solve_ivp(
        lambda t, y: -y, (0, 1), np.ones(120), method, jac_sparsity=pattern, order=2
    )
    assert isinstance(found.posterior.solver, EK0)
