"""Where an objective is largest, by SciPy's optimisers.

With a likelihood that tells what it is made of (its whitened residuals), a trust region with the
curvature of Gauss, Newton and Fisher: Levenberg and Marquardt's method on the objective itself,
with its priors and a noise that may be a parameter. Others, and where that does not get on, by
BFGS.

Whether a maximum was reached is asked in units of the log likelihood: ``½ gᵀ C⁻¹ g``, what a step
of Newton's method would still gain. At 1e-6 the estimates are a thousandth of a standard error
away.

A bound is infinitely far away in the coordinates of the search. A number that Newton's method in
the parameters themselves would take across its bound is put on it and held there while the others
are searched, and let go if the slope then points inside (conditions of Karush, Kuhn and Tucker).
Directions in which the data cannot change their mind are left as they are at the start.
"""

import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import minimize

from probode.inference.objective import Look, Objective

ENOUGH = 1e-6
"""What a step may still gain at a maximum, in units of the log likelihood."""
GOOD = 1e-3
"""The same where the objective is too rough to get closer: 4 % of a standard error."""
_NO_GAIN = 6
"""Rejected steps in a row after which the objective is too rough to get on."""
_SINGULAR, _SMALL = 1e-12, 1e-6
"""Eigenvalues of curvatures of unit diagonal: made of rounding; and those of distinct numbers."""
_FARTHER = 1e6
"""A long way in ``z`` during a search, for numbers without bounds: starts may be much too small."""
_SEEN = 1e-3
"""Change of the data along that way, in units of their noise, which says nothing about it."""
_NEAR = 0.1
"""Share of an interval, or of the distance at the start, that is near to a bound."""


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
        self.loose = np.zeros(len(self.full), bool)
        """Numbers that are not to be put on their bounds (again)."""

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
        """Gradient and curvature without the directions that the data do not determine.

        There the gradient is made of rounding, and a step of any length would follow.
        """
        assert look.curvature is not None
        curvature = look.curvature[np.ix_(self.free, self.free)]
        axes = Axes.of(curvature, self._way(part))
        stiff = float(np.mean(np.diagonal(curvature))) or 1.0
        rest = np.linalg.qr(axes.unknown)[0]
        slope = axes.size * (
            axes.vectors @ (axes.vectors.T @ (look.gradient[self.free] / axes.size))
        )
        return slope, axes.curvature() + stiff * rest @ rest.T

    def _way(self, part: np.ndarray) -> np.ndarray:
        """How far a number may be from here, if its start may be much too small."""
        z = np.where(self.free, 0.0, self.full)
        z[self.free] = part
        return self.objective.space.way(z, _FARTHER)[self.free]

    def left(self, inverse: np.ndarray | None = None) -> float:
        """What a step of Newton's method from the best place would gain, if it is not too long."""
        g = self.best_look.gradient[self.free]
        if inverse is not None:
            return float(0.5 * g @ inverse @ g)
        if self.best_look.curvature is None:
            return np.inf
        curvature = self.best_look.curvature[np.ix_(self.free, self.free)]
        way = self.objective.space.way(self.best)[self.free]
        return Axes.of(curvature, way).gain(g, way)

    def _inside(self) -> tuple[np.ndarray, np.ndarray]:
        """Bounds that are near (-1, 1, else 0), and slopes of the objective towards these."""
        space = self.objective.space
        sides = space.at_bound(self.best, _NEAR)
        slopes = space.slopes(self.best)
        with np.errstate(all="ignore"):
            towards = np.where(sides != 0, sides * self.best_look.gradient / slopes, 0.0)
        return sides, towards

    def pressing(self) -> np.ndarray:
        """Bounds across which a step of Newton's method in the parameters would lead."""
        sides, towards = self._inside()
        near = (sides != 0) & self.free & ~self.loose & (towards > 0.0)
        curvature = self.best_look.curvature
        if not np.any(near) or curvature is None:
            return np.where(near, sides, 0)
        part = self.best[self.free]
        axes = Axes.of(curvature[np.ix_(self.free, self.free)], self._way(part))
        step = np.zeros(len(self.best))
        step[self.free] = axes.newton(self.best_look.gradient[self.free])
        space = self.objective.space
        distance = np.abs(space.flat(self.best) - space.flat(space.on_bound(self.best, sides)))
        across = sides * space.slopes(self.best) * step >= distance
        return np.where(near & across, sides, 0)

    def hold(self, sides: np.ndarray) -> None:
        """Put numbers on their bounds and hold them there, if the objective does not mind."""
        z = self.objective.space.on_bound(self.best, sides)
        look = self.objective.look(z)
        self.loose |= sides != 0
        if look.value >= self.best_look.value - GOOD:
            self._move(z, look)
            self.free = self.free & (sides == 0)

    def released(self, wanted: np.ndarray) -> bool:
        """Let go of numbers on their bounds where the objective rises inside; whether there are."""
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
        for share in (_NEAR, 1e-2, 1e-3, 1e-4, 1e-6):
            z = space.on_bound(self.best, np.where(inside, sides, 0), share)
            look = self.objective.look(z)
            if look.value > self.best_look.value:
                self._move(z, look)
                self.free = self.free | inside
                return True
        return False

    def back(self, start: np.ndarray) -> None:
        """Put numbers back to their starts about which the data say nothing at all."""
        curvature = self.best_look.curvature
        if curvature is None:
            return
        way = self.objective.space.way(self.best)[self.free]
        size = np.sqrt(np.maximum(np.diagonal(curvature)[self.free], 0.0))
        z = self.best.copy()
        z[self.free] = np.where(size * way < _SEEN, start[self.free], z[self.free])
        look = self.objective.look(z)
        if look.value >= self.best_look.value - ENOUGH:
            self._move(z, look)

    def _move(self, z: np.ndarray, look: Look) -> None:
        self.best, self.best_look, self.full = z, look, z.copy()

    def after_iteration(self, intermediate_result: Any) -> None:
        """Stop at a maximum, at a bound, or where it is not possible to get on."""
        self.iterations += 1
        gained = self.best_look.value > self.seen
        self.without_gain = 0 if gained else self.without_gain + 1
        self.seen = max(self.seen, self.best_look.value)
        if self.left() < ENOUGH or self.without_gain >= _NO_GAIN or np.any(self.pressing()):
            raise StopIteration


