"""Jumps and doses: the pieces between them as one, with error bars that go through."""

import pickle

import numpy as np
import pytest
from only_python import number
from scipy.integrate import solve_ivp as scipy_solve_ivp
from scipy.linalg import expm

import probode
from probode import solve_ivp

RATE, DOSE = 0.3, 5.0
TABLE = probode.doses(2.0, DOSE, repeats=10, every=4.0)


def elimination(t, y):
    return [-RATE * y[0]]


def concentration(t, after=True):
    """The closed form with ten doses, at their times after or before them."""
    given = t[:, None] >= TABLE.times if after else t[:, None] > TABLE.times
    since = np.maximum(t[:, None] - TABLE.times, 0.0)
    return np.exp(-RATE * t) + np.sum(np.where(given, DOSE * np.exp(-RATE * since), 0.0), axis=1)


def truth_at(posterior, right, left):
    """A closed form at all nodes: the last one of a piece is before the jump."""
    parts = []
    for piece in posterior.pieces:
        t = np.asarray(piece.t)
        parts.append(np.concatenate([right(t[:-1]), left(t[-1:])]))
    return np.concatenate(parts)


@pytest.mark.parametrize("method", ["EK0", "EK1", "DiagonalEK1"])
@pytest.mark.parametrize("rtol", [1e-3, 1e-5, 1e-8])
def test_ten_doses_have_error_bars_of_the_true_size(method, rtol):
    result = solve_ivp(
        elimination, (0, 45), [1.0], method, doses=TABLE, rtol=rtol, atol=1e-3 * rtol
    )
    exact = truth_at(result.posterior, concentration, lambda t: concentration(t, after=False))
    known = result.y_std[0] > 0.0
    error = (result.y[0] - exact)[known]
    assert result.success and len(result.posterior.pieces) == 11
    assert 1 / 3 < np.mean((error / result.y_std[0, known]) ** 2) < 3.0
    estimate = result.posterior.global_error()[known, 0]
    # The estimate is off by 1 % at most, and by the rounding of 500 steps.
    assert np.max(np.abs(estimate - error)) < 1e-2 * np.max(np.abs(error)) + 1e-13
    assert result.posterior.diagnose().trusted


MATRIX = np.array([[-0.5, 0.8], [-0.9, -0.2]])
MIXING = np.array([[0.5, 1.0], [0.0, -1.5]])
SHIFT = np.array([1.0, 0.5])
WHEN = (1.0, 2.5, 2.75)


def rotating(t, y):
    return MATRIX @ y


def mixed(t, y):
    return MIXING @ y + SHIFT


def rotated(t, after=True):
    """From jump to jump."""
    out = np.empty((len(t), 2))
    for i, time in enumerate(t):
        y, begin = np.array([1.0, 0.0]), 0.0
        for jump in WHEN:
            if time > jump or (after and time == jump):
                y, begin = mixed(0.0, expm(MATRIX * (jump - begin)) @ y), jump
        out[i] = expm(MATRIX * (time - begin)) @ y
    return out


JUMPS = [(t, mixed) for t in WHEN]


@pytest.mark.parametrize("method", ["EK0", "EK1"])
@pytest.mark.parametrize("rtol", [1e-3, 1e-6])
def test_jumps_that_mix_components(method, rtol):
    result = solve_ivp(rotating, (0, 6), [1.0, 0.0], method, jumps=JUMPS, rtol=rtol, atol=rtol)
    exact = truth_at(result.posterior, rotated, lambda t: rotated(t, after=False)).T
    error, known = result.y - exact, result.y_std > 0.0
    assert 1 / 3 < np.mean((error[known] / result.y_std[known]) ** 2) < 3.0
    off = np.max(np.abs(result.posterior.global_error().T - error))
    assert off < 2e-2 * np.max(np.abs(error))


def populations(t, y):
    return np.array([1.5 * y[0] - y[0] * y[1], y[0] * y[1] - 3.0 * y[1]])


def harvest(t, y):
    return np.array([0.7 * y[0] + 0.05 * y[1] ** 2, 0.5 * y[1] + 0.1])


