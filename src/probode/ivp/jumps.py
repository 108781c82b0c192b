"""``solve_ivp`` with jumps of the state: piece by piece, with error bars that go through."""

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from probode.base.limits import Limits
from probode.filter.given import break_times
from probode.ivp.options import Options
from probode.ivp.result import Embedding, OdeResult, Solution, state_at
from probode.ivp.run import Carried
from probode.model.doses import Doses
from probode.model.equation import Equation
from probode.model.implicit import Implicit
from probode.posterior.pieces import PiecewisePosterior, columns_at_end, through
from probode.posterior.posterior import Posterior
from probode.programs.inputs import Constant

_STEP = float(np.finfo(float).eps) ** (1 / 3)
"""Of central differences, as part of a component."""
_NOT_WITH = ("grid", "global_rtol", "global_atol", "mass_matrix")


class Jump(NamedTuple):
    """All that happens to the state at one time."""

    t: float
    maps: list[Callable[..., Any]]

    def after(self, y: np.ndarray, args: tuple[Any, ...]) -> np.ndarray:
        """The state after it."""
        for function in self.maps:
            found = np.asarray(function(self.t, y.copy(), *args[: _takes(function)]))
            if found.shape != y.shape:
                raise ValueError(
                    f"a jump must return a state like the one it is given, shape {y.shape}, got "
                    f"shape {found.shape} at t = {self.t:g}."
                )
            if np.iscomplexobj(found) and not np.iscomplexobj(y):
                raise ValueError(f"a jump made a real state complex at t = {self.t:g}.")
            if not np.all(np.isfinite(found)):
                raise ValueError(f"a jump returned NaN or Inf at t = {self.t:g}, from y = {y}.")
            y = found.astype(y.dtype)
        return y

    def jacobian(
        self, embedding: Embedding, u: np.ndarray, std: np.ndarray, args: tuple[Any, ...]
    ) -> np.ndarray:
        """Of :meth:`after` on the real form of the state, by central differences."""
        size = np.maximum(np.abs(u), 1e-3 * np.max(np.abs(u), initial=0.0))
        size = np.where(size > 0.0, size, 1.0)
        steps = np.maximum(_STEP * size, std)
        columns = []
        for i, h in enumerate(steps):
            ends = []
            for sign in (1.0, -1.0):
                moved = u.copy()
                moved[i] += sign * h
                value = self.after(embedding.values(moved), args)
                ends.append((moved[i], embedding.flatten(value)))
            (right, above), (left, below) = ends
            columns.append((above - below) / (right - left))
        return np.stack(columns, axis=1)


