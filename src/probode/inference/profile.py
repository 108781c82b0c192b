"""Profile likelihoods: how well the data hold a parameter in place."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.stats import chi2

from probode.engines.monitor import interruptible
from probode.inference.optimise import Optimum, maximise

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from probode.inference.result import Fit

_MOST = 200
_BEYOND = 1.3
"""How far beyond the interval the grid goes, in units of the drop at its ends."""
_FARTHEST = 12
"""Times that the grid is made wider to reach an end of the interval."""


@dataclass(frozen=True)
class Profile:
    """The profile likelihood of a parameter, made by :meth:`Fit.profile`.

    ``interval`` is where ``2 (max - log p) <= χ²_1(level)``; an end that was not reached is
    infinite, or the bound.
    """

    name: str
    estimate: float
    values: np.ndarray
    log_likelihoods: np.ndarray
    """Log likelihood and log prior at the best values of all other parameters."""
    others: list[dict[str, Any]]
    """These values."""
    interval: tuple[float, float]
    level: float
    complete: bool
    """Whether it was not interrupted."""

    def __repr__(self) -> str:
        """The interval."""
        low, high = self.interval
        return (
            f"Profile of {self.name}: {self.estimate:.6g}, {self.level:.0%} interval from "
            f"{low:.6g} to {high:.6g} ({len(self.values)} points)"
        )

    def plot(self, ax: "Axes | None" = None) -> "Axes":
        """Draw it; return the axes."""
        from probode.inference.figures import plot_profile

        return plot_profile(self, ax)


def profile(fit: "Fit", name: str, points: Any, level: float) -> Profile:
    """Along a grid of ``z_i``, from the estimate to both sides, each point from the last one."""
    names = fit.names
    if name not in names:
        known = ", ".join(map(repr, names))
        raise ValueError(f"{name!r} was not fitted; there are {known}.")
    if not 0.0 < level < 1.0:
        raise ValueError(f"level must be between 0 and 1, got {level!r}.")
    i = names.index(name)
    drop = 0.5 * float(chi2.ppf(level, 1))
    track = _Track(fit, i)
    given = not isinstance(points, int | np.integer)
    with interruptible() as pressed:
        track.pressed = pressed.is_set
        if given:
            wanted = np.sort(np.asarray(points, float).ravel())
            track.visit([_coordinate(fit, i, x) for x in wanted])
        else:
            if points < 3:
                raise ValueError(f"points must be at least 3, got {points!r}.")
            track.bracket(_BEYOND * drop, int(points))
    z, values, found = track.sorted()
    x = np.array([fit.space.flat(one.z)[i] for one in found])
    order = np.argsort(x)
    best = fit._best.look.value
    ends = _interval(z, values - best, drop, fit.z[i])
    interval = tuple(sorted(_natural(fit, i, end) for end in ends))
    kept = [k for k in order if not (given and found[k] is fit._best)]
    return Profile(
        name,
        float(fit.space.flat(fit.z)[i]),
        x[kept],
        values[kept],
        [fit._named(found[k].z) for k in kept],
        (interval[0], interval[1]),
        level,
        not track.pressed(),
    )


class _Track:
    """Maxima along one coordinate."""

    def __init__(self, fit: "Fit", i: int) -> None:
        self.fit, self.i = fit, i
        self.found: dict[float, Optimum] = {float(fit.z[i]): fit._best}
        self.free = np.arange(fit.space.size) != i
        self.pressed: Any = lambda: False

    def at(self, z: float) -> float:
        """The objective with this coordinate held, from the nearest place known."""
        if z not in self.found:
            nearest = min(self.found, key=lambda one: abs(one - z))
            start = self.found[nearest].z.copy()
            start[self.i] = z
            if not self.fit.objective.look(start).value > -np.inf:
                start = self.fit.z.copy()
                start[self.i] = z
            self.found[z] = maximise(
                self.fit.objective,
                start,
                pressed=self.pressed,
                max_iterations=_MOST,
                free=self.free,
            )
        return self.found[z].look.value

    def visit(self, wanted: list[float]) -> None:
        """From the estimate outwards."""
        centre = self.fit.z[self.i]
        for z in sorted(wanted, key=lambda one: abs(one - centre)):
            if self.pressed():
                return
            self.at(float(z))

    def bracket(self, drop: float, points: int) -> None:
        """A grid as wide as the objective falls by ``drop``, first guessed from its curvature."""
        centre, best = self.fit.z[self.i], self.fit._best.look.value
        variance = self.fit._spread.covariance[self.i, self.i]
        std = np.sqrt(variance) if np.isfinite(variance) and variance > 0.0 else 0.1
        each = max((points - 1) // 2, 1)
        for side in (-1.0, 1.0):
            reach = side * std * np.sqrt(2.0 * drop)
            for _ in range(_FARTHEST):
                if self.pressed() or best - self.at(float(centre + reach)) > drop / _BEYOND:
                    break
                reach *= 1.6
            self.visit(list(centre + reach * np.arange(1, each) / each))

    def sorted(self) -> tuple[np.ndarray, np.ndarray, list[Optimum]]:
        """All of it in ascending order; places without a solution are left out."""
        z = np.array(sorted(k for k, one in self.found.items() if one.look.value > -np.inf))
        found = [self.found[float(one)] for one in z]
        return z, np.array([one.look.value for one in found]), found


def _interval(z: np.ndarray, below: np.ndarray, drop: float, centre: float) -> list[float]:
    """Where the objective has fallen by ``drop``: its root is nearly a straight line."""
    depth = np.sqrt(np.maximum(-below, 0.0))
    ends = []
    for side in (-1.0, 1.0):
        out = np.flatnonzero((z - centre) * side > 0.0)
        out = out if side > 0 else out[::-1]
        last, known, end = centre, 0.0, side * np.inf
        for k in out:
            if depth[k] >= np.sqrt(drop):
                share = (np.sqrt(drop) - known) / (depth[k] - known)
                end = last + share * (z[k] - last)
                break
            last, known = z[k], depth[k]
        ends.append(float(end))
    return ends


def _piece(fit: "Fit", i: int) -> tuple[Any, int]:
    for piece, part in fit.space:
        if part.start <= i < part.stop:
            return piece, i - part.start
    raise AssertionError


def _coordinate(fit: "Fit", i: int, x: float) -> float:
    piece, j = _piece(fit, i)
    values = np.broadcast_to(x, piece.start.shape)
    with np.errstate(all="ignore"):
        z = float(np.ravel(piece.coordinate(np.array(values)))[j])
    if not np.isfinite(z):
        raise ValueError(f"{fit.names[i]} = {x:g} is not inside of its bounds.")
    return z


def _natural(fit: "Fit", i: int, z: float) -> float:
    piece, j = _piece(fit, i)
    with np.errstate(all="ignore"):
        return float(np.ravel(piece.natural(np.full(piece.start.shape, z), np))[j])
