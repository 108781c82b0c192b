"""Events that act: the solve goes on after them, with error bars that go through."""

import mpmath as mp
import numpy as np
import pytest
from only_python import number

import probode
from probode import Restart, Status, solve_ivp

G, DRAG, BACK = 9.81, 0.3, 0.98


class Flight:
    """A ball with linear drag between two bounces, in closed form and fifty digits."""

    def __init__(self, t, y, v):
        self.t, self.y, self.v = (mp.mpf(x) for x in (t, y, v))

    def height(self, t):
        s, k, fall = mp.mpf(t) - self.t, mp.mpf(DRAG), mp.mpf(G) / mp.mpf(DRAG)
        return self.y - (self.v + fall) * mp.expm1(-k * s) / k - fall * s

    def speed(self, t):
        s, fall = mp.mpf(t) - self.t, mp.mpf(G) / mp.mpf(DRAG)
        return (self.v + fall) * mp.exp(-mp.mpf(DRAG) * s) - fall

    def landing(self, floor=lambda t: 0, guess=None):
        """When it is on the floor again."""
        if guess is None:
            fall = mp.sqrt(self.v**2 + 2 * mp.mpf(G) * self.y)
            guess = self.t + (self.v + fall) / mp.mpf(G)
        return mp.findroot(lambda t: self.height(t) - floor(t), guess)

    def __call__(self, t):
        """Also before and after its time: what the state is on this side of a bounce."""
        return np.array([[float(self.height(x)), float(self.speed(x))] for x in t])


def flights(bounces):
    with mp.workdps(50):
        found = [Flight(0, 1, 0)]
        for _ in range(bounces):
            last = found[-1]
            t = last.landing()
            found.append(Flight(t, 0, -mp.mpf(BACK) * last.speed(t)))
        return found


FLIGHTS = flights(100)


def ball(t, y):
    return [y[1], -G - DRAG * y[1]]


def event(function, reset=None, direction=0.0, terminal=0):
    """A function with the attributes of an event."""

    def made(*args):
        return function(*args)

    made.direction, made.terminal = direction, terminal
    if reset is not None:
        made.reset = reset
    return made


def floor(t, y):
    return y[0]


def bounced(t, y):
    return np.array([0.0, -BACK * y[1]])


def z_scores(pieces, exact):
    """``error / bar`` at all nodes, of each piece on its own side of the bounces."""
    found = []
    for piece, true in zip(pieces, exact, strict=False):
        error, std = np.asarray(piece.mean) - true(np.asarray(piece.t)), np.asarray(piece.std)
        known = std > 1e-14  # right after the start, both are rounding
        found.append(error[known] / std[known])
    return np.concatenate(found)


@pytest.mark.parametrize("method", ["EK0", "EK1", "DiagonalEK1"])
@pytest.mark.parametrize(
    "rtol",
    [pytest.param(1e-3, marks=pytest.mark.slow), 1e-6, pytest.param(1e-9, marks=pytest.mark.slow)],
)
def test_bars_after_a_hundred_bounces_are_of_the_true_size(method, rtol):
    hit = event(floor, bounced, -1.0, terminal=100)
    result = solve_ivp(ball, (0, 1000), [1.0, 0.0], method, events=hit, rtol=rtol, atol=rtol)
    pieces = result.posterior.pieces
    assert result.status == 1 and len(pieces) == len(result.t_events[0]) == 100
    assert 1 / 3 < np.mean(z_scores(pieces, FLIGHTS) ** 2) < 3.0
    assert 1 / 3 < np.mean(z_scores(pieces[-10:], FLIGHTS[90:]) ** 2) < 3.0
    with mp.workdps(50):
        pairs = zip(result.t_events[0], FLIGHTS[1:], strict=True)
        late = np.array([float(mp.mpf(t) - true.t) for t, true in pairs])
    assert 1 / 3 < np.mean((late / result.t_events_std[0]) ** 2) < 3.0
    # The estimate follows the error to the end, as far as first order goes.
    last = np.asarray(pieces[-1].mean) - FLIGHTS[99](np.asarray(pieces[-1].t))
    off = np.max(np.abs(np.asarray(pieces[-1].global_error()) - last))
    assert off < 0.5 * np.max(np.abs(last))
    assert result.posterior.diagnose().trusted


