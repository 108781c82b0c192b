"""When not to trust an error estimate, and how to say so.

Three numbers are taken from a transport; each has a limit above which it is a warning:

- ``convergence``: what the iteration left unsettled in the steps, relative to the largest error
  and to what is harmless. Each step re-evaluates the vector field on the solution with the
  estimated error taken off; where that asks for a correction as large as the estimate, the error is
  no small perturbation: it has moved a layer by more than its width, or follows a chaotic
  attractor.
- ``rounding``: what the rounding of the values themselves adds up to, relative to the error.
- ``size``: the error relative to the range of the solution.

With ``first`` and ``second`` the first estimate of a step and its correction, the correction after
that would be about ``second²/first``. Sums run over the steps::

    convergence = max_i sqrt(sum (second_i²/first_i)²) / (harmless max |e_i|)
    rounding    = max_i ε sqrt(N) rms(y_i) / rms(e_i)
    size        = max_i max |e_i| / (max y_i - min y_i)

Two kinds of components are at rest but for errors. Where range and errors are below 1e-11 of the
largest range there is nothing but rounding (the imaginary parts on the diagonal of a density
matrix): ``convergence`` and ``size`` leave these out. Where ``y_i - e_i`` has a tenth of the range
of ``y_i`` or less, the estimate itself says that it is all error (the difference of two equal
components): ``size`` leaves these out.

A fourth number, ``again``, comes of a second solve, which users ask for: the mean square of what it
differs by, in units of the error bars (:mod:`probode.posterior.again`).
"""

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Array

from probode.global_error.scales import by_component, in_blocks
from probode.global_error.transport import Transported
from probode.model.gaussian import norm

SIGNS = ("convergence", "rounding", "size")
LIMITS = {"convergence": 1.0, "rounding": 30.0, "size": 0.5}
"""Rounding of the values belongs to the error, and is estimated with it. Only where the error is
far below what it adds up to (a stiff equation that forgets it at once) nothing is left to estimate.
"""
WORDS = {
    "convergence": "the error iteration does not converge: the error is not a small perturbation",
    "rounding": "the error is near rounding level, where no estimate is exact",
    "size": "the error is as large as the solution's own variation",
    "lost": "the estimate was lost on the way (not finite): from there on the bands are as wide as "
    "the solution varies",
    "kinks": "the solution crosses kinks or jumps of f (abs, max, where, ...), and the error in "
    "these steps is larger than the estimate can follow: try a smaller max_step",
    "between": "between the steps f does something that the steps did not see",
    "long": "so many steps are too long a way for the fast estimate: use calibration='defect'",
    "switches": "f switches in time more often, or for shorter, than could be followed",
    "stuck": "the solve ended where its steps became too short: it did not get past a jump or a "
    "singularity",
    "unchecked": "no step was taken: there is nothing that could have been checked",
    "few": "of one step or two the estimate sees next to nothing: take at least three",
    "again": "a solve at a tenth of the tolerance moves the solution by more than they are",
    "stopped": "a solve at a tenth of the tolerance did not get as far",
    "unfinished": "there was no time to carry the estimate to the end: from there on the bands are "
    "as wide as the solution varies",
}
KINKS = 0.15
"""``kinks`` above which error bars may be too narrow (:mod:`probode.global_error.closer`): of
SparseEK1 with limiters χ²/d was 2 to 1000 above 0.18, and 0.2 to 1.5 below 0.1.
"""
AGAIN = 3.0
"""``again`` above which bars are too small: a mean square of one is perfect."""
FAST = "defect-fast"
FAST_STEPS = 5000
"""Steps over which three stages without corrections are followed: beyond, one in five is lost."""
LEAST_STEPS = {"two-pole": 3}
"""By kind of calibration: polynomials through fewer values are what these have been made with."""
_QUIET, _RESTS = 1e-11, 0.1
"""Parts of the largest range, and of a component's own, up to which it is at rest."""
_EPSILON = float(np.finfo(float).eps)
_TINY = 1e-300


_KINKS_UNKNOWN = (
    "f has kinks in y (abs, max, where, ...): their effect on the error bars was not checked"
)


