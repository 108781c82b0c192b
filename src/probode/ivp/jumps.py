"""Jumps at given times, and doses: what users say of them, checked."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from probode.model.doses import Doses
from probode.programs.inputs import Constant


class Jump(NamedTuple):
    """All that happens to the state at one time."""

    t: float
    maps: list[Callable[..., Any]]


def read_jumps(given: Any, table: Any, t0: float, tf: float) -> list[Jump]:
    """Jumps in the order in which they are met, those of one time together."""
    expected = "jumps must be a list of pairs (time, map) with map(t, y) -> y"
    pairs: list[tuple[float, Any]] = []
    try:
        listed = [] if given is None else [(float(t), function) for t, function in given]
    except (TypeError, ValueError) as error:
        raise TypeError(f"{expected}, got {given!r}: {error}.") from None
    for t, function in listed:
        if not callable(function):
            raise TypeError(f"{expected}, got {function!r} at t = {t:g}.")
        if not (t0 <= t < tf or t0 >= t > tf):
            raise ValueError(
                f"jumps must lie between t0 = {t0:g} and (before) tf = {tf:g}, got one at t = "
                f"{t:g}: leave it out, or apply it to y0 or to the final state."
            )
        pairs.append((t, function))
    if table is not None:
        if not isinstance(table, Doses):
            raise TypeError(f"doses must be made by probode.doses(...), got {table!r}.")
        if tf < t0:
            raise ValueError(
                f"doses are given forward in time: t_span must increase, got ({t0:g}, {tf:g})."
            )
        if len(table) and np.min(table.times) < t0:
            raise ValueError(
                f"doses must not be given before t0 = {t0:g}, got one at t = "
                f"{np.min(table.times):g}: begin earlier, or put what is left of it into y0."
            )
        pairs += [pair for pair in table.jumps if pair[0] < tf]
    times = sorted({t for t, _ in pairs}, reverse=tf < t0)
    return [Jump(t, [function for when, function in pairs if when == t]) for t in times]


def infused_by(fun: Callable[..., Any], table: Doses, rate: Constant, n: int) -> Callable[..., Any]:
    """``fun`` with what flows into compartments."""
    into = {int(c): j for j, c in enumerate(table.infused)}

    def infused(t: Any, y: Any, *args: Any) -> Any:
        value, flow = fun(t, y, *args), rate(t)
        if n == 1 and not hasattr(value, "__getitem__"):
            return [value + flow[0]]
        return [value[i] + flow[into[i]] if i in into else value[i] for i in range(n)]

    return infused


def check_compartments(table: Any, n: int) -> None:
    """Refuse doses into components that a state of ``n`` does not have."""
    if isinstance(table, Doses) and np.any(table.compartments >= n):
        raise ValueError(
            f"doses go into compartment {int(np.max(table.compartments))}, and the state has "
            f"{n} component{'s' if n != 1 else ''}: 0 to {n - 1}."
        )
