"""Time to an error: interpolated, compared, and written as CSV and Markdown."""

import csv
import dataclasses
import itertools
import math
from collections.abc import Iterable, Sequence
from pathlib import Path

from benchmarks import problems
from benchmarks.measure import Point, Results
from benchmarks.solvers import SOLVERS

TARGETS = (1e-4, 1e-6, 1e-8, 1e-10)
POINT_COLUMNS = (
    *("problem", "solver", "tol", "error", "seconds", "fastest"),
    *("repetitions", "steps", "evaluations"),
)
TABLE_COLUMNS = (
    *("problem", "solver", "target", "seconds", "bound", "ratio_to_ours", "ratio_to_counterpart"),
    *("first_call_s", "compile_s", "memory_mib", "notes"),
)


@dataclasses.dataclass(frozen=True)
class Time:
    """Seconds to reach an error; ``bound`` where even the loosest tolerance does better."""

    seconds: float
    bound: bool = False


def envelope(points: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """The ``(error, seconds)`` that no other beats in both, from the largest error down."""
    front: list[tuple[float, float]] = []
    for error, seconds in sorted(points):
        # From accurate to sloppy: a sloppier point counts only where it is faster.
        if math.isfinite(error) and (not front or seconds < front[-1][1]):
            front.append((max(error, 1e-17), seconds))
    return front[::-1]


def time_to_error(points: Iterable[tuple[float, float]], target: float) -> Time | None:
    """Seconds at which the envelope reaches ``target``: log-log interpolation, no extrapolation.

    ``None`` where no point is as accurate as ``target``; where all are more accurate, the time of
    the fastest, marked as a bound.
    """
    front = envelope(points)
    if not front or front[-1][0] > target:
        return None
    if front[0][0] <= target:
        return Time(front[0][1], bound=front[0][0] < target)
    for (e0, s0), (e1, s1) in itertools.pairwise(front):
        if e1 <= target <= e0:
            part = math.log(e0 / target) / math.log(e0 / e1)
            return Time(math.exp(math.log(s0) + part * math.log(s1 / s0)))
    raise AssertionError("the front is sorted")


@dataclasses.dataclass(frozen=True)
class Row:
    """One solver on one problem."""

    problem: str
    solver: str
    family: str
    times: tuple[Time | None, ...]
    to_ours: tuple[float | None, ...]
    """Its time over the best of ours (final state)."""
    to_counterpart: tuple[float | None, ...]
    """Its time over that of our solver of the same method and order."""
    first: float | None
    """Seconds for import and first solve in a fresh process."""
    compiled: float | None
    """Seconds of the first solve in a warm process."""
    memory: float | None
    notes: str


def rows(results: Results, targets: Sequence[float] = TARGETS) -> list[Row]:
    """The table, by problem and solver."""
    times: dict[tuple[str, str], tuple[Time | None, ...]] = {}
    for key, points in by_curve(results.points).items():
        curve = [(point.error, point.seconds) for point in points]
        times[key] = tuple(time_to_error(curve, target) for target in targets)
    keys = {*times, *results.notes}
    names = list(dict.fromkeys(problem for problem, _ in keys))
    order = {name: i for i, name in enumerate(problems.NAMES)}
    table = []
    for problem in sorted(names, key=lambda name: order.get(name, -1)):
        best = _best(times, problem, "probode", len(targets))
        for solver in SOLVERS.values():
            key = (problem, solver.name)
            if key not in keys:
                continue
            own = times.get(key, (None,) * len(targets))
            same = times.get((problem, solver.counterpart), (None,) * len(targets))
            first = results.first.get(key)
            table.append(
                Row(
                    problem,
                    solver.name,
                    solver.family,
                    own,
                    tuple(map(_ratio, own, best)),
                    tuple(map(_ratio, own, same)),
                    None if first is None else (first["imported"] or 0) + (first["solved"] or 0),
                    results.compiled.get(key),
                    None if first is None else first["memory"],
                    "; ".join(results.notes.get(key, [])),
                )
            )
    return table


def by_curve(points: Iterable[Point]) -> dict[tuple[str, str], list[Point]]:
    """The points of each solver on each problem."""
    curves: dict[tuple[str, str], list[Point]] = {}
    for point in points:
        curves.setdefault((point.problem, point.solver), []).append(point)
    return curves


def _best(
    times: dict[tuple[str, str], tuple[Time | None, ...]], problem: str, family: str, count: int
) -> tuple[Time | None, ...]:
    """The fastest of a family, for each target."""
    own = [t for (p, s), t in times.items() if p == problem and SOLVERS[s].family == family]
    return tuple(
        min((t[i] for t in own if t[i]), key=lambda t: t.seconds, default=None)  # type: ignore
        for i in range(count)
    )


def _ratio(a: Time | None, b: Time | None) -> float | None:
    return None if a is None or b is None else a.seconds / b.seconds


def write_points(results: Results, path: Path) -> None:
    """All measured points as CSV, under a header of comments."""
    with path.open("w", newline="") as file:
        _write_header(results, file)
        writer = csv.writer(file)
        writer.writerow(POINT_COLUMNS)
        for p in results.points:
            numbers = (p.tol, p.error, p.seconds, min(p.times))
            counts = (len(p.times), p.steps, p.evaluations)
            writer.writerow([p.problem, p.solver, *map("{:.4e}".format, numbers), *counts])


def write_csv(results: Results, table: list[Row], path: Path) -> None:
    """The table as CSV, one line per target."""
    with path.open("w", newline="") as file:
        _write_header(results, file)
        writer = csv.writer(file)
        writer.writerow(TABLE_COLUMNS)
        for row in table:
            common = (_plain(row.first), _plain(row.compiled), _plain(row.memory), row.notes)
            for i, target in enumerate(TARGETS):
                time = row.times[i]
                reached = ("", "") if time is None else (f"{time.seconds:.4e}", int(time.bound))
                ratios = (_plain(row.to_ours[i]), _plain(row.to_counterpart[i]))
                writer.writerow(
                    [row.problem, row.solver, f"{target:.0e}", *reached, *ratios, *common]
                )


def _write_header(results: Results, file: object) -> None:
    for key, value in results.header.items():
        file.write(f"# {key}: {value}\n")  # type: ignore[attr-defined]


def _plain(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


def seconds_text(time: Time | None) -> str:
    """A time with its unit, such as ``1.2 ms``."""
    if time is None:
        return "-"
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if time.seconds >= size or unit == "µs":
            return f"{'≤ ' if time.bound else ''}{time.seconds / size:.3g} {unit}"
    raise AssertionError


def ratio_text(value: float | None) -> str:
    """A ratio such as ``3.4``; ``-`` where there is none."""
    return "-" if value is None else f"{value:.2g}" if value < 100 else f"{value:.0f}"
