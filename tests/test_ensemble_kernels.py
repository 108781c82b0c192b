"""Members one by one on the native kernels: what the reference engine gives, nothing compiled."""

import functools
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from quick_ensembles import assert_same_bars, quick_reference_engine
from scipy.integrate import solve_ivp

from probode import EK0, EK1, DiagonalEK1, Status, Sweep, solve_ensemble
from probode.engines import native
from probode.ensemble import engines, one_by_one

pytestmark = pytest.mark.skipif(not native.available(), reason="native kernels were not built")

RATES = np.array([0.5, 1.0, 3.0, np.inf])
"""The third blows up before the end, the last one has no start."""

TIMES = [0.0, 0.1, 0.2, 0.3, 0.33, 0.34, 0.6]
"""Those of the third member end at 1/3."""


def blow_up(t, y, rate):
    return jnp.stack([rate * y[0] ** 2, -y[1] * y[0]])


def lotka_volterra(t, y, a):
    return jnp.stack([a * y[0] - y[0] * y[1], y[0] * y[1] - 3.0 * y[1]])


def solved(**options):
    chosen = {"solver": EK1(2), "atol": 1e-7, "covariance": True, "max_steps": 300}
    return solve_ensemble(blow_up, (0.0, 0.6), [1.0, 2.0], (Sweep(RATES),), **{**chosen, **options})


def series(t_span=(0.0, 2.0), **options):
    rates, chosen = np.array([1.0, 1.3, 2.0]), {"save_at": [0.0, 0.7, 1.5, 2.0], "rtol": 1e-4}
    chosen = {**chosen, "covariance": True, **options}
    return solve_ensemble(lotka_volterra, t_span, [1.0, 1.0], (rates,), **chosen)


CASES = {
    "ends, the model's": functools.partial(solved, calibration="model"),
    "ends": solved,
    "save points": functools.partial(solved, save_at=TIMES),
    "EK0": functools.partial(series, solver=EK0(3)),
    "backwards": functools.partial(
        series, solver=EK0(3), save_at=[1.9, 1.0, 0.0], t_span=(2.0, 0.0)
    ),
    "filtered": functools.partial(series, solver=EK0(3), smooth=False),
    "twice": functools.partial(series, solver=EK0(4, evaluations=2)),
    "fast": functools.partial(series, solver=EK0(3), calibration="defect-fast"),
    "diagonal": functools.partial(series, solver=DiagonalEK1(2)),
    "fixed": functools.partial(series, solver=EK0(2, "fixed-mv")),
}
SLOW = ("backwards", "fast", "diagonal", "fixed")


@functools.cache
def both(case):
    with quick_reference_engine():
        reference = CASES[case](engine="vmapped")
    return CASES[case](engine="kernels"), reference


cases = pytest.mark.parametrize(
    "case", [pytest.param(x, marks=[pytest.mark.slow] * (x in SLOW)) for x in CASES]
)


@cases
def test_results_are_those_of_the_reference(case):
    one, other = both(case)
    np.testing.assert_allclose(one.mean, other.mean, rtol=1e-8)
    assert_same_bars(one, other)


@cases
def test_counts_and_verdicts_are_those_of_the_reference(case):
    one, other = both(case)
    for name in ("status", "steps", "accepted", "f_evaluations", "jacobian_evaluations"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name), err_msg=name)
    for name, flagged in other.diagnose().flags.items():
        np.testing.assert_array_equal(one.diagnose().flags[name], flagged, err_msg=name)


def test_a_member_that_fails_leaves_the_others_and_keeps_what_it_reached():
    found = both("save points")[0]
    assert [int(x) == Status.SUCCESS.value for x in found.status] == [True, True, False, False]
    reached = np.isfinite(found.mean[2, :, 0])
    assert reached[:3].all() and not reached[-2:].any()
    np.testing.assert_allclose(found.mean[2, :3, 0], 1 / (1 - 3 * np.array(TIMES[:3])), rtol=1e-3)


