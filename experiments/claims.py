"""Claims: what the paper prints, what we measure of it, and the rule that compares the two.

A claim measures figures from the results, and its rule turns figures into a finding. Nothing of a
finding is written down beforehand: verdict and reason both follow from the figures.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np

Records = Sequence[dict[str, Any]]
"""Of an experiment: settings and values of every configuration."""
Rows = list[dict[str, Any]]
Results = Mapping[str, Records]
"""For each experiment its records."""
Figures = dict[str, Any]


class Verdict(Enum):
    """How a printed statement fares."""

    CONFIRMED = "confirmed"
    DIFFERS = "differs"
    NOT_CONFIRMED = "not confirmed"


@dataclass(frozen=True)
class Finding:
    """A verdict, what was measured, and why the verdict is what it is."""

    verdict: Verdict
    measured: str
    reason: str


@dataclass(frozen=True)
class Claim:
    """A printed statement and how to check it.

    Attributes
    ----------
    key
        A short name, unique.
    experiment
        Whose results it needs.
    place
        Where the paper says so.
    statement
        What it says, in short.
    measure
        Figures from the results of the experiment.
    rule
        The finding from the figures.
    """

    key: str
    experiment: str
    place: str
    statement: str
    measure: Callable[[Sequence[dict[str, Any]]], Figures]
    rule: Callable[[Figures], Finding]

    def examine(self, results: Results) -> Finding | None:
        """The finding, or None where the experiment has not been run."""
        if self.experiment not in results:
            return None
        return self.rule(self.measure(results[self.experiment]))


def yes_if(condition: bool) -> Verdict:
    """Confirmed or not, with nothing in between."""
    return Verdict.CONFIRMED if condition else Verdict.NOT_CONFIRMED


def share_of(truths: Iterable[Any]) -> float:
    """How many are true, as a part of all; NaN without any."""
    values = list(truths)
    return float(np.mean(values)) if values else float("nan")


def percent(share: float) -> str:
    """A share in words; near one half with a decimal, so that it is seen on which side it is."""
    if np.isnan(share):
        return "none to compare"
    return f"{100 * share:.{1 if 0.49 < share < 0.51 else 0}f} %"


def across_problems(holds: Mapping[str, bool], printed: str) -> tuple[Verdict, str]:
    """A statement made for one problem, checked on all.

    Confirmed: it holds on the printed problem and on most of the others. Differs: on the printed
    problem only, or on most others only. Else not confirmed.
    """
    if printed not in holds:
        return Verdict.NOT_CONFIRMED, f"nothing to compare on {printed}, the paper's problem"
    others = [name for name in holds if name != printed]
    kept = [name for name in others if holds[name]]
    most = 2 * len(kept) > len(others) or not others
    if holds[printed] and most:
        verdict = Verdict.CONFIRMED
    elif holds[printed] or (most and others):
        verdict = Verdict.DIFFERS
    else:
        verdict = Verdict.NOT_CONFIRMED
    text = f"{'holds' if holds[printed] else 'does not hold'} on {printed}, the paper's problem"
    if others:
        text += f"; on {len(kept)} of {len(others)} others"
        lost = [name for name in others if name not in kept]
        text += f" (not on {', '.join(lost)})" if lost else ""
    return verdict, text


def per_problem(texts: Mapping[str, str]) -> str:
    """Measured figures, problem by problem."""
    return "; ".join(f"{name}: {text}" for name, text in texts.items())
