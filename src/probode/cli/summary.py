"""What the command line says of a solve: the run, its figures as one record, and that in words."""

import dataclasses
import math
import time
from typing import Any

import numpy as np

from probode.filter.control import PControl, PIControl
from probode.filter.solvers import Solver
from probode.filter.start import INITIALIZATIONS
from probode.ivp.front_door import solve_ivp
from probode.posterior.posterior import Posterior
from probode.problems import InitialValueProblem

_SHOWN = 6
_CHEAP_SECONDS = 2.0


def run(
    problem: InitialValueProblem,
    method: Solver | str,
    control: PControl,
    *,
    smooth: bool = True,
    max_steps: int | None = None,
    time_limit: float | None = None,
    **options: Any,
) -> tuple[Posterior, dict[str, Any]]:
    """Solve, measure the time, and collect what there is to say.

    ``options`` are those of :func:`solve_ivp` that go with a ``method`` given by name.
    """

    def call(limit: float | None) -> tuple[Posterior, float]:
        begin = time.perf_counter()
        result = solve_ivp(
            problem.vector_field,
            problem.t_span,
            problem.y0,
            method,
            args=problem.args,
            control=control,
            smooth=smooth,
            max_num_steps=max_steps,
            time_limit=limit,
            **options,
        )
        return result.posterior, time.perf_counter() - begin

    posterior, first = call(time_limit)
    second = None
    if posterior.success and options.get("checkpoint") is None:  # its steps are read, not taken
        again, seconds = call(min(_CHEAP_SECONDS, time_limit or math.inf))
        second = seconds if again.success else None

    stats: Any = posterior.stats
    solver = posterior.solver
    mean, std = posterior.mean[-1], posterior.std[-1]
    error = None
    if problem.exact is not None:
        error = np.abs(mean - problem.exact(posterior.t[-1]))
    elif problem.reference_end is not None and posterior.success:
        error = np.abs(mean - problem.reference_end)
    summary = {
        "problem": problem.name,
        "dimension": problem.dimension,
        "method": type(solver).__name__,
        "order": solver.order,
        "solver": solver.name,
        "diffusion": solver.diffusion.name,
        "initialization": next(k for k, v in INITIALIZATIONS.items() if v == solver.initialization),
        "control": "PI" if isinstance(control, PIControl) else "P",
        "rtol": control.rtol,
        "atol": control.atol,
        "smooth": smooth,
        "t_span": list(problem.t_span),
        "t_reached": float(posterior.t[-1]),
        "success": bool(posterior.success),
        "status": posterior.status.name,
        "message": posterior.message,
        **{
            field.name: int(getattr(stats, field.name))
            for field in dataclasses.fields(stats)
            if field.name != "path"
        },
        "path": stats.path,
        "engine": posterior.engine,
        "mean": numbers(mean),
        "std": numbers(std),
        "error": None if error is None else numbers(error),
        "max_error": None if error is None else numbers([error.max()])[0],
        "reference": None if error is None else problem.reference_source,
        "first_call_seconds": first,
        "second_call_seconds": second,
        "figure": None,
    }
    return posterior, summary


def numbers(values: Any) -> list[float | None]:
    """Floats as JSON can hold them: what is not finite becomes null."""
    return [float(value) if math.isfinite(value) else None for value in np.ravel(values)]


def in_words(summary: dict[str, Any]) -> str:
    """The record as lines for a reader."""

    def number(value: float | None, form: str) -> str:
        return "nan" if value is None else format(value, form)

    s = summary
    t0, t1 = s["t_span"]
    kind = "smoothed" if s["smooth"] else "filtered"
    interval = f"{t0:g} to {t1:g}"
    if not s["success"]:
        interval += f", stopped at {s['t_reached']:.6g}"
    rows = [
        ("problem", f"{s['problem']}, d = {s['dimension']}, t from {interval}"),
        ("method", f"{s['solver']}, {s['diffusion']} diffusion, {kind}"),
        ("control", f"{s['control']}, rtol {s['rtol']:g}, atol {s['atol']:g}"),
        ("steps", f"{s['steps']}, of which {s['rejected']} rejected"),
        ("evaluations", f"{s['f_evaluations']} of f, {s['jacobian_evaluations']} of its Jacobian"),
    ]
    label = "final value" if s["success"] else "last value"
    errors = s["error"] or [None] * s["dimension"]
    for i, (mean, std, error) in enumerate(zip(s["mean"], s["std"], errors, strict=True)):
        if i == _SHOWN:
            rows.append(("", f"... and {s['dimension'] - _SHOWN} more components"))
            break
        line = f"{number(mean, '.10g'):>17} ± {number(std, '.1e')}"
        line += f"   error {number(error, '.1e')}" if s["error"] is not None else ""
        rows.append((label if i == 0 else "", f"y{i + 1:<3}{line}"))
    if s["error"] is not None:
        rows.append(("max error", number(s["max_error"], ".1e")))
        rows.append(("reference", s["reference"]))
    rows.append(("first call", f"{s['first_call_seconds']:.2f} s, compiling included"))
    if s["second_call_seconds"] is not None:
        rows.append(("second call", f"{s['second_call_seconds']:.3f} s"))
    for record in s.get("t_eval", []):
        shown = ", ".join(
            f"{number(m, '.10g')} ± {number(d, '.1e')}"
            for m, d in zip(record["mean"][:_SHOWN], record["std"], strict=False)
        )
        rows.append((f"t = {record['t']:g}", shown))
    if s.get("saved") is not None:
        rows.append(("saved", s["saved"]))
    if s["figure"] is not None:
        rows.append(("figure", s["figure"]))
    return "\n".join(f"{name:<13}{value}" for name, value in rows)