@pytest.mark.parametrize("method", ["EK0", "EK1"])
def test_what_is_exact_between_bounces_stays_exact(method):
    """Parabolas, a hundred times: rounding, which each bounce doubles at most linearly."""
    hit = event(floor, lambda t, y: np.array([0.0, -y[1]]), -1.0, terminal=100)
    result = solve_ivp(lambda t, y: [y[1], -G], (0, 1e3), [1.0, 0.0], method, events=hit)
    exact = np.sqrt(2 / G) * (1 + 2 * np.arange(100))
    assert np.max(np.abs(result.t_events[0] - exact)) < 100 * 16 * np.spacing(exact[-1])


def test_errors_cross_an_event_by_the_saltation_matrix():
    posterior = solve_ivp(
        ball, (0, 2), [1.0, 0.0], events=event(floor, bounced, -1.0), rtol=1e-6
    ).posterior
    before, after = posterior.pieces[:2]
    v = float(before.mean[-1, 1])
    rise, fall = -BACK * v, -G - DRAG * v
    after_bounce = np.array([rise, -G - DRAG * rise])
    jacobian = np.diag([0.0, -BACK])
    change = after_bounce - jacobian @ [v, fall]
    saltation = jacobian + np.outer(change, [1.0, 0.0]) / v
    assert posterior.jacobians[0] == pytest.approx(saltation, rel=1e-6, abs=1e-6)
    moved = after.mean[0] - bounced(0.0, before.mean[-1])
    expected = saltation @ before.global_error()[-1] + moved
    assert after.global_error()[0] == pytest.approx(expected, rel=1e-5)


TABLE, BEAT = 0.05, 7.0


def test_events_and_resets_that_depend_on_time():
    """A ball on a table that goes up and down: ``h_t`` and ``D_t g`` count."""

    def table(t):
        return TABLE * mp.sin(BEAT * t)

    def tossed(t, y):
        lift = TABLE * BEAT * np.cos(BEAT * t)
        return np.array([TABLE * np.sin(BEAT * t), lift - BACK * (y[1] - lift)])

    hit = event(lambda t, y: y[0] - TABLE * np.sin(BEAT * t), tossed, -1.0, terminal=8)
    z = []
    for rtol in (1e-4, 1e-6, 1e-8):
        result = solve_ivp(ball, (0, 100), [1.0, 0.0], events=hit, rtol=rtol, atol=rtol)
        found, late = [Flight(0, 1, 0)], []
        with mp.workdps(50):
            for t in result.t_events[0]:
                last = found[-1]
                at = last.landing(table, mp.mpf(t))
                late.append(float(mp.mpf(t) - at))
                lift = TABLE * BEAT * mp.cos(BEAT * at)
                found.append(Flight(at, table(at), lift - mp.mpf(BACK) * (last.speed(at) - lift)))
            z.append(z_scores(result.posterior.pieces, found))
        assert np.all(np.abs(late) < 5.0 * result.t_events_std[0] + 1e-12)
    assert 1 / 3 < np.mean(np.concatenate(z) ** 2) < 3.0


def warms(t, y, heating):
    return [heating - 0.5 * (y[0] - 15.0)]


def test_a_thermostat_changes_the_arguments():
    warm = event(lambda t, y, h: y[0] - 21.0, lambda t, y, h: Restart(y, args=(0.0,)), 1.0)
    cold = event(lambda t, y, h: y[0] - 19.0, lambda t, y, h: Restart(y, args=(5.0,)), -1.0)
    result = solve_ivp(
        *(warms, (0, 20), [15.0]), args=(5.0,), events=[warm, cold], rtol=1e-6, atol=1e-8
    )
    # From a to b towards c: log((c - a) / (c - b)) / rate.
    first, up, down = (2.0 * np.log(x) for x in (10 / 4, 6 / 4, 6 / 4))
    off, on = result.t_events
    assert len(off) == 12 and len(on) == 11
    late = np.append(off - first, on - first - down) - (up + down) * np.r_[:12, :11]
    assert np.all(np.abs(late) < 5.0 * np.concatenate(result.t_events_std))
    assert np.max(np.abs(late)) < 1e-4
    assert np.all(np.abs(result.y[0][result.t > first] - 20.0) < 1.0 + 1e-6)


