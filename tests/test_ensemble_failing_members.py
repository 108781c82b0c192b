"""Members that cannot be solved are marked, keep what they reached, and disturb no others."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiling import QUICKLY

import probode
from benchmarks.ensemble_engines import error_of
from probode import EK0, EK1, Status
from probode.base import limits
from probode.ensemble import batch, engines

ENGINES = ("lanes", "kernels", "vmapped")
BARS = {"lanes": "model", "kernels": "defect", "vmapped": "defect"}


def rober(t, y, k1):
    a, b, c = k1 * y[0], 1e4 * y[1] * y[2], 3e7 * y[1] * y[1]
    return jnp.stack([b - a, a - b - c, c])


def van_der_pol(t, y, mu):
    return jnp.stack([y[1], mu * ((1 - y[0] ** 2) * y[1] - y[0])])


def decay(t, y, rate):
    return -rate * y


@pytest.fixture(scope="module", autouse=True)
def quickly_compiled():
    with pytest.MonkeyPatch.context() as patch:
        for name in ("advance_lanes", "exchange_lanes"):
            program = jax.jit(
                getattr(batch, name).__wrapped__, static_argnums=0, compiler_options=QUICKLY
            )
            patch.setattr(batch, name, program)
        yield


PROBLEMS = {
    "rober": (rober, (0.0, 100.0), [1.0, 0.0, 0.0], np.linspace(0.02, 0.08, 12)),
    "van der pol": (van_der_pol, (0.0, 2.0), [2.0, 0.0], np.geomspace(1.0, 1e3, 12)),
}


@pytest.mark.parametrize(
    ("problem", "engine", "solver"),
    [
        *((name, "kernels", EK1(order)) for name in PROBLEMS for order in (1, 2, 4)),
        *((name, "lanes", EK0(2)) for name in PROBLEMS),
        ("van der pol", "kernels", EK0(3)),
        pytest.param("van der pol", "vmapped", EK1(1), marks=pytest.mark.slow),
    ],
    ids=lambda x: x if isinstance(x, str) else x.name,
)
def test_who_reached_the_end_has_finite_values(problem, engine, solver):
    """Also at tolerances of the size of the solution: a member may fail, but not silently."""
    f, span, y0, parameters = PROBLEMS[problem]
    tolerances = np.repeat([1.0, 0.1, 0.01], len(parameters))
    found = probode.solve_ensemble(
        *(f, span, y0, (np.tile(parameters, 3),)),
        rtol=tolerances,
        atol=1e-4 * tolerances,
        solver=solver,
        engine=engine,
        calibration=BARS[engine],
        max_steps=2000,
    )
    done = found.success
    assert np.all(np.isfinite(found.mean[done])) and np.all(np.isfinite(found.std[done]))
    assert np.all(np.isnan(found.mean[~done]))
    if solver.jacobian == "full" and solver.order > 1:
        assert done.mean() > 0.9


def test_rober_blows_up_from_where_y2_is_negative():
    """What a tolerance on y2 allows that is larger than y2 itself.

    ``y2' = k1 y1 - 3e7 y2²`` (with ``y3 = 0``) has a second root, at ``-sqrt(k1 / 3e7) = -3.7e-5``:
    below it y2 goes to minus infinity, within about ``1 / (3e7 |y2|)``.
    """
    y2 = np.array([0.0, -2e-5, -1e-4, -1e-4, -1e-4])
    ends = np.array([1.0, 1.0, 1e-5, 1e-4, 1.0])
    y0 = np.stack([np.ones(5), y2, np.zeros(5)], axis=1)
    found = probode.solve_ensemble(
        rober, (0.0, ends), y0, (0.04,), solver=EK1(2), rtol=1e-3, atol=1e-8, engine="kernels"
    )
    assert found.success.tolist() == [True, True, True, True, False]
    assert found.status[4] in (Status.STEP_TOO_SMALL, Status.NOT_FINITE)
    assert np.all(np.isfinite(found.mean[:4])) and np.all(np.isnan(found.mean[4]))
    # The closed form while y1 and y3 hardly move: y2 = -r coth(3e7 r (T - t)), r = 3.7e-5.
    r = np.sqrt(0.04 / 3e7)
    left = np.arctanh(r / 1e-4) / (3e7 * r)
    expected = -r / np.tanh(3e7 * r * (left - ends[2:4]))
    np.testing.assert_allclose(found.mean[2:4, 0, 1], expected, rtol=0.02)


@pytest.mark.parametrize("engine", ENGINES)
def test_values_that_are_not_finite_are_no_success(engine, monkeypatch):
    names = {"lanes": "_solve_lanes", "kernels": "solve_one_by_one", "vmapped": "solve_vmapped"}
    original = getattr(engines, names[engine])

    def overflowing(*args, **options):
        found = original(*args, **options)
        results = found[0] if engine == "vmapped" else found
        mean = results.mean.copy()
        mean[1, -1, 0] = np.nan
        results = replace(results, mean=mean)
        return (results, None) if engine == "vmapped" else results

    monkeypatch.setattr(engines, names[engine], overflowing)
    found = probode.solve_ensemble(
        *(decay, (0, 1), [1.0], (np.array([0.5, 1.0, 2.0]),)),
        solver=EK0(2),
        engine=engine,
        rtol=1e-3,
        calibration=BARS[engine],
    )
    assert found.status.tolist() == [0, Status.NOT_FINITE, 0]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("bad", [0, 1], ids=["the first", "another"])
def test_parameters_that_are_nan_mark_their_member(engine, bad):
    rates = np.array([0.5, 1.0, 2.0])
    expected = np.exp(-rates)
    rates[bad] = np.nan
    found = probode.solve_ensemble(
        *(decay, (0, 1), [1.0], (rates,)),
        solver=EK0(2),
        engine=engine,
        rtol=1e-5,
        calibration=BARS[engine],
    )
    others = [i for i in range(3) if i != bad]
    assert found.failed.tolist() == [bad]
    assert found.status[bad] == Status.START_NOT_FINITE and np.isnan(found.mean[bad]).all()
    np.testing.assert_allclose(found.mean[others, 0, 0], expected[others], rtol=1e-3)


def saved(save_at, t_span=(0.0, 1.0), **options):
    rates = np.array([0.5, 1.0])
    return probode.solve_ensemble(
        decay, t_span, [1.0], (rates,), save_at=save_at, solver=EK0(2), rtol=1e-3, **options
    )


@pytest.mark.parametrize(
    ("save_at", "t_span", "words"),
    [
        (
            [0.5, 0.2],
            (0.0, 1.0),
            r"strictly monotone.*save_at\[1\] = 0.2 comes after .* numpy.unique",
        ),
        ([0.2, 0.2], (0.0, 1.0), "strictly monotone"),
        ([0.2, 0.5], (1.0, 0.0), "strictly monotone"),
        ([0.5, 1.1], (0.0, 1.0), r"between t0 and t1: save_at\[1\] = 1.1"),
        ([0.5, 1.0 + 1e-12], (0.0, 1.0), r"save_at\[1\] = 1.000000000001 is"),
        (
            np.linspace(-1.0, 1.0, 1001),
            (0.0, 1.0),
            r"save_at\[0\] = -1 is .* and so are 499 others",
        ),
        ([-0.1, 0.5], (0.0, 1.0), "between t0 and t1"),
        ([[0.1, 0.2], [0.3, 0.3]], (0.0, 1.0), "strictly monotone.*of member 1"),
        ([[0.1, 0.2], [0.3, 2.0]], (0.0, 1.0), "between t0 and t1.*of member 1"),
        ([0.1, np.nan], (0.0, 1.0), "save_at must be finite"),
        ([], (0.0, 1.0), "save_at must be a time"),
    ],
)
def test_save_points_are_checked(save_at, t_span, words):
    with pytest.raises(ValueError, match=words):
        saved(save_at if np.ndim(save_at) < 2 else np.array(save_at), t_span)


def test_a_save_point_that_is_nan_marks_its_member():
    found = saved(np.array([[0.1, np.nan], [0.3, 1.0]]), engine="vmapped")
    assert found.status.tolist() == [Status.START_NOT_FINITE, 0]
    np.testing.assert_allclose(found.mean[1, :, 0], np.exp([-0.3, -1.0]), rtol=1e-2)


def test_lanes_are_taken_when_they_are_asked_for():
    found = saved(None, engine="lanes", calibration="model")
    assert (found.engine, found.engine_reason) == ("lanes", "asked for")


def test_the_benchmark_says_how_many_failed():
    """One member without a result made all of its errors NaN."""
    reference = np.ones((4, 2))
    means = reference + 0.1
    means[2] = np.nan
    error, failed = error_of(means, reference)
    assert failed == 1 and np.isclose(error, 0.1)
    assert error_of(np.full((4, 2), np.nan), reference)[1] == 4
    with pytest.raises(ValueError, match="reference"):
        error_of(reference, means)


@pytest.mark.parametrize("version", [1, 2])
def test_files_in_memory_are_memory_that_is_free(tmp_path, version):
    names, mark = ["memory.max", "memory.current", "memory.stat"], ""
    if version == 1:
        names, mark = ["memory.limit_in_bytes", "memory.usage_in_bytes", "memory.stat"], "total_"
    folder = tmp_path if version == 2 else tmp_path / "memory"
    folder.mkdir(exist_ok=True)
    details = f"anon 5\n{mark}inactive_file 20\n{mark}active_file 10\n{mark}unevictable 3\n"
    for name, text in zip(names, ("100\n", "90\n", details), strict=True):
        (folder / name).write_text(text)
    assert limits._free_in_container(str(tmp_path)) == 40.0
