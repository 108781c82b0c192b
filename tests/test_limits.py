"""Limits on time and memory hold in every path, and what was not done is said."""

import time
from contextlib import nullcontext
from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest
from only_python import number

from probode import Status, solve, solve_ivp
from probode.base import limits as limits_module
from probode.base.limits import Limits, compiling, rehearsed
from probode.engines import kept, native
from probode.posterior import export


def oscillator(t, y):
    return np.array([y[1], -y[0]])


def only_python(t, y):
    return [y[1], -y[0]] if number(y[0]) < 1e9 else [0.0, 0.0]


FOR_EVER = (0.0, 1e9)


class Clock:
    """A clock that goes on by ``tick`` seconds whenever it is looked at, and can be put forward."""

    def __init__(self, tick):
        self.now, self.tick = 0.0, tick

    def perf_counter(self):
        self.now += self.tick
        return self.now


@pytest.fixture
def clock(monkeypatch):
    made = Clock(0.01)
    monkeypatch.setattr(limits_module, "time", SimpleNamespace(perf_counter=made.perf_counter))
    return made


PATHS = {
    "kernels": {},
    "EK0": {"method": "EK0"},
    "auto": {"method": "auto"},
    "output": {"t_eval": np.linspace(0.0, 1e9, 50)},
    "event": {"events": lambda t, y: y[0]},
    "global": {"global_rtol": 1e-6},
    "fixed": {"diffusion": "fixed"},
}


@pytest.mark.parametrize("options", PATHS.values(), ids=PATHS)
@pytest.mark.parametrize("function", [oscillator, only_python], ids=["traced", "python"])
def test_a_time_limit_ends_everything(clock, function, options):
    """A look at the clock takes a hundredth of a second: few are left to all that follows."""
    result = solve_ivp(function, FOR_EVER, [1.0, 0.0], time_limit=1.0, **options)
    assert clock.now < 2.0
    assert result.status == -1
    assert "time limit" in result.message
    assert np.all(np.isfinite(result.y)) and np.all(np.isfinite(result.y_std))


def test_a_time_limit_ends_the_loops_of_jax(clock):
    with native.disabled():
        result = solve_ivp(oscillator, FOR_EVER, [1.0, 0.0], time_limit=1.0)
    assert clock.now < 2.0
    assert result.posterior.status == Status.TIME_LIMIT


def at_the_end_of(name, clock, monkeypatch, module):
    """Put the clock forward when ``module.name`` is called."""
    original = getattr(module, name)

    def late(*args, **options):
        clock.now += 100.0
        return original(*args, **options)

    monkeypatch.setattr(module, name, late)


@pytest.mark.parametrize("path", [nullcontext, native.disabled], ids=["kernels", "jax"])
def test_without_time_for_smoothing_it_is_the_filter(clock, monkeypatch, path):
    clock.tick = 0.0
    problem = (oscillator_in_jax, (0.0, 1.0), [1.0, 0.0])
    with path():
        expected = solve(*problem, smooth=False)
        at_the_end_of("_is_finite", clock, monkeypatch, kept)  # all rows are joined
        got = solve(*problem, time_limit=1.0)
    assert got.status == Status.TIME_LIMIT
    assert got.missing == ("smoothing",)
    assert "filter" in got.message
    np.testing.assert_array_equal(got.mean, expected.mean)
    np.testing.assert_array_equal(got.std, expected.std)


def oscillator_in_jax(t, y):
    return jnp.stack([y[1], -y[0]])


def test_an_estimate_that_ends_early_is_not_trusted(clock):
    """Where there is none, bands are as wide as the solution varies."""
    clock.tick = 0.0
    calls = []

    def slowly(t, y):
        calls.append(t)
        return only_python(t, y)

    whole = solve_ivp(slowly, (0.0, 5.0), [1.0, 0.0])
    looks = whole.posterior.problem.look.probes
    solving = len(calls) - whole.posterior.stats.calibration_f_evaluations - looks
    calls.clear()

    def late(t, y):
        calls.append(t)
        clock.now += 100.0 if len(calls) == solving + 88 else 0.0
        return only_python(t, y)

    part = solve_ivp(late, (0.0, 5.0), [1.0, 0.0], time_limit=10.0)
    assert part.posterior.status == Status.TIME_LIMIT
    assert part.posterior.missing == ("calibration",)
    assert "unfinished" in part.posterior.diagnose().flags
    known = np.all(np.isfinite(part.posterior.global_error()), axis=1)
    assert 1 < known.sum() < len(known)
    np.testing.assert_allclose(part.y, whole.y, rtol=1e-12)
    assert np.all(part.y_std[:, ~known] > 0.5)