@pytest.mark.parametrize("method", ["EK0", "EK1"])
def test_nonlinear_equations_and_jumps(method):
    """Against SciPy's steps of order 8 to 1e-13, from jump to jump."""
    times = [2.0, 4.0, 6.0]
    jumps = [(t, harvest) for t in times]
    for rtol in (1e-3, 1e-6):
        result = solve_ivp(
            populations, (0, 8), [1.0, 1.0], method, jumps=jumps, rtol=rtol, atol=1e-3 * rtol
        )
        y, begin, exact = np.ones(2), 0.0, []
        for piece, end in zip(result.posterior.pieces, [*times, 8.0], strict=True):
            nodes = np.clip(np.unique(piece.t), begin, end)
            found = scipy_solve_ivp(
                *(populations, (begin, end), y, "DOP853", nodes), rtol=1e-13, atol=1e-14
            )
            where = np.searchsorted(nodes, np.clip(np.asarray(piece.t), begin, end))
            exact.append(found.y[:, where])
            y, begin = harvest(end, found.y[:, -1]), end
        error, known = result.y - np.concatenate(exact, axis=1), result.y_std > 0.0
        assert 1 / 3 < np.mean((error[known] / result.y_std[known]) ** 2) < 3.0
        off = np.max(np.abs(result.posterior.global_error().T - error))
        assert off < 2e-2 * np.max(np.abs(error))


def test_error_and_covariance_cross_a_jump_by_its_jacobian():
    posterior = solve_ivp(rotating, (0, 6), [1.0, 0.0], jumps=JUMPS, rtol=1e-5).posterior
    assert np.allclose(posterior.jacobians[0], MIXING, atol=1e-8)
    before, after = posterior.pieces[:2]
    expected = mixed(0.0, before.mean[-1])
    assert np.all(np.abs(after.mean[0] - expected) < after.std[0])  # smoothing has moved it
    moved = after.mean[0] - expected
    expected = MIXING @ before.global_error()[-1] + moved
    assert after.global_error()[0] == pytest.approx(expected, rel=1e-6)
    model = solve_ivp(
        rotating, (0, 6), [1.0, 0.0], jumps=JUMPS, rtol=1e-5, calibration="model", smooth=False
    ).posterior
    before, after = model.pieces[:2]
    carried = MIXING @ before.cov[-1] @ MIXING.T
    assert after.cov[0] == pytest.approx(carried, rel=1e-6, abs=1e-9 * np.max(carried))


def test_dense_output_is_right_on_both_sides():
    result = solve_ivp(
        elimination, (0, 45), [1.0], doses=TABLE, rtol=1e-8, atol=1e-10, dense_output=True
    )
    t = np.sort(np.concatenate([np.linspace(0.0, 45.0, 200), TABLE.times, TABLE.times - 1e-9]))
    assert result.sol(t)[0] == pytest.approx(concentration(t), abs=1e-7)
    assert result.sol(2.0) == pytest.approx(concentration(np.array([2.0])), abs=1e-7)
    twice = result.t == 2.0
    assert np.diff(result.y[0, twice]) == pytest.approx([DOSE], abs=1e-12)
    assert result.sol.std(t).shape == (1, len(t))
    assert result.y_cov.shape == (len(result.t), 1, 1)
    assert np.sqrt(result.y_cov[:, 0, 0]) == pytest.approx(result.y_std[0], rel=1e-10)
    chosen = solve_ivp(elimination, (0, 45), [1.0], doses=TABLE, rtol=1e-8, t_eval=[1.0, 2.0, 3.0])
    assert chosen.t.tolist() == [1.0, 2.0, 3.0]
    assert chosen.y[0] == pytest.approx(concentration(chosen.t), abs=1e-5)


def test_samples_go_through_the_jumps():
    posterior = solve_ivp(
        rotating, (0, 6), [1.0, 0.0], jumps=JUMPS, rtol=1e-3, calibration="model"
    ).posterior
    times = np.array([1.0 - 1e-12, 1.0, 2.5 - 1e-12, 2.5, 5.0])
    drawn = posterior.sample(500, t=times)
    off = drawn - posterior(times).mean
    size = np.max(np.abs(off))
    assert off[:, 1] == pytest.approx(off[:, 0] @ MIXING.T, abs=1e-3 * size)
    assert off[:, 3] == pytest.approx(off[:, 2] @ MIXING.T, abs=1e-3 * size)
    # Of 500 draws a standard deviation is known to 3 %, four times that is never seen.
    assert np.std(drawn, axis=0) == pytest.approx(posterior(times).std, rel=0.15)
    assert posterior.sample(3).shape == (3, len(posterior.t), 2)
    assert posterior.sample(3, t=2.0).shape == (3, 2)


