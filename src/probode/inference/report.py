"""A fit as text, what ``print(fit)`` shows, and as HTML for notebooks."""

from html import escape
from math import floor, log10
from typing import TYPE_CHECKING, Any

import numpy as np

from probode.model.distributions import Distribution, Normal

if TYPE_CHECKING:
    from probode.inference.result import Fit

_LEAST_CORRELATION = 0.1
_MOST_CORRELATIONS = 12
_DIGITS = 3
"""Of standard errors."""
_COLORS = {True: "#2a9d5c", False: "#e05252"}
"""Of marks: to be seen on light and on dark pages."""
_PLAIN = 7
"""Up to this power of ten numbers are written without an exponent."""


def text(fit: "Fit") -> str:
    """The report."""
    head = "✓" if fit.success else "✗"
    lines = [_title(fit), f"  {head} {_ending(fit)}", "", *_table(fit)]
    correlations = _correlations(fit)
    if correlations:
        lines += ["", f"  correlations (those above {_LEAST_CORRELATION:g})", *correlations]
    lines += ["", *(f"  {line}" for line in _about(fit))]
    lines += [f"  ! {warning}." for warning in fit.warnings]
    return "\n".join(lines)


def html(fit: "Fit") -> str:
    """The same for notebooks, in the page's own colours."""
    head, *rows = _rows(fit)
    style = 'style="text-align: left"'
    table = [
        f"<tr>{''.join(f'<{tag} {style}>{escape(cell)}</{tag}>' for cell in row)}</tr>"
        for tag, row in (("th", head), *(("td", row) for row in rows))
    ]
    mark = f'<strong style="color: {_COLORS[fit.success]}">{"✓" if fit.success else "✗"}</strong>'
    parts = [f"<div><strong>{escape(_title(fit))}</strong></div>"]
    parts += [f"<div>{mark} {escape(_ending(fit))}</div>", f"<table>{''.join(table)}</table>"]
    correlations = [escape(" ".join(line.split())) for line in _correlations(fit)]
    if correlations:
        said = f"<summary>correlations (those above {_LEAST_CORRELATION:g})</summary>"
        parts.append(f"<details>{said}{'<br>'.join(correlations)}</details>")
    warning = f'<strong style="color: {_COLORS[False]}">!</strong>'
    parts += [f"<div>{warning} {escape(one)}.</div>" for one in fit.warnings]
    parts += [f'<div style="opacity: 0.75">{escape(line)}</div>' for line in _about(fit)]
    return '<div style="line-height: 1.5; max-width: 60em">\n' + "\n".join(parts) + "\n</div>"


def _title(fit: "Fit") -> str:
    statement = fit.objective.statement
    sets = f" in {len(statement.data)} data sets" if statement.several else ""
    return f"Fit of {_count(fit.space.size, 'parameter')} to {_count(fit.n_data, 'value')}{sets}"


def _ending(fit: "Fit") -> str:
    best = f", best of {len(fit.starts)} starts" if len(fit.starts) > 1 else ""
    return f"{fit.message} ({_count(fit.iterations, 'iteration')}{best})"


def _about(fit: "Fit") -> list[str]:
    priors = f", log prior {fit.log_prior:.6g}" if fit.space.has_priors else ""
    return [
        f"log likelihood {fit.log_likelihood:.6g}{priors}, AIC {fit.aic:.6g}, BIC {fit.bic:.6g}",
        f"{fit.objective.plan.kind} likelihood; the solver's share of the variance at the data is "
        f"{_percent(fit.solver_share)}",
    ]


def _count(number: int, what: str) -> str:
    return f"{number} {what}" + ("" if number == 1 else "s")


def _percent(share: float) -> str:
    if not np.isfinite(share):
        return "not known"
    return f"{100.0 * share:.2g} %" if share >= 1e-4 else "below 0.01 %"


def _table(fit: "Fit") -> list[str]:
    """Columns of equal width."""
    rows = _rows(fit)
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = [
        "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        for row in rows
    ]
    return [line.rstrip() for line in lines]


