"""A posterior at a glance: as text, and as HTML for notebooks."""

from html import escape
from math import floor, isfinite, log10
from typing import Any

import jax
import numpy as np

from probode.base.precision import is_traced
from probode.posterior.curves import few, steps_grow
from probode.posterior.paths import NodePath
from probode.posterior.posterior import Posterior, component_names, one_solve
from probode.posterior.small_figure import small_figure

_TEXT_VALUES = 4
_HTML_VALUES = 6
_DIGITS = 16
"""Significant digits that a double holds for certain, and one more."""
_PLAIN = (1e-4, 1e7)
"""Numbers of this size are written without an exponent."""
_WIDTH, _HEIGHT = 120.0, 22.0
_MARK_COLORS = {True: "#2a9d5c", False: "#e05252"}
_CURVE_COLORS = "#3f8fd2", "#d9822b"
"""Of medium lightness, to be seen on light and on dark pages."""
_MOST_POINTS = 200


def value_with_std(value: float, std: float) -> str:
    """The value rounded to the digits that its standard deviation supports.

    The standard deviation has one significant digit, or two if the first is a one.

    Examples
    --------
    >>> value_with_std(1.0263447698, 6.1e-8)
    '1.02634477 ± 6e-08'
    >>> value_with_std(-0.12345, 0.0123)
    '-0.123 ± 0.012'
    """
    value, std = float(value), float(std)
    if not isfinite(value) or not isfinite(std) or std <= 0.0:
        return f"{value:.{_DIGITS}g} ± {std:g}"
    digits = 1 if f"{std:.0e}"[0] == "1" else 0
    rounded = f"{std:.{digits}e}"
    # Powers of ten: of the last digit of the standard deviation, and of the value's first and last.
    smallest = int(rounded.partition("e")[2]) - digits
    first = floor(log10(abs(value))) if value else smallest
    last = max(smallest, first - _DIGITS + 1)
    if not value:
        shown = "0"
    elif not _PLAIN[0] <= abs(value) < _PLAIN[1]:
        shown = f"{value:.{max(first - last, 0)}e}"
    else:
        shown = f"{round(value, -last):.{max(-last, 0)}f}"
    if _PLAIN[0] <= std < _PLAIN[1]:
        rounded = f"{float(rounded):.{max(-smallest, 0)}f}"
    return f"{shown} ± {rounded}"


def text(posterior: Posterior) -> str:
    """What ``print(posterior)`` shows."""
    unusual = _not_one_solve(posterior)
    if unusual is not None:
        return f"<Posterior of {posterior.solver.name}, {unusual}>"
    posterior = one_solve(posterior, "repr")
    lines = [f"Posterior of {_method(posterior)}", f"  {_interval(posterior)}"]
    final = _final_values(posterior, _TEXT_VALUES)
    if final:
        more = ", ..." if np.prod(posterior.shape) > len(final) else ""
        lines.append(f"  final value: {', '.join(final)}{more}")
    lines += [f"  {line}" for line in (cost(posterior), *_data(posterior), posterior.message)]
    if posterior.calibration is not None:
        lines += [f"  {line}" for line in posterior.diagnose().verdict.splitlines()]
    return "\n".join(lines)


def html(posterior: Posterior) -> str | None:
    """What a notebook shows; ``None`` (the text will do) if it is not that of one finished solve.

    Text has the page's own colour, curves one that is seen on light and on dark pages.
    """
    if _not_one_solve(posterior) is not None:
        return None
    posterior = one_solve(posterior, "repr")
    evidence = f"log evidence {float(posterior.log_evidence) + 0.0:.6g}"
    about = "; ".join([_interval(posterior), cost(posterior), evidence, *_data(posterior)])
    parts = [
        f"<div><strong>Posterior</strong> of {escape(_method(posterior))}</div>",
        f"<div>{_mark(bool(posterior.success))} {escape(posterior.message)}</div>",
        small_figure([posterior], names_in_words(posterior)),
        _table(posterior),
        _verdict(posterior),
        f'<div style="opacity: 0.75">{escape(about)}</div>',
    ]
    return _block(parts)