def test_calibrated_afterwards_it_is_the_same():
    options = {"jumps": JUMPS, "rtol": 1e-5}
    model = solve_ivp(rotating, (0, 6), [1.0, 0.0], calibration="model", **options).posterior
    whole = solve_ivp(rotating, (0, 6), [1.0, 0.0], **options).posterior
    assert model.calibrate().std == pytest.approx(whole.std, rel=1e-8)


def test_infusions_are_added_to_the_function():
    """Two that overlap, and a dose at once: responses of a linear equation add up."""
    table = probode.doses([1.0, 2.0, 3.0], [6.0, 4.0, 5.0], duration=[3.0, 4.0, 0.0])
    for fun in (elimination, lambda t, y: -RATE * y):
        result = solve_ivp(fun, (0, 10), [1.0], doses=table, rtol=1e-7, atol=1e-9)

        def exact(t, after=True):
            y = np.exp(-RATE * t)
            for begin, amount, length in ((1.0, 6.0, 3.0), (2.0, 4.0, 4.0)):
                on = np.clip(t - begin, 0.0, length)
                level = amount / length / RATE * -np.expm1(-RATE * on)
                y = y + level * np.exp(-RATE * np.maximum(t - begin - length, 0.0))
            given = t >= 3.0 if after else t > 3.0
            return y + np.where(given, 5.0 * np.exp(-RATE * np.maximum(t - 3.0, 0.0)), 0.0)

        expected = truth_at(result.posterior, exact, lambda t: exact(t, after=False))
        assert np.max(np.abs(result.y[0] - expected)) < 1e-6
        assert len(result.t) < 150


def test_arguments_and_functions_that_only_python_runs():
    def branching(t, y, k, dose):
        return [-k * y[0] if number(y[0]) < 1e9 else 0.0]

    def given(t, y, k, dose):
        return y + dose

    result = solve_ivp(
        *(branching, (0, 4), [1.0]),
        args=(RATE, 2.0),
        jumps=[(3.0, lambda t, y: 2.0 * y), (1.0, given)],
        rtol=1e-6,
    )
    expected = 2.0 * (np.exp(-RATE * 4.0) + 2.0 * np.exp(-RATE * 3.0))
    assert result.path == "python"
    assert result.y[0, -1] == pytest.approx(expected, abs=5.0 * result.y_std[0, -1] + 1e-12)


def test_second_order_and_complex_states():
    """A ball that is hit, and a phase that is turned."""
    result = solve_ivp(
        *(lambda t, y, v: -y, (0, 3), [1.0, 0.0]),
        second_order=True,
        jumps=[(1.0, lambda t, u: np.array([u[0], u[1] + 1.0]))],
        rtol=1e-7,
    )
    at_jump = np.array([np.cos(1.0), 1.0 - np.sin(1.0)])
    turn = np.array([[np.cos(2.0), np.sin(2.0)], [-np.sin(2.0), np.cos(2.0)]])
    assert result.y[:, -1] == pytest.approx(turn @ at_jump, abs=1e-5)
    error = np.abs(result.y[:, -1] - turn @ at_jump)
    assert np.all(error < 4.0 * result.y_std[:, -1])
    turned = solve_ivp(
        lambda t, z: 1j * z, (0, 2), [1.0 + 0.0j], jumps=[(1.0, lambda t, z: 1j * z)], rtol=1e-7
    )
    assert turned.y[0, -1] == pytest.approx(1j * np.exp(2j), abs=1e-5)


def test_events_of_all_pieces_and_one_that_ends_them():
    def low(t, y):
        return y[0] - 4.0

    result = solve_ivp(elimination, (0, 12), [1.0], doses=TABLE, events=low, rtol=1e-8)
    # Each dose lifts the level above four, from where it decays: the second dose is at 6.
    assert len(result.t_events[0]) == 3
    assert concentration(result.t_events[0]) == pytest.approx(4.0, abs=1e-6)
    low.terminal = True
    ended = solve_ivp(elimination, (0, 12), [1.0], doses=TABLE, events=low, rtol=1e-8)
    assert ended.status == 1 and ended.t[-1] == pytest.approx(result.t_events[0][0])