def _rows(fit: "Fit") -> list[tuple[str, ...]]:
    """Cells with their heads; numbers of an array one by one."""
    rows: list[tuple[str, ...]] = [
        ("parameter", "estimate ± standard error", "relative", "bounds", "start", "prior")
    ]
    errors = np.sqrt(np.diagonal(fit.covariance))
    values, starts = fit.space.flat(fit.z, settled=True), fit.space.flat(fit._best.start)
    names = fit.names
    for piece, part in fit.space:
        for j, i in enumerate(range(part.start, part.stop)):
            rows.append(
                (
                    names[i],
                    _value(values[i], errors[i]),
                    _relative(values[i], errors[i]),
                    _bounds(piece, j),
                    f"{starts[i]:.4g}",
                    "" if piece.prior is None else _prior(piece.prior),
                )
            )
    for piece in fit.space.pieces:
        if piece.fixed:
            shown = f"{float(piece.start):.6g}" if piece.start.ndim == 0 else "(array)"
            rows.append((piece.name, shown, "fixed", "", "", ""))
    if not any(row[-1] for row in rows[1:]):
        rows = [row[:-1] for row in rows]
    if not any(row[3] for row in rows[1:]):
        rows = [(*row[:3], *row[4:]) for row in rows]
    return rows


def _value(value: float, error: float) -> str:
    """Both to the third digit of the error."""
    if not np.isfinite(error) or error <= 0.0:
        return f"{value:.6g} ± {'∞' if np.isinf(error) else '?'}"
    last = floor(log10(error)) - _DIGITS + 1
    if last < -_PLAIN or last > _PLAIN - _DIGITS:
        digits = max(floor(log10(abs(value))) - last, 0) if value else 0
        return f"{value:.{digits}e} ± {error:.{_DIGITS - 1}e}"
    places = max(-last, 0)
    return f"{value:.{places}f} ± {error:.{places}f}"


def _relative(value: float, error: float) -> str:
    if not np.isfinite(error) or value == 0.0:
        return ""
    return f"{100.0 * abs(error / value):.2g} %"


def _bounds(piece: Any, j: int) -> str:
    if piece.lower is None and piece.upper is None:
        return ""
    low = "" if piece.lower is None else f"{piece.lower.ravel()[j]:g}"
    high = "" if piece.upper is None else f"{piece.upper.ravel()[j]:g}"
    return f"{low} .. {high}".strip() if low and high else (f"> {low}" if low else f"< {high}")


def _prior(prior: Any) -> str:
    if isinstance(prior, Normal):
        numbers = [prior.mean, np.sqrt(prior.cov)]
    elif isinstance(prior, Distribution):
        numbers = list(vars(prior).values())
    else:
        numbers = [np.zeros(2)]
    if all(np.ndim(number) == 0 for number in numbers):
        inside = [f"{float(number):.4g}" for number in numbers]
        if isinstance(prior, Normal):
            inside[1] = f"std={inside[1]}"
        return f"{type(prior).__name__}({', '.join(inside)})"
    shown = repr(prior)
    if len(shown) <= 40 and "\n" not in shown and " at 0x" not in shown:
        return shown
    return getattr(prior, "__name__", type(prior).__name__)


def _correlations(fit: "Fit") -> list[str]:
    matrix, names = fit.correlations, fit.names
    pairs = [
        (abs(matrix[i, j]), names[i], names[j], matrix[i, j])
        for i in range(len(names))
        for j in range(i + 1, len(names))
        if np.isfinite(matrix[i, j]) and abs(matrix[i, j]) > _LEAST_CORRELATION
    ]
    pairs.sort(key=lambda pair: -pair[0])
    width = max((len(f"{a}, {b}") for _, a, b, _ in pairs), default=0)
    lines = [
        f"    {f'{a}, {b}'.ljust(width)}  {value:+.3f}"
        for _, a, b, value in pairs[:_MOST_CORRELATIONS]
    ]
    if len(pairs) > _MOST_CORRELATIONS:
        lines.append(f"    and {len(pairs) - _MOST_CORRELATIONS} more")
    return lines
