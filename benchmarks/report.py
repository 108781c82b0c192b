"""The tables for people: Markdown, one summary and one table for each problem."""

from collections.abc import Callable, Sequence

from benchmarks import problems
from benchmarks.measure import Results
from benchmarks.table import TARGETS, Row, Time, ratio_text, seconds_text

PEERS = ("probdiffeq", "diffrax", "SciPy", "CVODE")


def markdown(results: Results, table: list[Row]) -> str:
    """Everything: header, summary, details."""
    names = list(dict.fromkeys(row.problem for row in table))
    parts = ["# Work-precision", *[f"- {k}: {v}" for k, v in results.header.items()], ""]
    parts += ["## Summary", "", summary(table), ""]
    for name in names:
        parts += [f"## {_title(name)}", "", _details([r for r in table if r.problem == name]), ""]
    return "\n".join(parts)


def summary(table: list[Row], targets: Sequence[float] = TARGETS) -> str:
    """For each problem and error: our best, and the fastest of each peer as a multiple of it.

    Above one, the peer is slower.
    """
    columns = ["problem", "error", "ours, best", "our smoother / final state"]
    columns += ["probdiffeq / ours, same method and order"]
    columns += [f"{peer} / ours, best" for peer in PEERS]
    lines = [_line(columns), _line(["---"] * len(columns))]
    for name in dict.fromkeys(row.problem for row in table):
        own = [row for row in table if row.problem == name]
        for target in targets:
            i = TARGETS.index(target)
            best = _fastest(own, "probode", i)
            cells = [_title(name), f"{target:.0e}", _named(best, i)]
            cells += [_counterparts(own, family, i) for family in ("smoother", "probdiffeq")]
            for peer in PEERS:
                row = _fastest(own, peer, i)
                cells.append("-" if row is None else f"{_ratio(row, i)} {_method(row)}")
            lines.append(_line(cells))
    return "\n".join(lines)


def _details(own: list[Row]) -> str:
    columns = ["solver", *[f"{target:.0e}" for target in TARGETS]]
    columns += ["first call", "warm compile", "memory", "notes"]
    lines = [_line(columns), _line(["---"] * len(columns))]
    for row in own:
        cells = [row.solver]
        for i, time in enumerate(row.times):
            text = seconds_text(time)
            if time is not None and row.to_ours[i] is not None:
                text += f" ({ratio_text(row.to_ours[i])})"
            if row.to_counterpart[i] is not None:
                text += f" [{ratio_text(row.to_counterpart[i])}]"
            cells.append(text)
        cells += [_with("{:.2f} s", row.first), _with("{:.2f} s", row.compiled)]
        cells += [_with("{:.0f} MiB", row.memory), row.notes.replace("|", "/")]
        lines.append(_line(cells))
    return "\n".join(lines)


def _with(form: str, value: float | None) -> str:
    return "-" if value is None else form.format(value)


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _title(name: str) -> str:
    return problems.get(name).title if name in problems.NAMES else name


def _method(row: Row) -> str:
    return row.solver.removeprefix(f"{row.family} ").removeprefix("probode ")


def _named(row: Row | None, i: int) -> str:
    return "-" if row is None else f"{seconds_text(row.times[i])} {_method(row)}"


def _ratio(row: Row, i: int) -> str:
    return ratio_text(row.to_ours[i]) if row.to_ours[i] is not None else seconds_text(row.times[i])


def _seconds(i: int) -> Callable[[Row], float]:
    def seconds(row: Row) -> float:
        time = row.times[i]
        assert isinstance(time, Time)
        return time.seconds

    return seconds


def _fastest(own: list[Row], family: str, i: int) -> Row | None:
    reached = [row for row in own if row.family == family and row.times[i] is not None]
    return min(reached, key=_seconds(i), default=None)


def _counterparts(own: list[Row], family: str, i: int) -> str:
    """Ratios to our final-state solver of the same method and order: the range over them."""
    of_family = [row.to_counterpart[i] for row in own if row.family == family]
    ratios = sorted(ratio for ratio in of_family if ratio is not None)
    if not ratios:
        return "-"
    low, high = ratio_text(ratios[0]), ratio_text(ratios[-1])
    return low if len(ratios) == 1 else f"{low} to {high}"
