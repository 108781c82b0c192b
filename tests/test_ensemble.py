"""An ensemble is what single solves give, member by member, whatever happens to the others."""

import functools
from concurrent.futures import ThreadPoolExecutor

import jax.numpy as jnp
import numpy as np
import pandas
import pytest
import xarray
from quick_ensembles import quick_reference_engine

import probode
from probode import EK0, EK1, Shared, Status, Sweep
from probode.ensemble import batch, chunks

SAVE_AT = np.array([0.0, 0.5, 1.25, 2.0])
RATES = np.linspace(0.5, 2.0, 150)
QUICK = {"save_at": SAVE_AT, "solver": EK0(2), "rtol": 1e-4, "atol": 1e-6}
"""One program for most tests: compiling takes seconds."""


def logistic(t, y, rate, capacity):
    return rate * y * (1 - y / capacity)


def solution(t, y0, rate, capacity):
    return capacity / (1 + (capacity / y0 - 1) * np.exp(-rate * t))


def solve(y0=(0.1,), rates=RATES, capacity=1.0, fun=logistic, t_span=(0.0, 2.0), **options):
    return probode.solve_ensemble(fun, t_span, y0, (rates, capacity), **QUICK | options)


@pytest.fixture(autouse=True, scope="module")
def _engine():
    with quick_reference_engine():
        yield


@functools.cache
def ensemble():
    return solve()


# --- The same as single solves --------------------------------------------------------------------


def test_means_are_the_solutions():
    exact = solution(SAVE_AT, 0.1, RATES[:, None], 1.0)
    np.testing.assert_allclose(ensemble().mean[..., 0], exact, rtol=3e-3)
    assert ensemble().success.all()


@pytest.mark.parametrize("i", [0, 70, 149])
def test_a_member_solved_alone_is_the_same(i):
    alone = ensemble().member(i)
    np.testing.assert_allclose(alone.mean, ensemble().mean[i], rtol=1e-12)
    np.testing.assert_allclose(alone.std, ensemble().std[i], rtol=1e-9)
    assert alone.stats.steps == ensemble().steps[i]
    evaluations = alone.stats.f_evaluations + alone.stats.calibration_f_evaluations
    assert evaluations == ensemble().f_evaluations[i]


def test_members_run_again_are_the_same_bit_for_bit():
    again = ensemble().rerun([3, 140])
    np.testing.assert_array_equal(again.mean, ensemble().mean[[3, 140]])
    np.testing.assert_array_equal(again.std, ensemble().std[[3, 140]])


@pytest.mark.parametrize(
    "options", [{"covariance": True}, {"calibration": "model", "smooth": False}], ids=str
)
def test_modes_are_those_of_solve(options):
    found = solve(rates=RATES[:70], **options)
    alone = found.member(5)
    np.testing.assert_allclose(found.std[5], alone.std, rtol=1e-7)
    if "covariance" in options:
        np.testing.assert_allclose(found.cov[5], alone.cov, rtol=1e-6)


def test_cost_follows_the_mean_number_of_steps(monkeypatch):
    """150 members of which two take ten times the steps: a batch would wait for them twice."""
    tolerance = np.full(150, 1e-4)
    tolerance[[3, 100]] = 1e-11
    made = []
    original = batch.advance_lanes

    def counting(plan, field, control, lanes, *rest):
        before = lanes.kept.solve.counts.attempted
        lanes, going = original(plan, field, control, lanes, *rest)
        made.append(int((lanes.kept.solve.counts.attempted - before).max()))
        return lanes, going

    monkeypatch.setattr(batch, "advance_lanes", counting)
    found = solve(rtol=tolerance, atol=tolerance)
    slow = found.steps[[3, 100]]
    assert slow.min() > 10 * np.median(found.steps)
    assert sum(made) < 1.5 * slow.max()


def lorenz(t, y, rho):
    return jnp.array([10 * (y[1] - y[0]), y[0] * (rho - y[2]) - y[1], y[0] * y[1] - 8 / 3 * y[2]])


def test_ensembles_in_several_threads_do_not_wait_for_each_other():
    """Two executions of batched LAPACK calls at once have been seen to hang on the CPU."""

    def run(_):
        rho = np.linspace(0.0, 21.0, 300)
        options = {"solver": EK1(1), "calibration": "model"}
        return probode.solve_ensemble(lorenz, (0.0, 0.05), np.ones(3), (rho,), **options)

    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(run, range(2), timeout=120)
    np.testing.assert_array_equal(first.mean, second.mean)


# --- Members that fail ----------------------------------------------------------------------------