class Looked(NamedTuple):
    """What was looked at between the steps: numbers, that a file can keep."""

    depends: float
    """Whether (one, not zero) the vector field depends on ``t``, for all that is known."""
    stops: float
    """Times at which the program switches, and steps end."""
    probes: float = 0.0
    """Evaluations of ``f`` between the steps."""
    gap: float = 0.0
    """Longest time between two looks."""
    excess: float = 0.0
    """The largest effect of what was seen, in units of what is allowed."""
    where: float = 0.0
    """The time of that."""
    unresolved: float = 0.0
    """Whether (one, not zero) there are more switches than steps end at."""
    kinks: float = 0.0
    """Effect of kinks of ``f`` in ``y`` that the estimate misses, in standard deviations; -1: there
    may be kinks, and their effect is not known."""

    def words(self) -> list[str]:
        """What can be said of the times between the steps."""
        lines = [_KINKS_UNKNOWN] if self.kinks < 0.0 else []
        if not self.depends:
            return [*lines, "f does not depend on t: nothing to look for between the steps"]
        if self.stops:
            times = "times: steps end there and the solution starts anew"
            lines.append(f"f switches at {self.stops:.0f} {times}")
        if self.excess > 1.0:
            lines.append(f"what the steps did not see is near t = {self.where:.4g}; try max_step")
        if not self.probes:
            return [*lines, "f was looked at in the steps only, not between them"]
        seen = f"f was looked at {self.probes:.0f} more times between the steps: pulses shorter "
        return [*lines, f"{seen}than {self.gap:.2g} may not have been seen"]


class Tally(NamedTuple):
    """Sums over steps from which the numbers are made, one entry per component."""

    unsettled: Array
    """Root of the sum of ``(second²/first)²``: squares would overflow where values do not."""
    largest: Array
    """``max |e|``."""
    low: Array
    high: Array
    square: Array
    """Root of the sum of ``y²``."""
    error_square: Array
    """Root of the sum of ``e²``."""
    steps: Any
    least: Any = None
    most: Any = None
    """Largest value of ``y - e``, as ``least`` is the smallest; ``None`` in older files."""

    @staticmethod
    def start(xp: Any, y: Array) -> "Tally":
        """Before the first step."""
        zero = xp.zeros_like(y)
        return Tally(zero, zero, y, y, zero, zero, xp.asarray(0.0), y, y)

    @staticmethod
    def over(xp: Any, y: Array, moved: Transported) -> "Tally":
        """Of all steps at once; ``y`` are the values at all nodes."""

        def of_components(y: Array, e: Array, first: Array, second: Array) -> tuple[Array, ...]:
            y, e, left = (by_component(xp, x) for x in (y, e, _unsettled(xp, first, second)))
            largest = xp.max(xp.abs(e), axis=1, initial=0.0)
            extent = xp.min(y, axis=1), xp.max(y, axis=1)
            rest = xp.concatenate([y[:, :1], y[:, 1:] - e], axis=1)
            corrected = xp.min(rest, axis=1), xp.max(rest, axis=1)
            return norm(left), largest, *extent, norm(y[:, 1:]), norm(e), *corrected

        found: Any = in_blocks(xp, -1, of_components, y, *moved.ends)
        names = ("unsettled", "largest", "low", "high", "square", "error_square", "least", "most")
        steps = xp.asarray(float(moved.error.shape[0]))
        return Tally(**dict(zip(names, found, strict=True)), steps=steps)

    def add(self, xp: Any, y: Array, moved: Transported) -> "Tally":
        """With one step more, that ended at ``y``."""
        return Tally(
            xp.hypot(self.unsettled, _unsettled(xp, moved.first, moved.second)),
            xp.maximum(self.largest, xp.abs(moved.error)),
            xp.minimum(self.low, y),
            xp.maximum(self.high, y),
            xp.hypot(self.square, y),
            xp.hypot(self.error_square, moved.error),
            self.steps + 1.0,
            xp.minimum(self.least, y - moved.error),
            xp.maximum(self.most, y - moved.error),
        )

    def signs(self, xp: Any, harmless: float) -> Array:
        """The numbers to judge by, in the order of :data:`SIGNS`; zero where no error is."""
        known = self.largest > 0.0
        extent = self.high - self.low
        floor = _QUIET * xp.max(extent)
        loud = ~((extent <= floor) & (self.largest <= floor))
        moves = loud
        if self.least is not None:
            moves = loud & ~(self.most - self.least <= _RESTS * extent)
        convergence = self.unsettled / xp.where(known, harmless * self.largest, 1.0)
        level = _EPSILON * xp.sqrt(self.steps) * self.square
        rounding = level / (self.error_square + _TINY)
        size = self.largest / xp.where(extent > 0.0, extent, 1.0)
        judged = [(convergence, loud), (rounding, True), (size, moves & (extent > 0.0))]
        return xp.stack([xp.max(xp.where(known & of, part, 0.0)) for part, of in judged])


