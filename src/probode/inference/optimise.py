"""Where an objective is largest, by SciPy's optimisers.

With a likelihood that tells what it is made of (its whitened residuals), a trust region with the
curvature of Gauss, Newton and Fisher: Levenberg and Marquardt's method on the objective itself,
with its priors and a noise that may be a parameter. Others, and where that does not get on, by
BFGS.

Whether a maximum was reached is asked in units of the log likelihood: ``½ gᵀ C⁻¹ g``, what a step
of Newton's method would still gain. At 1e-6 the estimates are a thousandth of a standard error
away.
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
_SINGULAR = 1e-12


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
        return -self.look(part).gradient[self.free]

    def curvature(self, part: np.ndarray) -> np.ndarray:
        found = self.look(part).curvature
        assert found is not None
        return found[np.ix_(self.free, self.free)]

    def left(self, inverse: np.ndarray | None = None) -> float:
        """What a step of Newton's method from the best place would gain."""
        g = self.best_look.gradient[self.free]
        if inverse is not None:
            return float(0.5 * g @ inverse @ g)
        if self.best_look.curvature is None:
            return np.inf
        # Near a bound x - bound = exp(z) has hardly any curvature: at most |g| is left there.
        bounded = (self.objective.space.at_bound(self.best) != 0) & self.free
        inside = self.free & ~bounded
        curvature = self.best_look.curvature[np.ix_(inside, inside)]
        rest = float(np.sum(np.abs(self.best_look.gradient[bounded])))
        return rest + gain(self.best_look.gradient[inside], curvature)

    def after_iteration(self, intermediate_result: Any) -> None:
        """Stop at a maximum, or where it is not possible to get on."""
        self.iterations += 1
        gained = self.best_look.value > self.seen
        self.without_gain = 0 if gained else self.without_gain + 1
        self.seen = max(self.seen, self.best_look.value)
        if self.left() < ENOUGH or self.without_gain >= _NO_GAIN:
            raise StopIteration


def gain(gradient: np.ndarray, curvature: np.ndarray) -> float:
    """``½ gᵀ C⁻¹ g``; directions without curvature, to rounding, do not count."""
    size = np.sqrt(np.maximum(np.diagonal(curvature), 0.0))
    size = np.where(size > 0.0, size, 1.0)
    values, vectors = np.linalg.eigh(curvature / np.outer(size, size))
    along = vectors.T @ (gradient / size)
    known = np.abs(values) > _SINGULAR * np.max(np.abs(values), initial=0.0)
    return float(0.5 * np.sum(along[known] ** 2 / np.abs(values[known])))


def maximise(
    objective: Objective,
    start: np.ndarray,
    *,
    pressed: Callable[[], bool],
    max_iterations: int,
    free: np.ndarray | None = None,
) -> Optimum:
    """The nearest maximum; of some of the coordinates only if ``free`` says which."""
    free = np.ones(len(start), bool) if free is None else free
    search = _Search(objective, start, free, pressed)
    try:
        message, success = _climb(search, max_iterations)
    except _Stopped:
        message, success = "interrupted: these are the best values found so far", False
        return Optimum(
            search.best, search.best_look, success, message, True, search.iterations, start
        )
    return Optimum(search.best, search.best_look, success, message, False, search.iterations, start)


def _climb(search: _Search, most: int) -> tuple[str, bool]:
    if not np.any(search.free):
        return "nothing to fit", True
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
        if search.iterations >= most:
            return f"stopped after max_iterations = {most}", False
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
        return f"stopped after max_iterations = {most}", False
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