def test_at_the_start_and_at_one_time():
    both = [(0.0, lambda t, y: y + 1.0), (1.0, lambda t, y: y + 1.0), (1.0, lambda t, y: 3.0 * y)]
    result = solve_ivp(elimination, (0, 2), [1.0], jumps=both, rtol=1e-8)
    assert result.y[0, 0] == 2.0
    expected = 3.0 * (2.0 * np.exp(-RATE) + 1.0) * np.exp(-RATE)
    assert result.y[0, -1] == pytest.approx(expected, abs=1e-6)


def test_limits_are_those_of_the_whole_solve():
    result = solve_ivp(elimination, (0, 45), [1.0], doses=TABLE, max_num_steps=30)
    assert not result.success
    assert result.posterior.stats.steps <= 32
    assert 0.0 < result.t[-1] < 45.0


def test_tables_and_pictures():
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("matplotlib").use("Agg")
    posterior = solve_ivp(elimination, (0, 12), [1.0], doses=TABLE).posterior
    frame = posterior.to_dataframe()
    assert isinstance(frame, pandas.DataFrame) and len(frame) == len(posterior.t)
    assert frame["y1"].to_numpy() == pytest.approx(posterior.mean[:, 0])
    some = posterior.to_dataframe(t=[1.0, 2.0, 7.0])
    assert some["y1"].to_numpy() == pytest.approx(posterior([1.0, 2.0, 7.0]).mean[:, 0])
    figure = posterior.plot(title="three doses")
    assert len(figure.axes) == 3
    assert figure.axes[0].get_xlim() == (0.0, 12.0)
    lines = [line for line in figure.axes[0].lines if len(line.get_xdata()) > 2]
    # A gap at a dose: no line goes through it.
    assert all(not (line.get_xdata()[0] < 2.0 < line.get_xdata()[-1]) for line in lines)
    assert posterior.plot(ax=posterior.plot_error()) is not None
    assert "with 3 jumps" in repr(posterior)
    html = posterior._repr_html_()
    assert "with 3 jumps" in html and "<svg" in html and "error bars" in html
    if pytest.importorskip("xarray"):
        data = posterior.to_xarray()
        assert data["y"].shape == (len(posterior.t), 1)


def test_samples_and_phases_are_drawn_with_gaps():
    pytest.importorskip("matplotlib").use("Agg")
    posterior = solve_ivp(rotating, (0, 6), [1.0, 0.0], jumps=JUMPS, rtol=1e-4).posterior
    ax = posterior.plot_samples(8, components=[1])
    lines = [line for line in ax.lines if len(line.get_xdata()) > 2]
    assert len(lines) == 8 * len(posterior.pieces)
    assert all(not (line.get_xdata()[0] < 1.0 < line.get_xdata()[-1]) for line in lines)
    # The draws that are shown have the spread that the bars have (of 300: known to 4 %).
    times = [np.linspace(piece.t[0], piece.t[-1], 9) for piece in posterior.pieces]
    drawn = posterior.drawn(300, 0, times, 0)
    for piece, t, rows in zip(posterior.pieces, times, drawn, strict=True):
        std = np.asarray(piece(t).std)
        assert np.std(rows, axis=0)[std > 0.0] == pytest.approx(std[std > 0.0], rel=0.3)
    phase = posterior.plot_phase()
    assert [text.get_text() for text in phase.get_legend().get_texts()][:2] == ["start", "end"]


def test_it_is_saved_and_loaded_bit_for_bit(tmp_path):
    posterior = solve_ivp(rotating, (0, 6), [1.0, 0.0], jumps=JUMPS, rtol=1e-4).posterior
    posterior.save(tmp_path / "pieces.npz")
    again = probode.Posterior.load(tmp_path / "pieces.npz")
    assert isinstance(again, probode.PiecewisePosterior)
    for name in ("t", "mean", "std", "cov"):
        assert np.array_equal(getattr(again, name), getattr(posterior, name))
    times = np.array([0.5, 1.0, 4.0])
    assert np.array_equal(again(times).std, posterior(times).std)
    assert np.array_equal(again.sample(2, t=times), posterior.sample(2, t=times))
    assert np.array_equal(again.global_error(), posterior.global_error())
    assert (again.status, again.message) == (posterior.status, posterior.message)
    with open(tmp_path / "pieces.npz", "r+b") as file:
        file.truncate(2000)
    with pytest.raises(ValueError, match="pieces"):
        probode.Posterior.load(tmp_path / "pieces.npz")