def _takes(function: Any) -> int | None:
    """How many arguments a map takes after ``(t, y)``; ``None``: all."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return None
    if any(one.kind is one.VAR_POSITIONAL for one in parameters):
        return None
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return max(sum(one.kind in kinds for one in parameters) - 2, 0)


def read_jumps(given: Any, table: Any, t0: float, tf: float) -> list[Jump]:
    """Jumps in the order of their times, those of one time together."""
    expected = "jumps must be a list of pairs (time, map) with map(t, y) -> y"
    pairs: list[tuple[float, Any]] = []
    try:
        listed = [] if given is None else [(float(t), function) for t, function in given]
    except (TypeError, ValueError) as error:
        raise TypeError(f"{expected}, got {given!r}: {error}.") from None
    for t, function in listed:
        if not callable(function):
            raise TypeError(f"{expected}, got {function!r} at t = {t:g}.")
        if not t0 <= t < tf:
            raise ValueError(
                f"jumps must lie between t0 = {t0:g} and (before) tf = {tf:g}, got one at t = "
                f"{t:g}: leave it out, or apply it to y0 or to the final state."
            )
        pairs.append((t, function))
    if table is not None:
        if not isinstance(table, Doses):
            raise TypeError(f"doses must be made by probode.doses(...), got {table!r}.")
        if len(table) and np.min(table.times) < t0:
            raise ValueError(
                f"doses must not be given before t0 = {t0:g}, got one at t = "
                f"{np.min(table.times):g}: begin earlier, or put what is left of it into y0."
            )
        pairs += [pair for pair in table.jumps if pair[0] < tf]
    times = sorted({t for t, _ in pairs})
    return [Jump(t, [function for when, function in pairs if when == t]) for t in times]


def _infused(fun: Callable[..., Any], table: Doses, rate: Constant, n: int) -> Callable[..., Any]:
    """``fun`` with what flows into compartments."""
    into = {int(c): j for j, c in enumerate(table.infused)}

    def infused(t: Any, y: Any, *args: Any) -> Any:
        value, flow = fun(t, y, *args), rate(t)
        if n == 1 and not hasattr(value, "__getitem__"):
            return [value + flow[0]]
        return [value[i] + flow[into[i]] if i in into else value[i] for i in range(n)]

    return infused


def with_jumps(
    solve: Callable[..., OdeResult],
    chosen: Options,
    fun: Any,
    t_span: Any,
    y0: Any,
    method: Any,
    times: np.ndarray | None,
    dense_output: bool,
    events: Any,
    vectorized: bool,
    args: Any,
) -> OdeResult:
    """Solve piece by piece with ``solve``; each begins with what a jump has made of the last.

    ``solve`` takes options, what is ``carried``, and the arguments of ``solve_ivp`` by name.
    """
    t0, tf = (float(t) for t in t_span)
    _refuse(chosen, fun, method, events, t0, tf)
    arguments = () if args is None else tuple(args)
    jumps = read_jumps(chosen.jumps, chosen.doses, t0, tf)
    table, known = chosen.doses, []
    if table is not None:
        _check_compartments(table, np.size(y0))
        rate = table.rate
        if rate is not None:
            fun, known = _infused(fun, table, rate, np.size(y0)), [rate]
    breaks = break_times(chosen.breakpoints, known, t0, tf, True)
    limits = Limits.read(chosen.time_limit, chosen.max_memory)
    ends = [jump.t for jump in jumps if jump.t > t0] + [tf]
    if jumps and jumps[0].t == t0:
        y0 = jumps.pop(0).after(_as_state(y0), arguments)
    results: list[OdeResult] = []
    jacobians: list[np.ndarray] = []
    carried, begin, state = None, t0, y0
    for number, end in enumerate(ends):
        result = solve(
            _options_of_piece(chosen, breaks, (begin, end), limits, results),
            carried=carried,
            fun=fun,
            t_span=(begin, end),
            y0=state,
            method=method,
            t_eval=None,
            dense_output=False,
            events=events,
            vectorized=vectorized,
            args=args,
        )
        results.append(result)
        if result.status != 0 or number == len(jumps):
            break
        carried, jacobian, state = _across(jumps[number], result.posterior, arguments)
        jacobians.append(jacobian)
        begin = end
    pieces = tuple(result.posterior for result in results)
    posterior = PiecewisePosterior(pieces, tuple(jacobians[: len(pieces) - 1]))
    return _joined(posterior, results, times, dense_output)


def _refuse(chosen: Options, fun: Any, method: Any, events: Any, t0: float, tf: float) -> None:
    if not t0 < tf:
        raise ValueError(f"jumps go forward in time: t_span must increase, got ({t0:g}, {tf:g}).")
    for name in _NOT_WITH:
        if getattr(chosen, name) is not None:
            raise ValueError(f"jumps and doses cannot be combined with {name}: leave it out.")
    name = method if isinstance(method, str) else getattr(method, "name", "")
    large = name.startswith("SparseEK1")
    if large or isinstance(fun, Implicit):
        what = "SparseEK1" if large else type(fun).__name__
        raise ValueError(f"jumps and doses are not for {what}: use EK1 (or EK0) and fun(t, y).")
    table = chosen.doses
    flows = isinstance(table, Doses) and table.rate is not None
    if flows and (isinstance(fun, Equation) or chosen.second_order):
        raise ValueError("infusions are for fun(t, y) of first order: write it as a system.")
    functions = events if isinstance(events, list | tuple) else [events]
    if any(getattr(one, "terminal", 0) not in (0, 1, False, True) for one in functions):
        raise ValueError("with jumps, events may end the solve at the first time only.")


def _check_compartments(table: Any, n: int) -> None:
    if isinstance(table, Doses) and np.any(table.compartments >= n):
        raise ValueError(
            f"doses go into compartment {int(np.max(table.compartments))}, and the state has "
            f"{n} component{'s' if n != 1 else ''}: 0 to {n - 1}."
        )


def _as_state(y0: Any) -> np.ndarray:
    y = np.asarray(y0)
    return y.astype(complex if np.iscomplexobj(y) else float).reshape(-1)


def _options_of_piece(
    chosen: Options,
    breaks: np.ndarray,
    span: tuple[float, float],
    limits: Limits,
    before: list[OdeResult],
) -> Options:
    """Options of one piece: what is left of time and steps, and what lies within it."""
    begin, end = span
    inside = breaks[(breaks >= begin) & (breaks <= end)]
    made: dict[str, Any] = {"breakpoints": inside, "jumps": None, "doses": None}
    if chosen.first_step is not None:
        made["first_step"] = None if before else min(chosen.first_step, end - begin)
    if chosen.time_limit is not None:
        made["time_limit"] = max(limits.left, 1e-3)
    if chosen.max_num_steps is not None:
        taken = sum(int(result.posterior.stats.steps) for result in before)
        made["max_num_steps"] = max(chosen.max_num_steps - taken, 1)
    return chosen._replace(**made)


def _across(
    jump: Jump, posterior: Posterior, args: tuple[Any, ...]
) -> tuple[Carried, np.ndarray, np.ndarray]:
    """What a jump makes of the end of a piece: its uncertainty, the Jacobian, the state."""
    embedding, method = Embedding.of(posterior), posterior.method
    if not posterior.solver.smooths:
        raise ValueError(
            f"jumps and doses are not for {posterior.solver.name}, which was taken for a large "
            "system: pass a solver such as probode.EK0() or probode.EK1()."
        )
    u, std = (np.asarray(x[-1]) for x in state_at(posterior))
    state = jump.after(embedding.values(u), args)
    jacobian = jump.jacobian(embedding, u, std, args)
    columns = through(method.structure, columns_at_end(posterior), jacobian)
    made = posterior.calibration
    error = None if made is None else jacobian @ np.asarray(made.error[-1])
    return Carried(columns, error), jacobian, state


def _joined(
    posterior: PiecewisePosterior,
    results: list[OdeResult],
    times: np.ndarray | None,
    dense_output: bool,
) -> OdeResult:
    """One result from those of all pieces."""
    last, embedding = results[-1], Embedding.of(posterior.first)
    t: Any = np.concatenate([result.t for result in results])
    y, y_std = (np.concatenate([result[name] for result in results], 1) for name in ("y", "y_std"))
    nodes = np.unique(t)
    if times is not None:
        t = times[times <= nodes[-1]]
        at: Any = posterior
        mean, std = state_at(at, t)
        y, y_std = embedding.values(mean).T, embedding.stds(std).T
    found: dict[str, Any] = {}
    for name in ("t_events", "y_events", "t_events_std"):
        parts = [result[name] for result in results]
        known = parts[0] is not None
        found[name] = [_stacked(rows) for rows in zip(*parts, strict=True)] if known else None
    any_posterior: Any = posterior
    return OdeResult(
        t=t,
        y=y,
        sol=Solution(any_posterior, embedding, nodes) if dense_output else None,
        **found,
        **{name: sum(result[name] for result in results) for name in ("nfev", "njev", "nlu")},
        status=last.status,
        message=last.message,
        success=last.success,
        y_std=y_std,
        posterior=posterior,
        path=last.path,
    )


def _stacked(rows: tuple[Any, ...]) -> Any:
    some = [np.asarray(row) for row in rows if len(row)]
    return np.concatenate(some) if some else rows[0]
