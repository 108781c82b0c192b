"""The numbers of a posterior that one looks for first: a row for each component."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from probode.posterior.display import cost, names_in_words, value_with_std
from probode.posterior.posterior import one_solve

_MOST_ROWS = 12
_HEADS = ("", "final value", "smallest", "largest", "largest std", "at t")


@dataclass(frozen=True)
class Summary:
    """What :meth:`probode.Posterior.summary` returns; printed, a table.

    The arrays have an entry for each component of ``y``, flattened in C order; of an equation of
    second order, values and then velocities.
    """

    names: tuple[str, ...]
    value: np.ndarray
    """At the last time reached, ..."""
    std: np.ndarray
    """... with its standard deviation."""
    smallest: np.ndarray
    """Of the means at ``posterior.t``."""
    largest: np.ndarray
    largest_std: np.ndarray
    largest_std_at: np.ndarray
    """The time of the largest standard deviation."""
    success: bool
    message: str
    """How the solve ended."""
    trusted: bool | None
    """Whether ``posterior.diagnose()`` trusts the error bars; ``None``: they are not calibrated."""
    verdict: str
    cost: str
    """Steps and evaluations."""

    def __str__(self) -> str:
        rows: list[tuple[str, ...]] = [_HEADS]
        for i, name in enumerate(self.names[:_MOST_ROWS]):
            final = value_with_std(self.value[i], self.std[i])
            others = (self.smallest, self.largest, self.largest_std, self.largest_std_at)
            rows.append((name, final, *(f"{values[i]:.4g}" for values in others)))
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = [
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
            for row in rows
        ]
        left = len(self.names) - _MOST_ROWS
        if left > 0:
            lines.append(f"... and {left} more")
        return "\n".join([*lines, "", self.message, *self.verdict.splitlines(), self.cost])

    __repr__ = __str__


def summary(posterior: Any) -> Summary:
    """Gather them from the means and standard deviations at ``posterior.t``."""
    pieces = getattr(posterior, "pieces", None)  # between jumps
    if pieces is None:
        posterior = one_solve(posterior, "summary")
        pieces, told = (posterior,), cost(posterior)
    else:
        steps = sum(int(piece.stats.steps) for piece in pieces)
        told = f"{steps} steps in {len(pieces)} pieces between jumps"
    t = np.asarray(posterior.t)
    if not t.size:
        raise ValueError(f"no time was reached, there is nothing to sum up. {posterior.message}")
    derivatives = range(posterior.method.equation.order)
    both = [
        (np.reshape(part.mean, (t.size, -1)), np.reshape(part.std, (t.size, -1)))
        for part in (posterior.derivative(k=k) for k in derivatives)
    ]
    mean, std = (np.concatenate(parts, axis=1) for parts in zip(*both, strict=True))
    widest = np.argmax(std, axis=0)
    diagnosis = posterior.diagnose()
    return Summary(
        names=tuple("d" * k + name for k in derivatives for name in names_in_words(posterior)),
        value=mean[-1],
        std=std[-1],
        smallest=mean.min(axis=0),
        largest=mean.max(axis=0),
        largest_std=std.max(axis=0),
        largest_std_at=t[widest],
        success=bool(posterior.success),
        message=posterior.message,
        trusted=None if pieces[0].calibration is None else diagnosis.trusted,
        verdict=diagnosis.verdict,
        cost=told,
    )