@functools.cache
def with_failures():
    """A negative capacity: ``y' = r y (1 + y / |c|)`` leaves the real numbers in finite time."""
    y0, rates, capacity = np.tile([0.25, 0.5, 1.0], (5, 1)).T
    y0[1] = np.nan
    capacity[2] = np.nan
    capacity[3] = -0.1
    return solve(y0[:, None], rates, capacity, max_steps=2000)


def test_failures_are_marked_and_the_others_are_not_touched():
    found = with_failures()
    expected = [0, Status.START_NOT_FINITE, Status.START_NOT_FINITE, Status.STEP_TOO_SMALL, 0]
    np.testing.assert_array_equal(found.status, expected)
    np.testing.assert_array_equal(found.failed, [1, 2, 3])
    exact = solution(SAVE_AT, 0.25, 0.5, 1.0)
    np.testing.assert_allclose(found.mean[[0, 4], :, 0], [exact] * 2, rtol=1e-3)
    assert "2 of 5" in found.message


def test_what_was_reached_before_a_failure_is_kept():
    """The blow-up is at ``t = log(1 + |c| / y0) / r = 0.67``, after the second save point."""
    mean = with_failures().mean[3, :, 0]
    np.testing.assert_allclose(mean[:2], solution(SAVE_AT[:2], 0.25, 0.5, -0.1), rtol=1e-3)
    assert np.isnan(mean[2:]).all()


def test_a_member_out_of_steps_can_be_run_again_with_more():
    tolerance = np.where(np.arange(70) == 9, 1e-10, 1e-4)
    found = solve(rates=RATES[:70], rtol=tolerance, atol=tolerance, max_steps=100)
    np.testing.assert_array_equal(found.failed, [9])
    assert found.status[9] == Status.MAX_STEPS
    better = found.rerun(max_steps=5000)
    exact = solution(2.0, 0.1, RATES[9], 1.0)
    np.testing.assert_allclose(better.mean[0, -1, 0], exact, rtol=1e-6)


# --- What varies ----------------------------------------------------------------------------------


def test_named_dimensions_make_all_combinations():
    found = solve(np.array([[0.1], [0.2]]), Sweep(RATES[:3], "rate"), Sweep([1.0, 3.0], "capacity"))
    assert found.dims == ("member", "rate", "capacity")
    y0, rate, capacity = np.meshgrid([0.1, 0.2], RATES[:3], [1.0, 3.0], indexing="ij")
    exact = solution(2.0, y0, rate, capacity)
    np.testing.assert_allclose(found.mean[..., -1, 0], exact, rtol=3e-3)
    np.testing.assert_allclose(found[1, :, 0].mean[:, -1, 0], exact[1, :, 0], rtol=3e-3)
    table = found.to_xarray()
    assert dict(table.sizes) == {"member": 2, "rate": 3, "capacity": 2, "time": 4, "state": 1}
    np.testing.assert_array_equal(table.rate, RATES[:3])


def test_xarray_dimensions_broadcast_by_name():
    rates = xarray.DataArray(RATES[:3], dims="rate", coords={"rate": list("abc")})
    both = xarray.DataArray(np.ones((2, 3)), dims=("place", "rate"))
    found = solve(rates=rates, capacity=both)
    assert found.dims == ("rate", "place") and found.shape == (3, 2)
    assert list(found.to_xarray().rate.values) == list("abc")


def test_pandas_rows_are_members():
    table = pandas.DataFrame({"rate": RATES[:4], "capacity": 2.0}, index=pandas.Index(list("pqrs")))
    table.index.name = "patient"
    found = probode.solve_ensemble(logistic, (0, 2), [0.1], table, **QUICK)
    assert found.dims == ("patient",) and list(found.coords["patient"]) == list("pqrs")
    np.testing.assert_allclose(found.mean[:, -1, 0], solution(2.0, 0.1, RATES[:4], 2.0), rtol=3e-3)


def test_intervals_and_save_points_may_vary():
    ends = np.array([1.0, -1.0, 2.0])
    times = ends[:, None] * [0.25, 0.5, 0.75, 1.0]
    found = solve(rates=1.0, t_span=(0.0, ends), save_at=times)
    np.testing.assert_array_equal(found.t, times)
    np.testing.assert_allclose(found.mean[..., 0], solution(times, 0.1, 1.0, 1.0), rtol=3e-3)
    assert "t" in found.to_xarray()