def test_a_jump_that_forgets_leaves_the_rest_free():
    """``D`` is singular: what it forgets is drawn from what is known without it."""
    forget = [(1.0, lambda t, y: np.array([y[0], 0.5]))]
    posterior = solve_ivp(
        rotating, (0, 2), [1.0, 0.0], jumps=forget, rtol=1e-3, calibration="model"
    ).posterior
    times = np.array([1.0 - 1e-12, 1.0])
    drawn, std = posterior.sample(500, t=times), posterior(times).std
    off = drawn - posterior(times).mean
    assert off[:, 1, 0] == pytest.approx(off[:, 0, 0], abs=1e-2 * std[0, 0])
    assert np.std(drawn[:, 0], axis=0) == pytest.approx(std[0], rel=0.2)


def test_doses_are_a_table():
    table = probode.doses([0.0, 1.0], [10.0, 3.0], [0, 1], repeats=[3, 1], every=0.75)
    assert table.times.tolist() == [0.0, 0.75, 1.0, 1.5]
    assert table.amounts.tolist() == [10.0, 10.0, 3.0, 10.0]
    assert table.compartments.tolist() == [0, 0, 1, 0]
    assert table.rate is None
    flowing = probode.doses([0.0, 1.0], [10.0, 6.0], duration=[2.0, 3.0])
    assert flowing.rate([-0.5, 0.5, 1.5, 2.5, 4.5]).ravel().tolist() == [0.0, 5.0, 7.0, 2.0, 0.0]


@pytest.mark.parametrize(
    ("options", "kind", "words"),
    [
        ({"jumps": [(5.0, mixed)]}, ValueError, "before"),
        ({"jumps": [(-1.0, mixed)]}, ValueError, "between t0"),
        ({"jumps": [(1.0, 2.0)]}, TypeError, "map"),
        ({"jumps": [1.0]}, TypeError, "pairs"),
        ({"jumps": [(1.0, lambda t, y: y[:1])]}, ValueError, "shape"),
        ({"jumps": [(1.0, lambda t, y: y * np.nan)]}, ValueError, "NaN"),
        ({"jumps": [(1.0, mixed)], "grid": [0.0, 1.0, 5.0]}, ValueError, "grid"),
        (
            {"jumps": [(1.0, mixed)], "method": "SparseEK1", "calibration": "model"},
            ValueError,
            "SparseEK1",
        ),
        ({"doses": [(1.0, 2.0)]}, TypeError, "probode.doses"),
        ({"doses": probode.doses(1.0, 1.0, 2)}, ValueError, "compartment 2"),
        ({"doses": probode.doses(-1.0, 1.0)}, ValueError, "before t0"),
    ],
)
def test_what_cannot_be_meant_is_refused(options, kind, words):
    with pytest.raises(kind, match=words):
        solve_ivp(rotating, (0, 5), [1.0, 0.0], **options)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"times": [0.0, 1.0], "amounts": [1.0, 2.0, 3.0]}, "one length"),
        ({"times": np.nan, "amounts": 1.0}, "finite"),
        ({"times": 0.0, "amounts": 1.0, "compartment": 0.5}, "index"),
        ({"times": 0.0, "amounts": 1.0, "duration": -1.0}, "negative"),
        ({"times": 0.0, "amounts": 1.0, "repeats": 3}, "every"),
        ({"times": 0.0, "amounts": 1.0, "repeats": 0}, "positive"),
    ],
)
def test_tables_that_cannot_be_meant_are_refused(given, words):
    with pytest.raises(ValueError, match=words):
        probode.doses(**given)


def test_backwards_in_time_jumps_are_applied_as_they_are_met():
    jumps = [(1.0, lambda t, y: y - 0.5), (3.0, lambda t, y: 2.0 * y)]
    result = solve_ivp(elimination, (5, 0), [1.0], jumps=jumps, rtol=1e-6, dense_output=True)
    middle = 2.0 * np.exp(2.0 * RATE)
    expected = (middle * np.exp(2.0 * RATE) - 0.5) * np.exp(RATE)
    assert abs(result.y[0, -1] - expected) < 4.0 * result.y_std[0, -1]
    assert result.sol(3.0) == pytest.approx([middle], abs=1e-6)
    assert result.sol(3.0 + 1e-9) == pytest.approx([middle / 2.0], abs=1e-6)
    with pytest.raises(ValueError, match="forward in time"):
        solve_ivp(elimination, (5, 0), [1.0], doses=TABLE)