def test_a_reset_may_switch_to_another_function():
    """A ball that comes to rest: the limit of its bounces is passed."""
    at_rest = event(
        floor,
        lambda t, y: (
            [0.0, -0.5 * y[1]]
            if abs(y[1]) > 1e-3
            else Restart([0.0, 0.0], fun=lambda t, y: 0.0 * y)
        ),
        -1.0,
    )
    result = solve_ivp(lambda t, y: [y[1], -G], (0, 5), [1.0, 0.0], events=at_rest, rtol=1e-6)
    assert result.success and result.t[-1] == 5.0
    assert np.all(result.y[:, -1] == 0.0)
    assert len(result.t_events[0]) == 14  # 4.4 / 2^k falls below 1e-3


def test_events_that_accumulate_end_with_what_was_computed():
    hit = event(floor, lambda t, y: [0.0, -0.5 * y[1]], -1.0)
    result = solve_ivp(lambda t, y: [y[1], -G], (0, 5), [1.0, 0.0], events=hit, rtol=1e-6)
    limit = 3.0 * np.sqrt(2 / G)
    assert result.status == -1 and not result.success
    assert result.posterior.status == Status.ACCUMULATING
    assert "accumulate at t = 1.35457" in result.message
    assert result.t[-1] == pytest.approx(limit, abs=1e-8)
    assert len(result.t_events[0]) > 20 and len(result.posterior.pieces) > 20


def test_chattering_ends_with_what_was_computed():
    warm = event(lambda t, y, h: y[0] - 20.0, lambda t, y, h: Restart(y, args=(0.0,)), 1.0)
    cold = event(lambda t, y, h: y[0] - 20.0, lambda t, y, h: Restart(y, args=(5.0,)), -1.0)
    result = solve_ivp(warms, (0, 20), [15.0], args=(5.0,), events=[warm, cold], rtol=1e-6)
    assert result.status == -1 and "chattering" in result.message
    assert result.t[-1] == pytest.approx(2.0 * np.log(2.0), abs=1e-5)
    assert result.y[0, -1] == pytest.approx(20.0, abs=1e-9)


def test_a_ball_at_rest_gets_nowhere():
    hit = event(floor, bounced, -1.0)
    result = solve_ivp(ball, (0, 1), [0.0, 0.0], events=hit)
    assert result.status == -1 and "chattering" in result.message
    assert result.t[-1] == 0.0 and result.y[:, -1].tolist() == [0.0, 0.0]


def test_an_event_at_the_start_acts_if_it_is_left_in_its_direction():
    hit = event(floor, bounced, -1.0)
    up = solve_ivp(ball, (0, 0.1), [0.0, 2.0], events=hit, rtol=1e-8)
    assert len(up.t_events[0]) == 0 and up.y[1, 0] == 2.0
    down = solve_ivp(ball, (0, 0.1), [0.0, -2.0], events=hit, rtol=1e-8)
    assert down.t_events[0].tolist() == [0.0] and down.y[1, 0] == 2.0 * BACK
    assert len(down.posterior.pieces) == 1 and down.success


def test_the_contract_of_events_is_that_of_scipy():
    """States are those before the reset; other events are found in all pieces and count on."""
    hit = event(floor, bounced, -1.0)
    top = event(lambda t, y: y[1], direction=-1.0, terminal=3)
    result = solve_ivp(ball, (0, 10), [0.5, 3.0], events=[hit, top], rtol=1e-8, atol=1e-10)
    assert result.status == 1 and result.t[-1] == result.t_events[1][-1]
    assert [len(t) for t in result.t_events] == [2, 3]
    assert result.y_events[0].shape == (2, 2) and np.all(result.y_events[0][:, 1] < 0.0)
    assert np.max(np.abs(result.y_events[1][:, 1])) < 1e-9
    assert result.posterior.t[-1] == result.t[-1]
    without = solve_ivp(ball, (0, 0.1), [0.5, 3.0], events=[hit, top])
    assert without.status == 0 and [len(t) for t in without.t_events] == [0, 0]


def test_a_terminal_count_ends_the_solve_before_its_reset():
    hit = event(floor, bounced, -1.0, terminal=2)
    result = solve_ivp(ball, (0, 10), [1.0, 0.0], events=hit, rtol=1e-6)
    assert result.status == 1 and len(result.posterior.pieces) == 2
    assert result.y[1, -1] < 0.0


