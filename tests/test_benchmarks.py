"""The benchmark's own arithmetic, and one small run of it."""

import csv
import math

import pytest

from benchmarks import __main__ as command
from benchmarks import measure, problems, report, solvers, table


def curve(order, errors=(1e-3, 1e-5, 1e-7, 1e-9)):
    """A method of this order: the time grows like ``error ** (-1 / order)``."""
    return [(error, 1e-3 * error ** (-1 / order)) for error in errors]


@pytest.mark.parametrize("target", [1e-4, 1e-6, 3e-8])
def test_a_power_law_is_interpolated_exactly(target):
    time = table.time_to_error(curve(5), target)
    assert time.seconds == pytest.approx(1e-3 * target ** (-1 / 5), rel=1e-12)
    assert not time.bound


def test_an_error_that_no_point_reaches_has_no_time():
    assert table.time_to_error(curve(5), 1e-10) is None


def test_without_points_there_is_no_time():
    assert table.time_to_error([], 1e-4) is None


def test_more_accurate_than_asked_is_a_bound_not_an_extrapolation():
    points = curve(5, errors=(1e-7, 1e-9))
    time = table.time_to_error(points, 1e-4)
    assert time.seconds == min(seconds for _, seconds in points)
    assert time.bound


def test_points_that_others_beat_in_both_do_not_count():
    good = curve(5)
    worse = [(2 * error, 3 * seconds) for error, seconds in good]
    assert table.envelope(good + worse) == table.envelope(good)


def test_failed_points_do_not_count():
    assert table.envelope([(math.inf, 1e-6), (math.nan, 1e-6), *curve(4)]) == curve(4)


def results_with(times):
    """Results on Lotka-Volterra whose solvers take a fixed time, whatever the error."""
    results = measure.Results({"cpu": "none"})
    for solver, seconds in times.items():
        for error in (1e-3, 1e-11):
            point = measure.Point("lotka-volterra", solver, error, error, 1, 1, seconds)
            point.times = [seconds, seconds, 100 * seconds]
            results.points.append(point)
    return results


def test_ratios_are_to_the_best_of_ours_and_to_the_counterpart():
    results = results_with(
        {"probode EK1(3)": 4.0, "probode EK1(5)": 2.0, "probdiffeq EK1(3)": 40.0}
    )
    rows = {row.solver: row for row in table.rows(results)}
    peer = rows["probdiffeq EK1(3)"]
    assert peer.to_ours == pytest.approx([20.0] * 4)
    assert peer.to_counterpart == pytest.approx([10.0] * 4)
    assert rows["probode EK1(5)"].to_ours == pytest.approx([1.0] * 4)
    assert rows["probode EK1(5)"].to_counterpart == (None,) * 4


def test_what_was_not_reached_is_a_dash_and_what_was_left_out_is_said():
    results = results_with({"probode EK1(5)": 2.0})
    results.note("lotka-volterra", "diffrax Tsit5", "diffrax is not installed")
    text = report.markdown(results, table.rows(results))
    assert "| diffrax Tsit5 | - | - | - | - |" in text
    assert "diffrax is not installed" in text


def test_tolerances_include_both_ends():
    problem = problems.get("lotka-volterra")
    chosen = measure.tolerances(problem, 2.0)
    assert (math.log10(chosen[0]), math.log10(chosen[-1])) == pytest.approx(problem.tolerances)


@pytest.mark.parametrize("name", problems.NAMES)
def test_both_forms_of_a_problem_agree(name):
    import jax
    import numpy as np

    problem = problems.get(name)
    ivp = problem.jax
    y = ivp.y0 * 1.01 + 0.003
    with jax.enable_x64(True):
        expected = np.asarray(ivp.vector_field(0.0, y, *ivp.args))
    found = np.asarray(problem.numpy(0.0, y))
    assert found == pytest.approx(expected, rel=1e-10, abs=1e-10 * np.abs(expected).max())


def test_a_peer_that_is_not_installed_is_named(monkeypatch, tmp_path):
    monkeypatch.setattr(solvers.Solver, "available", lambda self: False)
    results = measure.Results({})
    problem = problems.get("lotka-volterra")
    measure.sweep(results, problem, ["diffrax Tsit5"], measure.QUICK, tmp_path)
    assert results.notes["lotka-volterra", "diffrax Tsit5"] == ["diffrax is not installed"]


@pytest.mark.slow
def test_a_small_run_from_end_to_end(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    names = ["probode EK1(3)", "SciPy DOP853"]
    arguments = ["--quick", "--no-first", "--problems", "lotka-volterra", "--solvers", *names]
    assert command.main(["work_precision", *arguments, "--out", str(tmp_path)]) == 0
    with (tmp_path / "table.csv").open() as file:
        lines = [line for line in file if not line.startswith("#")]
    rows = list(csv.DictReader(lines))
    assert {row["solver"] for row in rows} == {*names, "probode EK1(3) smoother"}
    reached = [row for row in rows if row["target"] == "1e-08"]
    assert all(float(row["seconds"]) > 0 for row in reached)
    assert (tmp_path / "work_precision-lotka-volterra.png").stat().st_size > 10_000
    assert "Lotka-Volterra" in capsys.readouterr().out
