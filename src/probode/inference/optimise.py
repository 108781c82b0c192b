"""Where an objective is largest, by SciPy's optimisers.

If a likelihood has whitened residuals, a trust region is used, with the
curvature of Gauss, Newton and Fisher: Levenberg and Marquardt's method on the objective itself,
with its priors and a noise that may be a parameter. Others, and searches that make no progress, by
BFGS.

Whether a maximum was reached is asked in units of the log likelihood: ``½ gᵀ C⁻¹ g``, what a step
of Newton's method would still gain. At 1e-6 the estimates are a thousandth of a standard error
away.

A bound is infinitely far away in the coordinates of the search. A number that Newton's method in
the parameters themselves would take across its bound is put on it and held there while the others
are searched, and let go if the slope then points inside (conditions of Karush, Kuhn and Tucker).
Directions that the data do not determine are left as they are at the start.
"""

import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import minimize

from probode.inference.axes import SEEN, DeterminedAxes
from probode.inference.objective import Look, Objective

ENOUGH = 1e-6
"""What a step may still gain at a maximum, in units of the log likelihood."""
GOOD = 1e-3
"""The same where the objective is too rough to get closer: 4 % of a standard error."""
_NO_GAIN = 6
"""Rejected steps in a row after which the objective is too rough to get on."""
_FARTHER = 1e6
"""Largest distance in ``z`` during a search without bounds: starts may be much too small."""
_LEAPS, _BETTER = (1.0, 3.0, 6.0, 9.0, 12.0, 15.0, 18.0, 21.0), 1.0
"""Steps in ``z`` from a place where a number has no effect, and the least gain of one."""
_ROUNDS = 4
"""Bound for the searches per number, one after each time that a number is held or let go."""
_NEAR, _NEARER = 0.1, 0.01
"""Distances from a bound, as shares of an interval or of the distance at the start: at the end of a
search, and during one that is worth stopping."""
_SHARES = (_NEAR, *np.logspace(-2.0, -11.0, 10))
"""Distances from the bound that are tried for a number that is let go."""


class Optimum(NamedTuple):
    """Where a search has ended."""

    z: np.ndarray
    look: Look
    success: bool
    message: str
    interrupted: bool
    iterations: int
    start: np.ndarray


class _Stopped(Exception):
    """Somebody has pressed Ctrl-C."""