@pytest.mark.parametrize("kept", [0.0, 1.0])
def test_an_event_does_not_fire_again_at_its_own_root(kept):
    """Of any direction, and whether the reset puts it exactly there or leaves it as it was."""
    hit = event(floor, lambda t, y: [kept * y[0], -0.9 * y[1]], terminal=10)
    for method in ("EK0", "EK1"):
        result = solve_ivp(ball, (0, 10), [1.0, 0.0], method, events=hit, rtol=1e-4)
        assert len(result.t_events[0]) == 10
        assert np.min(np.diff(result.t_events[0])) > 0.1
        assert np.min(result.y[0]) > -1e-6


def sliding(t, y):
    return [-y[0], y[0]]


def on_the_surface(t, y):
    return y[0] + y[1]


def same(t, y):
    return y


@pytest.mark.parametrize("terminal", [False, True])
@pytest.mark.parametrize(
    "options", [{}, {"order": 3}, {"rtol": 1e-9, "atol": 1e-12}, {"calibration": "model"}]
)
def test_a_function_that_stays_at_zero_does_not_act(options, terminal):
    """Rounding moves it to both sides of zero all the time."""
    hit = event(on_the_surface, None if terminal else same, terminal=terminal)
    options = {"rtol": 1e-6, "atol": 1e-9, **options}
    result = solve_ivp(sliding, (0, 1), [0.7, -0.7], "EK1", events=hit, **options)
    assert result.status == 0 and len(result.t_events[0]) == 0


CIRCLE = {"fun": lambda t, y: [-y[1], y[0]], "t_span": (0, 1), "y0": [1.0, 0.0]}


@pytest.mark.parametrize("smooth", [True, False])
@pytest.mark.parametrize("method", ["EK0", "EK1"])
def test_the_state_after_an_event_belongs_to_its_time(method, smooth):
    """A function that is zero up to the error of the solve: it crosses zero where that says so."""
    hit = event(lambda t, y: y[0] ** 2 + y[1] ** 2 - 1.0, same)
    result = solve_ivp(**CIRCLE, method=method, events=hit, rtol=1e-5, atol=1e-8, smooth=smooth)
    assert len(result.t_events[0]) > 0 and result.status == 0
    error = np.abs(result.y - [np.cos(result.t), np.sin(result.t)])
    assert np.max(error / np.maximum(result.y_std, 1e-13)) < 5.0
    pieces = result.posterior.pieces
    np.testing.assert_array_equal([p.t[-1] for p in pieces[:-1]], [p.t[0] for p in pieces[1:]])