@pytest.mark.parametrize("smooth", [True, False])
def test_error_bars_are_of_the_size_of_the_error(smooth):
    """chi2/d of most members in [1/3, 3], where the model's are off by orders of magnitude."""
    rates, times = np.linspace(1.0, 2.0, 24), np.linspace(0.0, 10.0, 11)
    options = {"save_at": times, "smooth": smooth, "rtol": 1e-6, "atol": 1e-8}
    found = solve_ensemble(lotka_volterra, (0.0, 10.0), [1.0, 1.0], (rates,), **options)
    exact = np.stack(
        [
            solve_ivp(
                lambda t, y, a=a: np.array([a * y[0] - y[0] * y[1], y[0] * y[1] - 3.0 * y[1]]),
                *((0.0, 10.0), [1.0, 1.0], "DOP853", times),
                rtol=1e-12,
                atol=1e-13,
            ).y.T
            for a in rates
        ]
    )
    chi2 = np.mean(((found.mean - exact)[:, 1:] / found.std[:, 1:]) ** 2, axis=(1, 2))
    assert np.mean((chi2 > 1 / 3) & (chi2 < 3)) >= 0.95
    assert found.diagnose().trusted.all()


@pytest.mark.parametrize("rtol", [1e-4, 1e-7])
def test_smoothed_means_between_the_steps_have_true_bars(rtol):
    """``y' = a cos(t) y``: smoothed means of order 5 are off by a hundredth of the filter's error.

    What the transport says inside of a step must be as much better; by the stages alone it is off
    by 4 to 17 %, and single members have a chi2/d of 15 and 300.
    """
    rates, times = np.linspace(1.0, 2.0, 12), np.linspace(0.0, 6.0, 9)
    found = solve_ensemble(
        lambda t, y, a: a * jnp.cos(t) * y,
        *((0.0, 6.0), [1.0], (rates,)),
        save_at=times,
        rtol=rtol,
        atol=rtol / 100,
    )
    error = found.mean - np.exp(rates[:, None] * np.sin(times))[..., None]
    chi2 = np.mean((error[:, 1:] / found.std[:, 1:]) ** 2, axis=(1, 2))
    assert np.all((chi2 > 1 / 2) & (chi2 < 2))
    alone = found.member(3).calibration.error
    np.testing.assert_allclose(alone, error[3], atol=0.01 * np.max(np.abs(error[3])))


@pytest.mark.parametrize("solver", [EK0(3), EK1(3)])
def test_an_end_has_a_bar_of_its_own_size_where_errors_have_decayed(solver):
    """Damped oscillations: errors in the fifth before are larger, with which chi2/d was 0.2.

    With EK1 the last step is better than those before, as it is shorter.
    """
    rates = np.linspace(0.5, 2.0, 24)
    found = solve_ensemble(
        lambda t, y, a: jnp.stack([-y[0] - a * y[1], a * y[0] - y[1]]),
        *((0.0, 6.0), [1.0, 0.0], (rates,)),
        solver=solver,
        rtol=1e-6,
        atol=1e-9,
    )
    exact = np.exp(-6.0) * np.stack([np.cos(6 * rates), np.sin(6 * rates)], axis=1)
    chi2 = np.mean(((found.mean[:, 0] - exact) / found.std[:, 0]) ** 2, axis=1)
    assert 0.5 < np.median(chi2) < 2.0


def test_nothing_is_compiled():
    seen = []
    jax.monitoring.register_event_duration_secs_listener(
        lambda event, seconds, **more: (
            seen.append(more.get("fun_name")) if "backend_compile" in event else None
        )
    )
    found = solve_ensemble(
        *(lambda t, y, a: -a * y + jnp.tanh(y[::-1]), (0.0, 1.0), [1.0, 2.0], (Sweep(RATES[:3]),)),
        save_at=[0.5, 1.0],
    )
    assert not seen and found.engine == "kernels"