def html_of_pieces(posterior: Any, head: str, about: str) -> str:
    """The same of a posterior with jumps: a figure, and what to think of the error bars."""
    parts = [
        f"<div><strong>Posterior</strong> {escape(head)}</div>",
        f"<div>{_mark(bool(posterior.success))} {escape(posterior.message)}</div>",
        small_figure(posterior.pieces, names_in_words(posterior.pieces[0])),
        _verdict(posterior),
        f'<div style="opacity: 0.75">{escape(about)}</div>',
    ]
    return _block(parts)


def _block(parts: list[str]) -> str:
    return '<div style="line-height: 1.5; max-width: 50em">\n' + "\n".join(parts) + "\n</div>"


def _mark(good: bool) -> str:
    return f'<strong style="color: {_MARK_COLORS[good]}">{"✓" if good else "✗"}</strong>'


def _verdict(posterior: Posterior) -> str:
    """What to think of the error bars."""
    diagnosis = posterior.diagnose()
    head, *reasons = diagnosis.verdict.splitlines()
    if posterior.calibration is None:
        return f'<div style="opacity: 0.75">{escape(head)}</div>'
    rest = "".join(f"<div>{escape(reason)}</div>" for reason in reasons)
    return f"<div>{_mark(diagnosis.trusted)} {escape(head)}{rest}</div>"


def _not_one_solve(posterior: Posterior) -> str | None:
    """What to say of a posterior that has no values to show, or many."""
    if is_traced(posterior):
        return "traced"
    if np.ndim(posterior.status_code) > 0:
        return f"a batch of shape {np.shape(posterior.status_code)}"
    # Functions on pytrees also build posteriors of anything else.
    t: Any = posterior.t
    if not isinstance(t, np.ndarray | jax.Array):
        return "without values"
    return None


def _method(posterior: Posterior) -> str:
    parts = [posterior.solver.name, f"{posterior.solver.diffusion.name} diffusion"]
    if posterior.tolerances is not None:
        rtol, atol = (_range(np.asarray(value)) for value in posterior.tolerances)
        parts.append(f"rtol {rtol}, atol {atol}")
    path: Any = posterior.path
    if not path.is_smoothed:
        parts.append("filter only")
    return ", ".join(parts)


def _range(values: np.ndarray) -> str:
    low, high = f"{values.min():g}", f"{values.max():g}"
    return low if low == high else f"{low} to {high}"


def _interval(posterior: Posterior) -> str:
    t = np.asarray(posterior.t)
    if not t.size:
        return "no time of save_at was reached"
    if t.size == 1:
        return f"t = {t[0]:g}"
    return f"t from {t[0]:g} to {t[-1]:g}, {t.size} times"


def cost(posterior: Posterior) -> str:
    """Steps and evaluations, in words."""
    stats = posterior.stats
    known = posterior.engine != "unknown"
    by = f" by the {posterior.engine} engine" if known else ""
    told = (
        f"{int(stats.steps)} steps ({int(stats.rejected)} rejected){by}, "
        f"{int(stats.f_evaluations)} evaluations of f, "
        f"{int(stats.jacobian_evaluations)} of its Jacobian"
    )
    if posterior.calibration is None:
        return told
    return (
        f"{told}, and {int(stats.calibration_f_evaluations)} and "
        f"{int(stats.calibration_jacobian_evaluations)} more to estimate the error"
    )


def _data(posterior: Posterior) -> list[str]:
    """What it was conditioned on, if it was."""
    given = posterior.given
    if given is None:
        return []
    count = np.shape(given.t)[0]
    times = "1 time" if count == 1 else f"{count} times"
    return [f"given data at {times}, log likelihood {float(given.log_likelihood):.6g}"]


def _final_values(posterior: Posterior, most: int) -> list[str]:
    """The first components of the last value, each with its standard deviation."""
    if not len(posterior.t):
        return []
    mean, std = (np.ravel(x[-1])[:most] for x in (posterior.mean, posterior.std))
    return [value_with_std(m, s) for m, s in zip(mean, std, strict=True)]


