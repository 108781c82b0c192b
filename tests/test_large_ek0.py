"""EK0 with many components: steps in place, and refusals before anything is made."""

import jax.numpy as jnp
import numpy as np
import pytest
from only_python import number

import probode
from probode import EK0, PIControl, solve, solve_ivp
from probode.engines import native, saved_from_rows
from probode.engines.native import driver

LARGE = 140_000
"""A state of order 1 has four times as many numbers: more than ``driver._LARGE``."""
START = np.sin(np.linspace(0.0, 7.0, LARGE))

kernels = pytest.mark.skipif(not native.available(), reason="native kernels were not built")


def relax(t, y):
    return -(y**3) + 0.1 * jnp.roll(y, 1)


def relax_in_python(t, y):
    return -(np.array([y])[0] ** 3) + 0.1 * np.roll(y, 1) if number(y[0]) < 9.0 else y


def solved(**options):
    control = PIControl(1e-3, 1e-3)
    return solve(relax, (0.0, 1.0), START, solver=EK0(1), control=control, **options)


@kernels
@pytest.mark.parametrize("options", [{"save_at": 1.0, "smooth": False}, {"smooth": False}])
def test_steps_in_place_are_those_of_compiled_chunks(options, monkeypatch):
    """To rounding: XLA compiles ``f`` alone in one, with the loop around it in the other."""
    ours = solved(**options)
    monkeypatch.setattr(driver, "_LARGE", 2**40)
    chunks = solved(**options)
    assert ours.engine == chunks.engine == "native"
    assert ours.stats.steps == chunks.stats.steps
    np.testing.assert_allclose(ours.mean, chunks.mean, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(ours.std, chunks.std, rtol=1e-9)


@kernels
def test_what_a_callback_is_told_stays_as_it_was(monkeypatch):
    """The state itself is changed where it is."""
    monkeypatch.setattr(driver, "CHUNK_SECONDS", 0.0)
    told = []

    def listen(progress):
        told.append((progress.t, progress.y, progress.y.copy()))

    solved(save_at=1.0, smooth=False, callback=listen)
    assert len(told) > 2
    assert all(np.array_equal(now, then) for _, now, then in told)
    assert not np.array_equal(told[0][1], told[-1][1])


@kernels
def test_functions_of_python_take_the_same_steps():
    known = {"order": 1, "rtol": 1e-3, "atol": 1e-3, "t_eval": [1.0], "calibration": "model"}
    known["first_step"] = 0.1
    driven = solve_ivp(relax_in_python, (0.0, 1.0), START, "EK0", **known)
    traced = solve_ivp(
        relax,
        (0.0, 1.0),
        START,
        probode.EK0(1, initialization="runge-kutta"),
        **{name: value for name, value in known.items() if name != "order"},
    )
    assert driven.path == "python"
    np.testing.assert_allclose(driven.y, traced.y, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("call", ["solve", "solve_ivp", "at the end"])
def test_what_cannot_fit_is_refused_before_anything_is_made(call):
    """Not even ``f`` is looked at; the message says how much, and what to do."""
    y0 = np.ones(10**7)

    def never(t, y):
        raise AssertionError

    with pytest.raises(ValueError, match=r"one step at order 3 with d = 10000000 .* lower order"):
        if call == "solve_ivp":
            solve_ivp(never, (0.0, 1.0), y0, "EK0", order=3, max_memory="200 MB")
        else:
            at = {"save_at": 1.0} if call == "at the end" else {}
            solve(never, (0.0, 1.0), y0, solver=EK0(3), max_memory="200 MB", **at)


def test_what_fits_only_without_its_steps_says_so():
    with pytest.raises(ValueError, match=r"with all that is made of it.*save_at.*calibration"):
        solve_ivp(relax, (0.0, 1.0), START, "EK0", max_memory="100 MB")


@pytest.mark.parametrize("backwards", [False, True])
def test_save_points_from_rows_are_those_of_the_compiled_loop(backwards, monkeypatch):
    """At the start, inside steps, several in one step, at the end."""
    span = (1.0, 0.0) if backwards else (0.0, 1.0)
    times = [0.0, 0.31, 0.32, 0.77, 1.0]
    control = PIControl(1e-3, 1e-3)

    def run(**options):
        at = times[::-1] if backwards else times
        known = {"solver": EK0(1), "control": control, "save_at": at, "smooth": False}
        return solve(relax, span, START[::40], **known, **options)

    loop = run()
    monkeypatch.setattr(saved_from_rows, "_LARGE", 0)
    rows = run()
    assert rows.stats.steps == loop.stats.steps
    np.testing.assert_array_equal(rows.t, loop.t)
    np.testing.assert_allclose(rows.mean, loop.mean, rtol=1e-10, atol=1e-13)
    np.testing.assert_allclose(rows.std, loop.std, rtol=1e-8, atol=1e-14)
    stopped = run(max_steps=2)
    assert stopped.status == probode.Status.MAX_STEPS
    assert 0 < len(stopped.t) < len(times)