def test_a_member_does_not_depend_on_its_neighbours():
    every = series(solver=EK0(3))
    alone = every.rerun([1])
    np.testing.assert_array_equal(alone.mean[0], every.mean[1])
    np.testing.assert_array_equal(alone.std[0], every.std[1])


def test_progress_is_told_of_all_members():
    told = []
    members = series(solver=EK0(3))
    family, settings = members.family, members.settings
    engines.solve_members(
        *(lotka_volterra, family.members(np.arange(3)), settings), on_progress=told.append
    )
    assert sum(told) == 3


def test_the_reason_is_told():
    assert "compile" in series(solver=EK0(3)).engine_reason
    assert "permission" in both("EK0")[1].engine_reason or both("EK0")[1].engine == "vmapped"


def test_what_calibrated_bars_cost_without_kernels_is_said(monkeypatch, caplog):
    members = series(solver=EK0(3))
    some, settings = members.family.members(np.arange(3)), members.settings
    monkeypatch.setattr(engines, "_kernels_lack", lambda *_: "a way to run on this device")
    monkeypatch.setattr(engines, "first_time", lambda *_: True)
    settings = replace(settings, engine="auto", calibration="defect")
    field = engines.bind_member(lotka_volterra, some, settings, 0)
    chosen = engines.choose(lotka_volterra, some, settings, field, count=100_000)
    assert chosen.engine == "vmapped" and 'calibration="model"' in caplog.text


def switched(t, y, a):
    return jnp.where(t < 0.5, -a * y, a * y)


def test_a_function_that_switches_starts_anew_there():
    """Each member then is a solve of its own: exact to tolerance across the switch."""
    rates = np.array([0.5, 1.0])
    found = solve_ensemble(switched, (0.0, 1.0), [1.0], (rates,), solver=EK0(3), rtol=1e-6)
    assert "one after the other" in found.engine_reason
    assert found.engine == "kernels"
    np.testing.assert_allclose(found.mean[:, 0, 0], 1.0, rtol=1e-6)


def test_many_members_that_switch_are_for_another_engine():
    members = series(solver=EK0(3)).family.members(np.arange(3))
    field = engines.bind_member(switched, members, series(solver=EK0(3)).settings, 0)
    settings = series(solver=EK0(3)).settings
    assert one_by_one.lacks(members, settings, field, 2) is None
    assert "switches" in one_by_one.lacks(members, settings, field, 10_000)


# --- One equation ---------------------------------------------------------------------------------

PULLS = np.linspace(0.5, 4.0, 64)


def pulled(t, y, a):
    return -a * (y - jnp.sin(3.0 * t))


def misfits_of_pulled(points, **options):
    """``(error / std)²`` of one equation with a known solution: no other component helps."""
    times, a = np.linspace(0.0, 10.0, points), PULLS[:, None]
    found = solve_ensemble(pulled, (0.0, 10.0), [0.0], (PULLS,), save_at=times, **options)
    steady = a * np.sin(3.0 * times) - 3.0 * np.cos(3.0 * times)
    exact = a / (9.0 + a * a) * (steady + 3.0 * np.exp(-a * times))
    return np.square((found.mean[..., 0] - exact)[:, 1:] / found.std[:, 1:, 0])


def test_bars_of_order_4_with_two_evaluations_are_of_the_size_of_the_errors():
    """Three stages of the transport were off by as much as the errors: 20 % were right."""
    mean = misfits_of_pulled(51, solver=EK0(4, evaluations=2), rtol=1e-7, atol=1e-9).mean(axis=1)
    assert np.mean((mean > 1 / 3) & (mean < 3.0)) >= 0.95


def test_no_bar_of_one_equation_vanishes_where_its_estimate_passes_through_zero():
    """Bars were up to 260 times too small there. The largest of so many normal numbers is 3.7."""
    largest = misfits_of_pulled(51, solver=EK1(5), rtol=1e-3, atol=1e-5).max()
    assert np.sqrt(largest) < 5.0