def test_a_solution_that_slides_from_some_time_on():
    """It reaches the surface at t = 1, and stays there: one event."""

    def free(t, y):
        return np.array([1.0, 0.5])

    hit = event(on_the_surface, lambda t, y: Restart(y, fun=sliding))
    result = solve_ivp(free, (0, 3), [-1.4, -0.1], "EK1", events=hit, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(result.t_events[0], [1.0], rtol=1e-12)
    late = result.t > 1.0
    np.testing.assert_allclose(result.y[0, late], -0.4 * np.exp(1.0 - result.t[late]), rtol=1e-7)


def test_two_events_at_one_time():
    """Into a corner: both walls throw it back."""
    walls = [
        event(
            lambda t, y, i=i: y[i], lambda t, y, i=i: np.where(np.arange(4) == i + 2, -y, y), -1.0
        )
        for i in range(2)
    ]
    result = solve_ivp(
        lambda t, y: [y[2], y[3], 0.0, 0.0], (0, 3), [1.0, 1.0, -1.0, -1.0], events=walls
    )
    assert [t.tolist() for t in result.t_events] == [[1.0], [1.0]]
    assert result.y[:, -1] == pytest.approx([2.0, 2.0, 1.0, 1.0], abs=1e-10)


def test_jumps_doses_breakpoints_and_resets_together():
    """A tank that is filled up when it runs low; closed form from one to the next."""
    low = event(lambda t, y: y[0] - 1.0, lambda t, y: y + 2.0, -1.0)
    result = solve_ivp(
        *(lambda t, y: np.array([-0.5 * y[0]]) * np.where(t < 4.0, 1.0, 2.0), (0, 6), [3.0]),
        events=low,
        jumps=[(1.0, lambda t, y: 0.8 * y)],
        doses=probode.doses(3.0, 1.0),
        breakpoints=[4.0],
        rtol=1e-8,
        atol=1e-10,
    )
    t, y, rate, found, expected = 0.0, 3.0, 0.5, [], []
    for stop, act in ((1.0, lambda y: 0.8 * y), (3.0, lambda y: y + 1.0), (4.0, None), (6.0, None)):
        while t + np.log(y / 1.0) / rate < stop:
            t += np.log(y / 1.0) / rate
            y = 3.0
            found.append(t)
        y, t = y * np.exp(-rate * (stop - t)), stop
        y, rate = act(y) if act else y, 1.0 if stop == 4.0 else rate
        expected.append(y)
    assert result.t_events[0] == pytest.approx(found, abs=1e-6)
    assert result.y[0, -1] == pytest.approx(expected[-1], abs=4 * result.y_std[0, -1] + 1e-12)


def test_second_order_complex_and_python_only():
    hit = event(lambda t, u: u[0], lambda t, u: [0.0, -BACK * u[1]], -1.0, terminal=3)
    expected = [float(flight.t) for flight in FLIGHTS[1:4]]
    second = solve_ivp(
        *(lambda t, y, v: -G - DRAG * v, (0, 9), [1.0, 0.0]),
        second_order=True,
        events=hit,
        rtol=1e-8,
    )
    assert second.t_events[0] == pytest.approx(expected, abs=1e-6)

    def branching(t, y):
        return [y[1], -G - DRAG * y[1]] if number(y[0]) < 1e9 else [0.0, 0.0]

    from_python = solve_ivp(branching, (0, 9), [1.0, 0.0], events=hit, rtol=1e-7)
    assert from_python.path == "python"
    assert from_python.t_events[0] == pytest.approx(expected, abs=1e-5)
    turned = event(lambda t, z: z[0].imag - 0.5, lambda t, z: z / 1j, 1.0, terminal=2)
    spun = solve_ivp(lambda t, z: 1j * z, (0, 9), [1.0 + 0j], events=turned, rtol=1e-8)
    assert spun.t_events[0] == pytest.approx([np.pi / 6, np.pi / 6 + np.pi / 2], abs=1e-6)


def test_dense_output_and_samples_on_both_sides():
    result = solve_ivp(
        *(ball, (0, 1.2), [1.0, 0.0]),
        events=event(floor, bounced, -1.0),
        rtol=1e-4,
        dense_output=True,
        calibration="model",
    )
    (at,) = result.t_events[0]
    before, after = result.sol([at - 1e-9, at + 1e-9]).T
    assert after[1] == pytest.approx(-BACK * before[1], rel=1e-6)
    assert result.sol(at)[1] > 0.0
    posterior = result.posterior
    times = np.array([at - 1e-12, at])
    off = posterior.sample(200, t=times) - posterior(times).mean
    size = np.max(np.abs(off), axis=(0, 1))
    carried = off[:, 0] @ posterior.jacobians[0].T
    assert np.all(np.abs(off[:, 1] - carried) < 1e-3 * size)
    chosen = solve_ivp(
        ball, (0, 1.2), [1.0, 0.0], events=event(floor, bounced, -1.0), t_eval=[0.3, 1.0]
    )
    assert chosen.t.tolist() == [0.3, 1.0] and chosen.y.shape == (2, 2)


def test_samples_at_many_times_are_those_at_few():
    """Rounding between close times would be carried from piece to piece."""
    posterior = solve_ivp(
        ball, (0, 3), [1.0, 0.0], events=event(floor, bounced, -1.0), rtol=1e-4
    ).posterior
    times = [np.linspace(piece.t[0], piece.t[-1], 400) for piece in posterior.pieces]
    for piece, t, rows in zip(
        posterior.pieces, times, posterior.drawn(100, 0, times, 0), strict=True
    ):
        std = np.asarray(piece(t).std)
        # Of 100 draws a standard deviation is known to 7 %; the smallest are rounding.
        ratio = np.std(rows, axis=0)[std > 1e-14] / std[std > 1e-14]
        assert 0.7 < np.median(ratio) < 1.4


def test_a_solve_that_ended_otherwise_is_stored_as_that(tmp_path):
    hit = event(floor, lambda t, y: [0.0, -0.5 * y[1]], -1.0)
    posterior = solve_ivp(ball, (0, 5), [1.0, 0.0], events=hit, rtol=1e-6).posterior
    posterior.save(tmp_path / "ball.npz")
    again = probode.Posterior.load(tmp_path / "ball.npz")
    assert again.status == Status.ACCUMULATING and not again.success
    assert again.message == posterior.message and "accumulate" in again.message


def test_limits_hold_for_all_pieces_together():
    hit = event(floor, bounced, -1.0)
    few = solve_ivp(ball, (0, 50), [1.0, 0.0], events=hit, rtol=1e-6, max_num_steps=40)
    assert few.status == -1 and few.posterior.status == Status.MAX_STEPS
    assert few.posterior.stats.steps <= 41 and few.t[-1] > 0.5
    short = solve_ivp(ball, (0, 50), [1.0, 0.0], events=hit, rtol=1e-6, time_limit=0.05)
    assert short.status == -1 and short.posterior.status == Status.TIME_LIMIT
    assert short.t[-1] > 0.0


@pytest.mark.parametrize(
    ("reset", "kind", "words"),
    [
        (3.0, TypeError, "function"),
        (lambda t, y: y[:1], ValueError, "shape"),
        (lambda t, y: y * np.nan, ValueError, "NaN"),
        (lambda t, y: 1j * y, ValueError, "complex"),
        (lambda t, y: None, TypeError, "state"),
        (lambda t, y: Restart(y, args=3.0), TypeError, "tuple"),
        (lambda t, y: Restart(y, fun=3.0), TypeError, "function"),
        (lambda t, y: Restart(y[:1]), ValueError, "shape"),
    ],
)
def test_resets_that_cannot_be_meant_are_refused(reset, kind, words):
    with pytest.raises(kind, match=words):
        solve_ivp(ball, (0, 5), [1.0, 0.0], events=event(floor, reset, -1.0))


def test_nothing_to_act_on():
    result = solve_ivp(lambda t, y: [], (0, 1), [], events=event(lambda t, y: 1.0, bounced))
    assert result.success and result.y.shape == (0, 2)


def test_back_through_the_bounces():
    """Forward and back again: the reset that undoes the other is met in the opposite order."""
    there = solve_ivp(
        ball, (0, 2), [1.0, 0.0], events=event(floor, bounced, -1.0), rtol=1e-9, atol=1e-11
    )
    undone = event(floor, lambda t, y: [0.0, -y[1] / BACK], -1.0)
    back = solve_ivp(ball, (2, 0), there.y[:, -1], events=undone, rtol=1e-9, atol=1e-11)
    assert back.t_events[0] == pytest.approx(there.t_events[0][::-1], abs=1e-8)
    assert back.y[:, -1] == pytest.approx([1.0, 0.0], abs=1e-7)


def test_a_tolerance_on_the_answer_with_bounces():
    result = solve_ivp(
        ball, (0, 3), [1.0, 0.0], events=event(floor, bounced, -1.0), global_atol=1e-7
    )
    pieces = zip(result.posterior.pieces, FLIGHTS, strict=False)
    errors = [np.abs(np.asarray(p.mean) - true(np.asarray(p.t))) for p, true in pieces]
    assert result.global_met and np.max(np.concatenate(errors)) < 1e-7


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"method": "SparseEK1"}, "SparseEK1"),
        ({"mass_matrix": np.eye(2)}, "mass matrices"),
        ({"method": "EK0", "calibration": "model"}, "no room"),
    ],
)
def test_resets_that_are_not_possible_are_refused(options, words):
    with pytest.raises(ValueError, match=words):
        solve_ivp(ball, (0, 5), [1.0, 0.0], events=event(floor, bounced, -1.0), **options)


def test_what_does_not_go_together_is_refused():
    hit = event(floor, lambda t, y: Restart(bounced(t, y), fun=lambda t, y: -y), -1.0)
    with pytest.raises(ValueError, match="jac"):
        solve_ivp(ball, (0, 5), [1.0, 0.0], events=hit, jac=np.array([[0.0, 1.0], [0.0, -DRAG]]))
    with pytest.raises(ValueError, match="grid"):
        solve_ivp(ball, (0, 5), [1.0, 0.0], events=hit, grid=[0.0, 5.0])
