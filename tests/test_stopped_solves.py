"""A solve that is stopped returns the steps made: limits, callbacks, Ctrl-C."""

import os
import signal
import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from attempts import OwnError, assert_finite, attempt

from probode import EK0, Status


def oscillator(t, y):
    return jnp.stack([y[1], -y[0]])


FOR_EVER = (0.0, 1e9)


def assert_oscillates(posterior):
    assert len(posterior.t) > 1
    assert posterior.t[0] == 0.0
    assert_finite(posterior)
    early = posterior.t < 2.0
    np.testing.assert_allclose(posterior.mean[early, 0], np.cos(posterior.t[early]), atol=1e-3)


SAVING = pytest.mark.parametrize("save_at", [None, [0.0, 0.001, 1e9]], ids=["steps", "save_at"])


def stopped(save_at, **options):
    """A solve without end, stopped by ``options``."""
    options = {"time_limit": 20.0, **options}
    return attempt(oscillator, FOR_EVER, (1.0, 0.0), save_at=save_at, **options)


def assert_partial(posterior, save_at, status):
    assert posterior.status == status
    assert posterior.message == status.message
    assert_oscillates(posterior)
    assert posterior.t[-1] < 1e9
    if save_at is not None:
        np.testing.assert_array_equal(posterior.t, save_at[:2])


@SAVING
def test_max_steps_returns_the_steps_made(save_at):
    posterior = stopped(save_at, max_steps=10)
    assert_partial(posterior, save_at, Status.MAX_STEPS)
    assert posterior.stats.steps == 10


@SAVING
def test_time_limit_returns_the_steps_made(save_at):
    stopped(save_at, max_steps=10)  # compiled now
    assert_partial(stopped(save_at, time_limit=0.1), save_at, Status.TIME_LIMIT)


@SAVING
def test_a_callback_that_returns_true_stops_the_solve(save_at):
    seen = []

    def callback(progress):
        seen.append(progress)
        return len(seen) == 2

    assert_partial(stopped(save_at, callback=callback), save_at, Status.CALLBACK)
    assert len(seen) == 2
    assert 0.0 < seen[0].t < seen[1].t
    assert seen[1].y == pytest.approx([np.cos(seen[1].t), -np.sin(seen[1].t)], abs=1e-3)


def test_an_error_in_the_callback_comes_through():
    def callback(progress):
        raise OwnError("own words")

    handler = signal.getsignal(signal.SIGINT)
    with pytest.raises(OwnError, match="own words"):
        stopped(None, callback=callback)
    assert signal.getsignal(signal.SIGINT) is handler


def test_a_time_limit_is_honoured_however_slow_the_vector_field_is():
    """A tenth of a second per evaluation: the limit must not wait for dozens of steps."""

    def wait(t):
        time.sleep(0.1)
        return np.float32(0.0)

    def slow(t, y):
        return -y + jax.pure_callback(wait, jax.ShapeDtypeStruct((), np.float32), t)

    posterior = attempt(slow, y0=1.0, solver=EK0(1), time_limit=0.3, max_steps=50)
    assert posterior.status == Status.TIME_LIMIT
    assert posterior.stats.steps < 20
    assert_finite(posterior)


@SAVING
def test_ctrl_c_returns_the_steps_made_and_restores_the_handler(save_at, ctrl_c):
    def press(progress):
        signal.raise_signal(signal.SIGINT)

    try:
        posterior = stopped(save_at, callback=press)
    except KeyboardInterrupt:
        pytest.fail("Ctrl-C lost the solution")
    assert_partial(posterior, save_at, Status.INTERRUPTED)
    assert signal.getsignal(signal.SIGINT) is ctrl_c


def test_ctrl_c_is_noticed_between_callbacks(ctrl_c):
    """As a user presses it: at any time, while compiled code runs."""
    stopped(None, max_steps=300)  # compiled now
    timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    try:
        posterior = stopped(None)
    except KeyboardInterrupt:
        pytest.fail("Ctrl-C lost the solution")
    finally:
        timer.cancel()
    assert_partial(posterior, None, Status.INTERRUPTED)


def test_a_second_ctrl_c_interrupts_at_once(ctrl_c):
    def press_twice(progress):
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        stopped(None, callback=press_twice)
    assert signal.getsignal(signal.SIGINT) is ctrl_c


def test_where_the_caller_ignores_ctrl_c_a_solve_does_too(ctrl_c):
    """As in the background of a script: only the callback stops it here."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    pressed = []

    def press(progress):
        signal.raise_signal(signal.SIGINT)
        pressed.append(progress)
        return len(pressed) == 2

    assert_partial(stopped(None, callback=press), None, Status.CALLBACK)
    assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN


def test_a_solve_works_outside_the_main_thread():
    results = []
    thread = threading.Thread(target=lambda: results.append(stopped(None, max_steps=10)))
    thread.start()
    thread.join()
    assert_partial(results[0], None, Status.MAX_STEPS)