def test_numpy_functions_and_shared_arrays_work():
    def decay(t, y, rates):
        return np.array([-rates[0] * y[0], -rates[1] * y[1]])

    found = probode.solve_ensemble(
        *(decay, (0, 1), np.ones((5, 2)), (Shared([1.0, 2.0]),)),
        solver=EK0(2),
        smooth=False,
    )
    np.testing.assert_allclose(found.mean[:, 0], np.exp([[-1.0, -2.0]] * 5), rtol=1e-4)


# --- Bad input ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"y0": np.ones((4, 1))}, ValueError, r"4 in y0, 150 in args\[0\]"),
        ({"rates": 1.0}, ValueError, "nothing varies"),
        ({"rates": Sweep(RATES, "time")}, ValueError, "a dimension of .* another name"),
        ({"rates": Sweep(RATES, "y")}, ValueError, "a variable of .* another name"),
        ({"rates": np.ones(0)}, ValueError, "at least one member"),
        ({"y0": np.ones((150, 0))}, ValueError, "at least one component"),
        ({"y0": ["a"]}, TypeError, "real numbers"),
        ({"save_at": [0.0, 3.0]}, ValueError, "between t0 and t1"),
        ({"save_at": [1.0, 0.5]}, ValueError, "monotone"),
        ({"t_span": (0.0, np.where(RATES > 1.9, 1.0, 2.0))}, ValueError, "of member 140"),
        ({"rtol": [1e-3, 1e-4]}, ValueError, "150 in args.*2 in rtol"),
        ({"rtol": -1.0}, ValueError, "positive"),
        ({"y0": [np.nan]}, ValueError, "y0 must be finite"),
        ({"t_span": (0.0, np.inf)}, ValueError, "must be finite"),
        ({"memory": 0}, ValueError, "memory must be a positive"),
        ({"memory": "1GB"}, TypeError, "number of bytes"),
        ({"devices": "cpu"}, TypeError, r"jax.devices\('cpu'\)"),
        ({"store": 3}, TypeError, "path of a folder"),
        ({"progress": "sometimes"}, ValueError, "'always'"),
        ({"max_steps": 0}, ValueError, "max_steps"),
        ({"engine": "lane"}, ValueError, "Did you mean 'lanes'"),
        ({"engine": "lanes"}, ValueError, "cannot solve this ensemble"),
        ({"calibration": "defekt"}, ValueError, "defect"),
        ({"fun": lambda t, y, a, b: None}, TypeError, "fun returned None"),
        ({"fun": lambda t, y, a, b: 1j * y}, TypeError, "fun must return real numbers"),
        ({"fun": lambda t, y, a, b: y * [a, b][int(t)]}, TypeError, "cannot be traced"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_bad_input_is_explained(options, error, words):
    with pytest.raises(error, match=words):
        solve(**options)


def test_differing_labels_are_explained():
    first = xarray.DataArray([1.0, 2.0], dims="k", coords={"k": [0, 1]})
    second = xarray.DataArray([1.0, 2.0], dims="k", coords={"k": [1, 2]})
    with pytest.raises(ValueError, match="labels along 'k' differ"):
        solve(rates=first, capacity=second)


# --- What is handed out ---------------------------------------------------------------------------


def test_samples_have_the_moments_of_the_posterior():
    few = ensemble()[:3]
    drawn = few.sample(4000, seed=1)
    assert drawn.shape == (3, 4000, 4, 1)
    # Of 4000 draws: 1 / sqrt(2 · 4000) = 0.011.
    np.testing.assert_allclose(drawn.std(axis=1), few.std, rtol=0.06, atol=1e-14)
    distance = np.abs(drawn.mean(axis=1) - few.mean)
    assert np.all(distance <= 5 * few.std / np.sqrt(4000) + 1e-14)


def test_the_summary_counts():
    text = repr(with_failures())
    assert "5 members" in text and "2 START_NOT_FINITE" in text
    assert "2 START_NOT_FINITE" in with_failures()._repr_html_()


@pytest.mark.parametrize("part", [slice(None), 0], ids=["two dimensions", "one"])
def test_plots(part):
    found = solve(rates=Sweep(RATES[:3], "rate"), capacity=Sweep([1.0, 3.0], "capacity"))
    figure = found[part].plot()
    assert len(figure.axes) == 4  # two pictures with their colour bars


def test_a_memory_budget_makes_smaller_chunks():
    family, settings = ensemble().family, ensemble().settings
    assert chunks.chunk_size(family, settings, 2**30, 1) == 150
    small = chunks.chunk_size(family, settings, 2**16, 1)
    assert small * chunks.bytes_per_member(family, settings) <= 2**15