def test_looks_between_the_steps_end_in_time(clock):
    """There is time for a hundred of them after the steps and the estimate of the error."""
    clock.tick = 0.0
    calls, most = [], 10**9

    def slowly(t, y):
        calls.append(t)
        clock.now += 100.0 if len(calls) == most else 0.0
        return only_python(t, y)

    whole = solve_ivp(slowly, (0.0, 5.0), [1.0, 0.0]).posterior
    looks = whole.problem.look.probes
    most = len(calls) - looks + 100
    calls.clear()
    part = solve_ivp(slowly, (0.0, 5.0), [1.0, 0.0], time_limit=10.0).posterior
    assert len(calls) < most + 10 and looks > 1000
    assert part.problem.look.probes < 200 and part.problem.look.gap > whole.problem.look.gap


def test_programs_that_are_compiled_are_no_reason_to_stop(clock):
    """The first trial takes long because it compiles; further steps would not."""
    clock.tick, trials = 0.0, []

    def finish(within):
        trials.append(within)
        clock.now += 0.01
        if len(trials) == 1:
            with compiling():
                clock.now += 5.0

    assert rehearsed(finish, 1, Limits(8.0)) < 0.02
    assert len(trials) == 2


def test_a_solution_that_slides_is_told_at_any_tolerance():
    def relay(t, y):
        sign = np.sign(y[0] + y[1])
        return np.array([-sign, -0.5 * sign + 0.1 * y[0]])

    options = {"rtol": 1e-3, "atol": 1e-3, "max_num_steps": 1500}
    assert "slide" in solve_ivp(relay, (0, 10), [1.0, 0.5], **options).message


def test_the_limit_on_memory_ends_a_solve_with_what_it_has():
    def large(t, y):
        return -y

    y0 = np.linspace(1.0, 2.0, 10)
    whole = solve_ivp(large, (0.0, 100.0), y0, rtol=1e-8)
    part = solve_ivp(large, (0.0, 100.0), y0, rtol=1e-8, max_memory="3 MB")
    assert whole.success and not part.success
    assert part.posterior.status == Status.MEMORY_LIMIT
    assert "t_eval" in part.message
    steps = part.t.size
    assert 1 < steps < whole.t.size
    np.testing.assert_allclose(part.y, whole.y[:, :steps], atol=1e-7)


def test_a_state_that_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="max_memory"):
        solve_ivp(lambda t, y: -y, (0.0, 1.0), np.ones(50), max_memory="1 MB")


def test_save_points_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="save_at"):
        times = np.linspace(0.0, 1.0, 10_000)
        solve(lambda t, y: -y, (0.0, 1.0), np.ones(2), save_at=times, max_memory=2**20)


@pytest.mark.parametrize(
    ("given", "size"),
    [(1000, 1000), ("1000", 1000), ("2 kB", 2048), ("1.5MB", 1.5 * 2**20), ("4 GiB", 2**32)],
)
def test_memory_can_be_given_with_a_unit(given, size):
    assert Limits.read(None, given).memory == size


@pytest.mark.parametrize("given", [0, -5, "much", "4 XB", [], np.nan])
def test_memory_that_is_no_size_is_refused(given):
    with pytest.raises(ValueError, match="max_memory"):
        Limits.read(None, given)


def test_a_solve_that_was_limited_can_be_stored(tmp_path):
    y0 = np.linspace(1.0, 2.0, 10)
    part = solve_ivp(lambda t, y: -y, (0, 100), y0, rtol=1e-8, max_memory="3 MB").posterior
    export.save(part, tmp_path / "part.npz")
    assert export.load(tmp_path / "part.npz").status == Status.MEMORY_LIMIT


def test_rounds_towards_a_tolerance_share_the_time(clock):
    """Each of them takes more than a half of it: the second cannot end."""
    clock.tick = 0.0

    def late(progress):
        clock.now += 0.6

    times = (0.0, 2e4)
    result = solve_ivp(
        oscillator, times, [1.0, 0.0], global_rtol=1e-9, time_limit=1.0, callback=late
    )
    assert not result.global_met
    assert "time limit" in result.message


def test_a_second_solve_has_the_time_limit_of_the_first():
    def slower(t, y):
        if slow:
            time.sleep(0.01)
        return [-float(y[0])]

    slow = False
    posterior = solve_ivp(slower, (0, 10), [1.0], time_limit=0.1).posterior
    slow = True
    assert "stopped" in posterior.diagnose(again=True).flags


@pytest.mark.parametrize("events", [None, lambda t, y: y[0] - 3.0])
def test_a_solve_towards_an_infinite_end_stops_by_itself(monkeypatch, events):
    monkeypatch.setattr("probode.ivp.front_door._WITHOUT_END", 50)
    if events is not None:
        monkeypatch.setattr(events, "terminal", True, raising=False)
    result = solve_ivp(oscillator, (0, np.inf), [1.0, 0.0], events=events)
    assert result.status == -1
    assert "t_span has no end" in result.message


def test_a_reset_that_repeats_for_ever_ends_by_itself(monkeypatch):
    def threshold(t, y):
        return y[0] - 1.0

    threshold.reset = lambda t, y: 0.0 * y
    monkeypatch.setattr("probode.ivp.front_door._WITHOUT_END", 50)
    result = solve_ivp(lambda t, y: 2.0 - y, (0, np.inf), [0.0], events=threshold)
    assert "t_span has no end" in result.message