class _Search:
    """The negative objective of some of the coordinates, and the best it was found to be."""

    def __init__(
        self, objective: Objective, z: np.ndarray, free: np.ndarray, pressed: Callable[[], bool]
    ) -> None:
        self.objective, self.free, self.pressed = objective, free, pressed
        self.full = np.array(z, float)
        self.best = self.full.copy()
        self.best_look = objective.look(self.full)
        self.iterations, self.without_gain = 0, 0
        self.seen = self.best_look.value
        self.refused, self.wait = 0, 0
        """Number of failed attempts to hold numbers, and the iteration of the next attempt."""
        self.stopped = False
        """Whether the last search was stopped in order to hold numbers on their bounds."""

    def look(self, part: np.ndarray) -> Look:
        z = self.full.copy()
        z[self.free] = part
        look = self.objective.look(z)
        if look.value > self.best_look.value:
            self.best, self.best_look = z, look
        if self.pressed():
            raise _Stopped
        return look

    def value(self, part: np.ndarray) -> float:
        return -self.look(part).value

    def gradient(self, part: np.ndarray) -> np.ndarray:
        look = self.look(part)
        if look.curvature is None:
            return -look.gradient[self.free]
        return -self._known(look, part)[0]

    def curvature(self, part: np.ndarray) -> np.ndarray:
        return self._known(self.look(part), part)[1]

    def _known(self, look: Look, part: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return gradient and curvature without the directions that the data do not determine.

        There the gradient is made of rounding, and a step of any length would follow.
        """
        assert look.curvature is not None
        curvature = look.curvature[np.ix_(self.free, self.free)]
        axes = DeterminedAxes.of(curvature, self._way(part))
        stiff = float(np.mean(np.diagonal(curvature))) or 1.0
        rest = np.linalg.qr(axes.unknown)[0]
        slope = axes.size * (
            axes.vectors @ (axes.vectors.T @ (look.gradient[self.free] / axes.size))
        )
        return slope, axes.curvature() + stiff * rest @ rest.T

    def _way(self, part: np.ndarray) -> np.ndarray:
        """Return the distances that numbers may move, even from starts that are much too small."""
        z = np.where(self.free, 0.0, self.full)
        z[self.free] = part
        return self.objective.space.way(z, _FARTHER)[self.free]

    def left(self, inverse: np.ndarray | None = None) -> float:
        """Return the gain that a step of Newton's method from the best place would have."""
        g = self.best_look.gradient[self.free]
        if inverse is not None:
            return float(0.5 * g @ inverse @ g)
        if self.best_look.curvature is None:
            return np.inf
        curvature = self.best_look.curvature[np.ix_(self.free, self.free)]
        space = self.objective.space
        axes = DeterminedAxes.of(curvature, space.way(self.best)[self.free])
        return axes.gain(g, *(way[self.free] for way in space.ways(self.best)))

    def _inside(self, share: float = _NEAR) -> tuple[np.ndarray, np.ndarray]:
        """Return the bounds that are near (-1, 1, else 0) and the slopes towards these."""
        space = self.objective.space
        sides = space.at_bound(self.best, share)
        slopes = space.slopes(self.best)
        with np.errstate(all="ignore"):
            towards = np.where(sides != 0, sides * self.best_look.gradient / slopes, 0.0)
        return sides, towards

    def pressing(self, share: float = _NEAR) -> np.ndarray:
        """Return the bounds (-1, 1, else 0) that a Newton step in the parameters would cross."""
        sides, towards = self._inside(share)
        near = (sides != 0) & self.free & (towards > 0.0)
        curvature = self.best_look.curvature
        if not np.any(near) or curvature is None:
            return np.where(near, sides, 0)
        part = self.best[self.free]
        axes = DeterminedAxes.of(curvature[np.ix_(self.free, self.free)], self._way(part))
        step = np.zeros(len(self.best))
        step[self.free] = axes.newton(self.best_look.gradient[self.free])
        space = self.objective.space
        distance = np.abs(space.flat(self.best) - space.flat(space.on_bound(self.best, sides)))
        across = sides * space.slopes(self.best) * step >= distance
        return np.where(near & across, sides, 0)

    def hold(self) -> bool:
        """Put the numbers that press against their bounds onto them, and hold them there.

        The others follow by a step of Newton's method, or stay where they are. Return whether the
        objective is as large there.
        """
        sides = self.pressing()
        if not np.any(sides):
            return False
        first = np.argmax(np.abs(sides * self.best_look.gradient))
        alone = np.where(np.arange(len(sides)) == first, sides, 0)
        for some in (sides, alone):
            z = self.objective.space.on_bound(self.best, some)
            for trial in (self._followed(z, some != 0), z):
                look = self.objective.look(trial)
                if look.value >= self.best_look.value - GOOD:
                    self._move(trial, look)
                    self.free = self.free & (some == 0)
                    return True
        self.refused += 1
        self.wait = self.iterations + 2**self.refused
        return False

    def _followed(self, z: np.ndarray, held: np.ndarray) -> np.ndarray:
        """Move the numbers that are not held to the maximum of the quadratic model, given ``z``."""
        curvature, others = self.best_look.curvature, self.free & ~held
        if curvature is None or not np.any(others):
            return z
        space = self.objective.space
        along = (space.flat(z) - space.flat(self.best))[held] / space.slopes(self.best)[held]
        slope = self.best_look.gradient[others] - curvature[np.ix_(others, held)] @ along
        axes = DeterminedAxes.of(curvature[np.ix_(others, others)], space.way(self.best)[others])
        step = axes.newton(slope)
        moved = z.copy()
        moved[others] += step / max(1.0, float(np.max(np.abs(step))))
        return moved

    def released(self, wanted: np.ndarray) -> bool:
        """Let go of held numbers where the objective rises inside; return whether there are any."""
        sides, towards = self._inside()
        space, curvature = self.objective.space, self.best_look.curvature
        inside = wanted & ~self.free & (towards < 0.0)
        ends = space.flat(space.on_bound(self.best, sides, _NEAR))
        reach = np.abs(ends - space.flat(space.on_bound(self.best, sides)))
        gain = -towards * reach
        if curvature is not None:
            with np.errstate(all="ignore"):
                bend = np.diagonal(curvature) / space.slopes(self.best) ** 2
                newton = 0.5 * towards**2 / np.where(bend > 0.0, bend, np.inf)
                gain = np.where(newton > 0.0, np.minimum(gain, newton), gain)
        inside &= gain > ENOUGH
        if not np.any(inside):
            return False
        for share in _SHARES:
            z = space.on_bound(self.best, np.where(inside, sides, 0), share)
            look = self.objective.look(z)
            if look.value > self.best_look.value:
                self._move(z, look)
                self.free = self.free | inside
                return True
        return False

    def _unseen(self, z: np.ndarray, look: Look) -> np.ndarray:
        """Return a mask of the numbers that change nothing at ``z``."""
        if look.curvature is None:
            return np.zeros(len(z), bool)
        size = np.sqrt(np.maximum(np.diagonal(look.curvature), 0.0))
        return self.free & (size * self.objective.space.way(z) < SEEN)

    def elsewhere(self) -> bool:
        """Move a number that changes nothing here to where it does, if the objective is larger.

        Return whether there is such a place.
        """
        best, found = self.best_look.value + _BETTER, None
        for i in np.flatnonzero(self._unseen(self.best, self.best_look)):
            for step in (*_LEAPS, *(-one for one in _LEAPS)):
                z = self.best.copy()
                z[i] += step
                look = self.objective.look(z)
                if look.value > best and not self._unseen(z, look)[i]:
                    best, found = look.value, z
        if found is None:
            return False
        self._move(found, self.objective.look(found))
        return True

    def back(self, start: np.ndarray) -> None:
        """Put numbers that change nothing back to their starts."""
        z = np.where(self._unseen(self.best, self.best_look), start, self.best)
        look = self.objective.look(z)
        if look.value >= self.best_look.value - ENOUGH:
            self._move(z, look)

    def _move(self, z: np.ndarray, look: Look) -> None:
        self.best, self.best_look, self.full = z, look, z.copy()

    def after_iteration(self, intermediate_result: Any) -> None:
        """Stop at a maximum, at a bound, or where no progress is possible."""
        self.iterations += 1
        gained = self.best_look.value > self.seen
        self.without_gain = 0 if gained else self.without_gain + 1
        self.seen = max(self.seen, self.best_look.value)
        self.stopped = self.iterations >= self.wait and bool(np.any(self.pressing(_NEARER)))
        if self.stopped or self.left() < ENOUGH or self.without_gain >= _NO_GAIN:
            raise StopIteration


def maximise(
    objective: Objective,
    start: np.ndarray,
    *,
    pressed: Callable[[], bool],
    max_iterations: int,
    free: np.ndarray | None = None,
) -> Optimum:
    """The nearest maximum; of some of the coordinates only if ``free`` says which."""
    wanted = np.ones(len(start), bool) if free is None else free
    search = _Search(objective, start, wanted, pressed)
    search.free = wanted & (objective.space.at_bound(start) == 0)
    try:
        message, success = _climb(search, max_iterations)
        for _ in range(_ROUNDS * (1 + len(start))):
            stopped, held = search.stopped, search.hold()
            if not (stopped or held or search.released(wanted) or search.elsewhere()):
                break
            message, success = _climb(search, max_iterations)
        search.back(start)
    except _Stopped:
        message, success = "interrupted: these are the best values found so far", False
        return Optimum(
            search.best, search.best_look, success, message, True, search.iterations, start
        )
    return Optimum(search.best, search.best_look, success, message, False, search.iterations, start)


def _climb(search: _Search, total: int) -> tuple[str, bool]:
    search.full, search.without_gain, search.stopped = search.best.copy(), 0, False
    if not np.any(search.free):
        return "converged", True
    most = max(total - search.iterations, 1)
    if search.best_look.curvature is not None:
        if search.left() >= ENOUGH:
            minimize(
                search.value,
                search.full[search.free],
                jac=search.gradient,
                hess=search.curvature,
                method="trust-exact",
                callback=search.after_iteration,
                options={"gtol": 0.0, "maxiter": most, "initial_trust_radius": 0.5},
            )
        left = search.left()
        if left < ENOUGH:
            return "converged", True
        if search.stopped:
            return "stopped at a bound", False
        if search.iterations >= total:
            return f"stopped after max_iterations = {total}", False
    before = search.iterations
    inverse = None
    with np.errstate(all="ignore"):
        found = minimize(
            lambda part: (search.value(part), search.gradient(part)),
            search.best[search.free],
            jac=True,
            method="BFGS",
            options={"gtol": 1e-6 * max(abs(search.best_look.value), 1.0), "maxiter": most},
        )
    search.iterations = before + int(found.nit)
    if search.best_look.curvature is None:
        inverse = np.asarray(found.hess_inv)
    left = search.left(inverse)
    if left < ENOUGH or (found.success and left < GOOD):
        return "converged", True
    if left < GOOD:
        return (
            "converged as far as the roughness of the likelihood allows (a step would still gain "
            f"{left:.1g})"
        ), True
    if found.nit >= most:
        return f"stopped after max_iterations = {total}", False
    return (
        f"no way up was found, though a step along the slope should gain {left:.2g}",
        False,
    )


def drawn_starts(
    objective: Objective, first: np.ndarray, count: int, seed: int
) -> list[np.ndarray]:
    """The user's start, and others where the objective is finite."""
    rng = np.random.default_rng(seed)
    found = [first]
    for _ in range(100 * count):
        if len(found) >= count:
            break
        z = objective.space.draw(rng)
        if objective.look(z).value > -np.inf:
            found.append(z)
    return found


def search(
    stages: Sequence[tuple[Objective, float | None]],
    start: np.ndarray,
    *,
    pressed: Callable[[], bool],
    max_iterations: int,
) -> Optimum:
    """One stage after the other, each from where the last one has ended.

    All but the last are objectives with a given diffusion, to be tempered.
    """
    z, iterations, stopped = start, 0, False
    left_out: list[float] = []
    *before, (last, _) = stages
    if not last.look(start).value > -np.inf:
        message = "there is no solution at the start"
        return Optimum(start, last.look(start), False, message, False, 0, start)
    for objective, diffusion in before:
        assert diffusion is not None
        objective.temper(diffusion)
        if stopped:
            continue
        if not objective.look(z).value > -np.inf:
            left_out.append(diffusion)
            continue
        found = maximise(objective, z, pressed=pressed, max_iterations=max_iterations)
        z, iterations, stopped = found.z, iterations + found.iterations, found.interrupted
    if left_out:
        shown = ", ".join(f"{one:g}" for one in left_out)
        warnings.warn(
            f"tempering left out the diffusions {shown}: with them there was no solution where the "
            "search was (it failed, or took more than max_steps; jumps of f in time do that).",
            RuntimeWarning,
            stacklevel=3,
        )
    if not last.look(z).value > -np.inf:
        z = start
    found = maximise(last, z, pressed=pressed, max_iterations=max_iterations)
    return found._replace(start=start, iterations=iterations + found.iterations)


def hessian(objective: Objective, z: np.ndarray) -> np.ndarray | None:
    """Negative Hessian of the objective, by central differences of its exact gradients.

    The steps are a twentieth of what the curvature says is a standard error. ``None`` where there
    is no solution nearby.
    """
    curvature = objective.look(z).curvature
    steps = np.full(len(z), 1e-3)
    if curvature is not None:
        sizes = np.diagonal(curvature)
        steps = np.where(sizes > 0.0, 0.05 / np.sqrt(np.where(sizes > 0.0, sizes, 1.0)), 1e-2)
        steps = np.clip(steps, 1e-6, 1e-1)
    rows = []
    for i, h in enumerate(steps):
        step = np.zeros(len(z))
        step[i] = h
        looks = [objective.look(z + step), objective.look(z - step)]
        if not all(np.isfinite(look.value) for look in looks):
            return None
        rows.append((looks[1].gradient - looks[0].gradient) / (2.0 * h))
    found = np.array(rows)
    return 0.5 * (found + found.T)