def _unsettled(xp: Any, first: Array, second: Array) -> Array:
    first, second = xp.abs(first), xp.abs(second)
    return second * xp.minimum(second / (first + _TINY), 1.0)


@dataclass(frozen=True)
class Diagnosis:
    """A verdict on an error estimate; prints as a few lines."""

    flags: tuple[str, ...]
    """Names of what speaks against the estimate; empty if nothing does."""
    numbers: dict[str, float]
    """The measurements behind the flags; see :data:`LIMITS`."""
    largest_error: float
    """Largest estimated error, relative to the range of its component."""
    mode: str
    notes: tuple[str, ...] = ()
    """What the solve did otherwise than asked for, and why; and what was looked at."""

    @property
    def trusted(self) -> bool:
        """Whether nothing speaks against the estimate."""
        return not self.flags

    @property
    def verdict(self) -> str:
        """In words, without what was looked at."""
        flags: tuple[str, ...] = self.flags
        size = f"the largest error is about {self.largest_error:.1e} of the solution's range"
        lines = [f"error bars can be trusted: {size}"]
        if self.mode == "model":
            lines = ["not calibrated: the standard deviations are the model's"]
            flags = tuple(flag for flag in flags if flag in _OF_ANOTHER)
        elif not self.trusted:
            lines = ["error bars must not be trusted:"]
        lines += [f"- {WORDS[flag]}" for flag in flags]
        return "\n".join(lines)

    def with_again(self, chi2: float | None, ended: float | None) -> "Diagnosis":
        """With what a more exact solve says: the mean square of differences in units of the bars.

        ``None``: there was nothing to compare; ``ended`` is where it ended, if that was too early.
        """
        flags, numbers, notes = self.flags, dict(self.numbers), self.notes
        if chi2 is not None:
            numbers["again"] = chi2
            flags = flags if chi2 <= AGAIN else (*flags, "again")
            notes = (*notes, _difference(chi2))
        if ended is not None:
            flags = (*flags, "stopped")
            notes = (*notes, f"the solve at a tenth of the tolerance ended at t = {ended:.4g}")
        return replace(self, flags=flags, numbers=numbers, notes=notes)

    def __str__(self) -> str:
        return "\n".join([self.verdict, *(f"({note})" for note in self.notes)])

    __repr__ = __str__


_OF_ANOTHER = ("again", "stopped")
"""Flags of a second solve: said of all error bars, also of those of the model."""


def _difference(chi2: float) -> str:
    words = f"by {np.sqrt(chi2):.2g} times the error bars, in root mean square"
    return f"solved again at a tenth of the tolerance: the solution moves {words}"


def judge(
    signs: np.ndarray, lost: bool, mode: str, looked: Looked | None, steps: int, kind: str = ""
) -> Diagnosis:
    """A verdict from the numbers, and from what was looked at in so many steps.

    ``kind`` is that of the calibration.
    """
    numbers = dict(zip(SIGNS, (float(x) for x in signs), strict=True))
    flags = [name for name, limit in LIMITS.items() if not numbers[name] <= limit]
    if lost:
        flags.append("lost")
    if mode == FAST and steps > FAST_STEPS:
        flags.append("long")
    if steps == 0:
        flags.append("unchecked")
    elif looked is not None and not looked.excess <= 1.0:
        flags.append("between")
    if looked is not None and not looked.kinks <= KINKS:
        flags.append("kinks")
    if 0 < steps < LEAST_STEPS.get(kind, 1):
        flags.append("few")
    if looked is not None and looked.unresolved:
        flags.append("switches")
    words = [] if looked is None else looked.words()
    return Diagnosis(tuple(flags), numbers, numbers["size"], mode, tuple(words))