def test_a_tolerance_on_the_answer_with_doses():
    for target in (1e-4, 1e-7):
        result = solve_ivp(elimination, (0, 45), [1.0], doses=TABLE, global_rtol=target)
        right = truth_at(result.posterior, concentration, lambda t: concentration(t, after=False))
        assert result.global_met
        assert np.max(np.abs(result.y[0] - right) / right) < target


@pytest.mark.slow
def test_mass_matrices():
    """``2 y' = 2 A y`` has the solution of ``y' = A y``."""
    for rtol in (1e-4, 1e-7):
        result = solve_ivp(
            *(lambda t, y: 2.0 * MATRIX @ y, (0, 4), [1.0, 0.0]),
            mass_matrix=np.diag([2.0, 2.0]),
            jumps=JUMPS,
            rtol=rtol,
        )
        error = result.y[:, -1] - rotated(np.array([4.0]))[0]
        assert np.all(np.abs(error) < 5.0 * result.y_std[:, -1])
        assert result.posterior.global_error()[-1] == pytest.approx(error, rel=0.1)


def test_algebraic_components_fit_after_a_jump():
    result = solve_ivp(
        *(lambda t, y: np.array([-y[0], y[1] - y[0] ** 2]), (0, 2), [1.0, 1.0]),
        mass_matrix=np.diag([1.0, 0.0]),
        jumps=[(1.0, lambda t, y: [y[0] + 1.0, y[1]])],
        rtol=1e-5,
    )
    end = (np.exp(-1.0) + 1.0) * np.exp(-1.0)
    assert np.all(np.abs(result.y[:, -1] - [end, end**2]) < 5.0 * result.y_std[:, -1] + 1e-12)
    assert result.y[1] == pytest.approx(result.y[0] ** 2, abs=1e-5)


def test_large_systems_carry_their_error_through():
    n = 60

    def heat(t, y):
        ends = [[y[1] - 2.0 * y[0]], y[2:] - 2.0 * y[1:-1] + y[:-2], [y[-2] - 2.0 * y[-1]]]
        return 50.0 * np.concatenate(ends)

    matrix = 50.0 * (np.eye(n, k=1) + np.eye(n, k=-1) - 2.0 * np.eye(n))
    y0, ramp = np.sin(np.linspace(0.0, 3.0, n)), np.linspace(0.0, 1.0, n)
    jumps = [(0.01, lambda t, y: y + ramp), (0.03, lambda t, y: y[::-1].copy())]
    exact = (expm(0.01 * matrix) @ y0) + ramp
    exact = expm(0.07 * matrix) @ (expm(0.02 * matrix) @ exact)[::-1]
    for rtol in (1e-3, 1e-5):
        result = solve_ivp(
            heat, (0, 0.1), y0, "SparseEK1", jumps=jumps, rtol=rtol, atol=1e-2 * rtol
        )
        error, std = result.y[:, -1] - exact, result.y_std[:, -1]
        assert np.sqrt(np.mean(error**2)) < 3.0 * np.sqrt(np.mean(std**2))
        assert np.sqrt(np.mean(error**2)) > 0.2 * np.sqrt(np.mean(std**2))


def test_a_piece_that_fails_ends_the_solve():
    result = solve_ivp(lambda t, y: y**2, (0, 5), [1.0], jumps=[(0.5, mixed_up), (3.0, mixed_up)])
    assert result.status == -1 and len(result.posterior.pieces) == 2
    # From 3 at t = 1/2 on, 1 / (5/6 - t).
    assert result.t[-1] == pytest.approx(5 / 6, abs=1e-3)


def mixed_up(t, y):
    return y + 1.0


def test_it_can_be_pickled():
    posterior = solve_ivp(elimination, (0, 12), [1.0], doses=TABLE).posterior
    again = pickle.loads(pickle.dumps(posterior))
    assert np.array_equal(again.mean, posterior.mean)
    assert np.array_equal(again([1.0, 2.0]).std, posterior([1.0, 2.0]).std)