class Axes(NamedTuple):
    """A curvature ``C = D V Λ Vᵀ D`` of unit diagonal ``D⁻¹ C D⁻¹``, where the data determine it."""

    size: np.ndarray
    """``D``."""
    values: np.ndarray
    vectors: np.ndarray
    unknown: np.ndarray
    """Columns of ``D⁻¹ V`` along which nothing changes."""

    @classmethod
    def of(cls, curvature: np.ndarray, way: np.ndarray) -> "Axes":
        """Take ``C`` apart; ``way`` is how far each coordinate may be from here.

        Directions are unknown along which ``√(dᵀ C d)``, what all data together change by in units
        of their noise, is next to nothing on that way.
        """
        size = np.sqrt(np.maximum(np.diagonal(curvature), 0.0))
        seen = size * way >= _SEEN
        size = np.where(size > 0.0, size, 1.0)
        scaled = np.where(np.outer(seen, seen), curvature / np.outer(size, size), 0.0)
        values, vectors = np.linalg.eigh(scaled)
        with np.errstate(divide="ignore"):
            longest = np.min(way[:, None] * size[:, None] / np.abs(vectors), axis=0, initial=np.inf)
        change = np.sqrt(np.abs(values)) * longest
        known = (np.abs(values) > _SMALL) | ((np.abs(values) > _SINGULAR) & (change >= _SEEN))
        unknown = vectors[:, ~known] / size[:, None]
        return cls(size, values[known], vectors[:, known], unknown)

    def curvature(self) -> np.ndarray:
        """``C`` without the unknown directions."""
        rows = self.vectors * self.size[:, None]
        return (rows * self.values) @ rows.T

    def newton(self, gradient: np.ndarray) -> np.ndarray:
        """``C⁻¹ g``."""
        along = self.vectors.T @ (gradient / self.size)
        return self.vectors @ (along / np.abs(self.values)) / self.size

    def gain(self, gradient: np.ndarray, way: np.ndarray) -> float:
        """``½ gᵀ C⁻¹ g``, or less where a step along an axis is longer than the way."""
        along = self.vectors.T @ (gradient / self.size)
        steps = np.abs(self.vectors * (along / self.values)) / self.size[:, None]
        with np.errstate(divide="ignore"):
            share = np.min(way[:, None] / steps, axis=0, initial=1.0)
        return float(np.sum(share * (1.0 - 0.5 * share) * along**2 / np.abs(self.values)))


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
        for _ in range(2 * len(start)):
            sides = search.pressing()
            if np.any(sides):
                search.hold(sides)
            elif not search.released(wanted):
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
    search.full, search.without_gain = search.best.copy(), 0
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
        if np.any(search.pressing()):
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