def _table(posterior: Posterior) -> str:
    """One row per component: final value, and how value and standard deviation went there."""
    final = _final_values(posterior, _HTML_VALUES)
    if not final:
        return ""
    shape = posterior.shape
    curves = _curves(posterior, len(final))
    head = ["", "final value", *(["solution", "std (log scale)"] if curves else [])]
    rows = ["<tr>" + "".join(_cell(f"<small>{name}</small>") for name in head) + "</tr>"]
    names = names_in_words(posterior)
    for k, value in enumerate(final):
        cells = [names[k], escape(value), *(curves[k] if curves else ())]
        rows.append("<tr>" + "".join(map(_cell, cells)) + "</tr>")
    left = int(np.prod(shape)) - len(final)
    if left:
        rows.append(f"<tr>{_cell('…')}{_cell(f'and {left} more')}</tr>")
    return '<table style="border-collapse: collapse">' + "\n".join(rows) + "</table>"


def names_in_words(posterior: Posterior) -> list[str]:
    """The components as figures and tables call them: y1, y2, ...; y1,1 of a matrix."""
    return component_names(
        posterior, lambda index: f"y{','.join(index)}" if index else "y", "{part} {name}"
    )


def _cell(content: str) -> str:
    style = "text-align: left; padding: 0.1em 1.2em 0.1em 0; background: none"
    return f'<td style="{style}">{content}</td>'


def _curves(posterior: Posterior, count: int) -> list[tuple[str, str]]:
    """Sparklines of mean and standard deviation of the first components, one pair for each."""
    t = np.asarray(posterior.t)
    if t.size < 2:
        return []
    path = posterior.path
    mean = np.reshape(posterior.mean, (t.size, -1))
    std = np.reshape(posterior.std, mean.shape)
    first = 0
    x, stretch = t, np.ones_like(t)
    if steps_grow(t):
        first = int(t[0] == 0.0)
        x, stretch = np.log(np.where(t == 0.0, 1.0, t)), t
    chosen = few(np.arange(first, t.size), _MOST_POINTS)
    # The slopes make smooth curves of few long steps; next to points left out they say nothing.
    exact = isinstance(path, NodePath) and chosen.size == t.size - first
    slope = np.reshape(posterior.derivative(k=1).mean, mean.shape) if exact else mean
    pairs = []
    for k in range(count):
        tangent = (slope[:, k] * stretch)[chosen] if exact else None
        with np.errstate(divide="ignore", invalid="ignore"):
            logarithm = np.log(std[chosen, k])
        solution = _sparkline(_CURVE_COLORS[0], x[chosen], mean[chosen, k], tangent)
        pairs.append((solution, _sparkline(_CURVE_COLORS[1], x[chosen], logarithm)))
    return pairs


def _sparkline(color: str, x: np.ndarray, y: np.ndarray, slope: np.ndarray | None = None) -> str:
    """A curve through the points, without axes.

    With slopes: cubics, whose Bézier points lie a third of the way along the tangents.
    """
    finite = np.isfinite(y)
    x, y = x[finite], y[finite]
    if y.size < 2 or np.ptp(x) == 0.0:
        return ""
    low, height, width = y.min(), np.ptp(y), np.ptp(x)
    margin = 2.0
    scale_x = (_WIDTH - 2 * margin) / width
    scale_y = (_HEIGHT - 2 * margin) / height if height > 0.0 else 0.0
    base = _HEIGHT - margin if height > 0.0 else _HEIGHT / 2

    def point(a: Any, b: Any) -> str:
        return f"{margin + (a - x.min()) * scale_x:.1f} {base - (b - low) * scale_y:.1f}"

    path = [f"M {point(x[0], y[0])}"]
    if slope is None or not np.all(np.isfinite(slope)):
        path += [f"L {point(a, b)}" for a, b in zip(x[1:], y[1:], strict=True)]
    else:
        slope = slope[finite]
        for i in range(x.size - 1):
            third = (x[i + 1] - x[i]) / 3
            left = point(x[i] + third, y[i] + third * slope[i])
            right = point(x[i + 1] - third, y[i + 1] - third * slope[i + 1])
            path.append(f"C {left} {right} {point(x[i + 1], y[i + 1])}")
    size = f'width="{_WIDTH:.0f}" height="{_HEIGHT:.0f}" viewBox="0 0 {_WIDTH:.0f} {_HEIGHT:.0f}"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} style="display: block">'
        f'<path d="{" ".join(path)}" fill="none" stroke="{color}" stroke-width="1.3"/></svg>'
    )
