"""A search that is led by the data: multiple shooting, with links that become rigid.

Besides the parameters ``z`` the solution at every datum is an unknown, ``s_1 ... s_K``. From each
of them the equation is solved to the next datum only, ``Φ(s_k, z)``, which stays near the data
however wrong ``z`` is. Minimised, by Levenberg and Marquardt's method, is::

    ½ Σ |F_k⁻ᵀ (h(s_k) - u_k)|²  +  ½ Σ |(Φ(s_k, z) - s_(k+1)) / w_k|²  -  log p(z)
    w_k = κ ν ℓ √(h_k / h)

the data with their noise ``FᵀF``, and the links between neighbours, ``h_k`` apart. With a large
``κ`` the states follow the data, and ``z`` is what explains the way from one to the next; with a
small one the pieces are one solution, and the minimum is that of the plain likelihood. ``κ`` goes
down in stages, each from where the last one has ended. ``ℓ`` is the size of each component of the
solution and ``ν`` the share of the noise in what was measured, so that with ``κ = 1`` a link gives
way as a datum does: the noise need not be known, it cancels.

(Bock 1983 has the links rigid from the beginning; a fixed ``κ`` is weak-constraint 4D-Var. With the
solver's noise instead of ``w`` it is what diffusion tempering does, which linearises the equation
at a solution without data; here it is linearised where the data are.)
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array
from scipy.linalg import solveh_banded

from probode.base import jax_inside
from probode.base.blas import one_blas_thread
from probode.base.compile import compiled
from probode.base.precision import double_precision
from probode.base.record import unchecked
from probode.filter.control import PControl
from probode.filter.crossing import also_stopping_at
from probode.inference.means import filtered_means
from probode.inference.objective import Objective, Shape
from probode.inference.optimise import Optimum, maximise
from probode.inference.task import Plan, Task

_FIRST, _LAST, _FACTOR = 10.0, 0.01, 10.0
"""The least ``κ`` to begin with, the last one, and the largest ratio of two in a row."""
_ITERATIONS, _TRIES = 30, 8
_ENOUGH = 1e-3
"""Relative gain of an iteration below which the next stage may begin."""
_LONGEST = 2.0
"""Of a step, in each coordinate ``z``."""
_RIGID = 1e-2
"""Least width of a link between data at the same time, in units of the others."""
_UNSEEN = 0.3
"""Links of components that are not measured, in units of others: no datum pulls at them."""
_SINGULAR = 1e-10


class Pieces(NamedTuple):
    """All pieces of a solution with their derivatives; arrays begin with the data sets."""

    link: np.ndarray
    """``Φ(s_k) - s_(k+1)``, ``(S, K, D)``."""
    by_state: np.ndarray
    """``dΦ/ds``, ``(S, K, D, D)``; the last axis is ``s``."""
    by_z: np.ndarray
    """``dΦ/dz``, ``(S, K, D, P)``."""
    datum: np.ndarray
    """Whitened residuals, ``(S, K, m)``."""
    datum_by_state: np.ndarray
    datum_by_z: np.ndarray
    reached: np.ndarray
    prior: np.ndarray
    prior_slope: np.ndarray
    prior_curvature: np.ndarray


class Followed(NamedTuple):
    """Where to begin."""

    states: np.ndarray
    width: np.ndarray
    """Of the links, with ``κ = 1``."""
    share: float
    """Of the noise in the standard deviation of what was measured."""

    def stages(self) -> np.ndarray:
        """All ``κ``; with the first one a link may give way by as much as the solution moves."""
        first = max(_FIRST, 1.0 / self.share)
        count = int(np.ceil(np.log(first / _LAST) / np.log(_FACTOR))) + 1
        return np.geomspace(first, _LAST, count)


class Shooting:
    """The pieces of the solution of an objective."""

    def __init__(self, objective: Objective) -> None:
        plan = objective.plan._replace(kind="plain", calibration="model")
        self.objective = Objective(objective.statement, plan, objective.solver, objective.control)
        self.space = objective.space

    def followed(self, z: np.ndarray) -> "Followed":
        """States that follow the data, whatever ``z`` is."""
        shape, (constants, _, numbers) = self.objective.program
        with double_precision(), one_blas_thread():
            found = _followed(shape, constants, jnp.asarray(z), *numbers)
        states, noise, u, t, seen = (np.asarray(x) for x in found)
        size = np.std(states, axis=(0, 1))
        largest = np.max(np.abs(states), axis=(0, 1))
        size = np.where(size > 1e-6 * largest, size, np.where(largest > 0.0, largest, 1.0))
        with np.errstate(all="ignore"):
            shares = np.sqrt(np.nanmean(noise**2, axis=(0, 1)) / np.nanvar(u, axis=(0, 1)))
        known = shares[np.isfinite(shares)]
        share = float(np.median(known)) if known.size else 1.0
        apart = np.abs(np.diff(t, axis=1))
        apart = np.sqrt(np.maximum(apart / np.mean(apart), _RIGID**2))
        seen = np.mean(seen, axis=(0, 1))
        size = size * (seen + (1.0 - seen) * _UNSEEN)
        return Followed(states, share * size * apart[..., None], share)

    def pieces(self, z: np.ndarray, states: np.ndarray) -> Pieces:
        """All pieces from these states."""
        shape, (constants, others, numbers) = self.objective.program
        with double_precision(), one_blas_thread():
            found = _pieces(shape, constants, others, jnp.asarray(z), jnp.asarray(states), *numbers)
        return Pieces(*(np.asarray(x) for x in found))


def _task(shape: Shape, constants: Any, z: Array, s: Array, numbers: Any) -> Task:
    leaves = jax_inside.run(shape.task.jaxpr, constants, z, s, *numbers)
    return jax.tree.unflatten(shape.tree, leaves)


def _flow(plan: Plan, task: Task, begin: Array, end: Array, y: Array) -> tuple[Array, Array]:
    """``y`` at ``end``, and whether it was reached; nothing happens in no time."""
    still = begin == end
    there = jnp.where(still, begin + jnp.abs(task.end - task.t0) + 1.0, end)[None]
    assert isinstance(task.control, PControl)
    control = also_stopping_at(task.control, there, begin, there[0])
    data = unchecked(type(task.data), {**vars(task.data), "t": there})
    one = {**vars(task), "t0": begin, "y0": y, "data": data, "times": there}
    one["control"] = control
    one["inside"] = jnp.asarray(True)
    means, reached = filtered_means(plan, unchecked(Task, one))
    return jnp.where(still, y, means[0]), still | reached


@compiled(0)
def _followed(shape: Shape, constants: Any, z: Array, *numbers: Array) -> Any:
    def subject(s: Array) -> Any:
        task = _task(shape, constants, z, s, numbers)
        t, zero = task.times, jnp.zeros_like(task.y0)

        def body(carry: Any, k: Array) -> Any:
            begin, y = carry
            there, reached = _flow(shape.plan, task, begin, t[k], y)
            there = jnp.where(reached & jnp.all(jnp.isfinite(there)), there, y)
            site = task.data.site(k, there, zero)
            back = jnp.linalg.pinv(site.matrix)
            moved = there - back @ site.z
            moved = jnp.where(jnp.all(jnp.isfinite(moved)), moved, there)
            noise = jnp.sqrt(jnp.sum(site.noise**2, axis=0))
            seen = jnp.clip(jnp.sum(back.T * site.matrix, axis=0), 0.0, 1.0)
            return (t[k], moved), (moved, noise, seen)

        _, (states, noise, seen) = jax.lax.scan(body, (task.t0, task.y0), jnp.arange(t.shape[0]))
        known = task.data.known > 0.0
        noise, u = (jnp.where(known, x, jnp.nan) for x in (noise, task.data.u))
        return states, noise, u, jnp.concatenate([task.t0[None], t]), seen

    return jax.vmap(subject)(jnp.arange(shape.subjects or 1))


@compiled(0)
def _pieces(
    shape: Shape, constants: Any, others: Any, z: Array, states: Array, *numbers: Array
) -> Any:
    size = states.shape[-1]

    def all_of(z: Array, before: Array, after: Array) -> Any:
        def subject(s: Array, own: Array) -> Any:
            task = _task(shape, constants, z, s, numbers)
            t = task.times
            begin = jax.lax.stop_gradient(jnp.concatenate([task.t0[None], t[:-1]]))
            left = jnp.concatenate([task.y0[None], own[:-1]]) + before

            def one(k: Array, y: Array) -> Any:
                return _flow(shape.plan, task, begin[k], t[k], y)

            indices = jnp.arange(t.shape[0])
            there, reached = jax.vmap(one)(indices, left)

            def row(k: Array, y: Array) -> Array:
                site = task.data.site(k, y, jnp.zeros_like(y))
                factor = jax.lax.stop_gradient(site.noise)
                return jax.scipy.linalg.solve_triangular(factor, site.z, trans=1)

            seen = jax.vmap(row)(indices, own + after)
            return there, seen, jnp.all(reached)

        return jax.vmap(subject)(jnp.arange(shape.subjects or 1), states)

    nothing = jnp.zeros(size)

    def along(direction: Array) -> Any:
        dz, dy = direction[: z.size], direction[z.size :]
        return jax.jvp(all_of, (z, nothing, nothing), (dz, dy, dy))

    (there, seen, reached), (by, seen_by, _) = jax.vmap(along, out_axes=(None, -1))(
        jnp.eye(z.size + size)
    )

    def prior(z: Array) -> Array:
        return shape.prior(others, z, *numbers)[0]

    links = there - states, by[..., z.size :], by[..., : z.size]
    data = seen, seen_by[..., z.size :], seen_by[..., : z.size]
    known = prior(z), jax.grad(prior)(z), jax.hessian(prior)(z)
    return (*links, *data, jnp.all(reached), *known)


class _Place(NamedTuple):
    """Parameters and states, and what is there."""

    z: np.ndarray
    states: np.ndarray
    pieces: Pieces
    width: np.ndarray

    @property
    def cost(self) -> float:
        """Half the sum of squares; infinite where a piece has no solution."""
        squares = np.sum((self.pieces.link / self.width) ** 2) + np.sum(self.pieces.datum**2)
        cost = float(0.5 * squares - self.pieces.prior)
        return cost if self.pieces.reached and np.isfinite(cost) else np.inf


class _Equations(NamedTuple):
    """Gauss and Newton's: those of the states are block tridiagonal, ``z`` is their border."""

    diagonal: np.ndarray
    below: np.ndarray
    border: np.ndarray
    corner: np.ndarray
    slope: np.ndarray
    slope_z: np.ndarray

    def step(self, damping: float) -> tuple[np.ndarray, np.ndarray]:
        """Of ``z`` and of the states; raises ``LinAlgError`` where rounding is in the way."""
        n, size = self.slope.size, self.slope.shape[-1]
        border = self.border.reshape(n, -1)
        right = np.column_stack([border, self.slope.ravel()])
        solved = solveh_banded(self._band(size, damping), right, lower=True, check_finite=False)
        own = np.diagonal(self.corner)
        least = _SINGULAR * np.max(own, initial=0.0) + np.finfo(float).tiny
        reduced = self.corner + np.diag(damping * own + least) - border.T @ solved[:, :-1]
        dz = -np.linalg.solve(reduced, self.slope_z - border.T @ solved[:, -1])
        return dz, -(solved[:, -1] + solved[:, :-1] @ dz).reshape(self.slope.shape)

    def _band(self, size: int, damping: float) -> np.ndarray:
        """Lower diagonals of the matrix of the states, as LAPACK wants them."""
        blocks = self.diagonal.reshape(-1, size, size)
        under = np.zeros_like(self.diagonal)
        under[:, :-1] = self.below
        under = under.reshape(-1, size, size)
        band = np.zeros((2 * size, len(blocks) * size))
        for j in range(size):
            for i in range(size):
                if i >= j:
                    band[i - j, j::size] = blocks[:, i, j]
                band[size + i - j, j::size] = under[:, i, j]
        band[0] *= 1.0 + damping
        return band[: band.shape[1]]


def _equations(place: _Place) -> _Equations:
    """Around a place; the piece to datum ``k`` begins at the state ``k - 1``, the first at y0."""
    found, inverse = place.pieces, 1.0 / place.width
    flow, by_z = found.by_state * inverse[..., None], found.by_z * inverse[..., None]
    link, flow, later = found.link * inverse, flow[:, 1:], by_z[:, 1:]
    h, hz, white = found.datum_by_state, found.datum_by_z, found.datum
    diagonal = np.einsum("skmi,skmj->skij", h, h)
    diagonal += inverse[..., None] ** 2 * np.eye(h.shape[-1])
    diagonal[:, :-1] += np.einsum("skai,skaj->skij", flow, flow)
    border = np.einsum("skmi,skmp->skip", h, hz) - inverse[..., None] * by_z
    border[:, :-1] += np.einsum("skai,skap->skip", flow, later)
    corner = np.einsum("skap,skaq->pq", by_z, by_z) + np.einsum("skmp,skmq->pq", hz, hz)
    slope = np.einsum("skmi,skm->ski", h, white) - inverse * link
    slope[:, :-1] += np.einsum("skai,ska->ski", flow, link[:, 1:])
    slope_z = np.einsum("skap,ska->p", by_z, link) + np.einsum("skmp,skm->p", hz, white)
    values, vectors = np.linalg.eigh(-found.prior_curvature)
    prior = (vectors * np.maximum(values, 0.0)) @ vectors.T
    below = -inverse[:, 1:, :, None] * flow
    return _Equations(diagonal, below, border, corner + prior, slope, slope_z - found.prior_slope)


def begun(
    shooting: Shooting, start: np.ndarray, *, pressed: Callable[[], bool], max_iterations: int
) -> Optimum:
    """The better of two maxima of the plain likelihood: where the data lead, and the nearest."""
    z, iterations = led(shooting, start, pressed=pressed)
    found = [
        maximise(shooting.objective, one, pressed=pressed, max_iterations=max_iterations)
        for one in (z, start)
        if shooting.objective.look(one).value > -np.inf
    ]
    if not found:
        look, message = shooting.objective.look(start), "there is no solution at the start"
        return Optimum(start, look, False, message, pressed(), iterations, start)
    best = max(found, key=lambda one: one.look.value)
    total = iterations + sum(one.iterations for one in found)
    interrupted = any(one.interrupted for one in found)
    return best._replace(start=start, iterations=total, interrupted=interrupted)


def led(
    shooting: Shooting, z: np.ndarray, *, pressed: Callable[[], bool] = lambda: False
) -> tuple[np.ndarray, int]:
    """Where the data lead from ``z``, and how many iterations it took.

    ``z`` itself where the equation has no solution from one datum to the next.
    """
    begun = shooting.followed(z)
    states, iterations = begun.states, 0
    for kappa in begun.stages():
        width = kappa * begun.width
        place = _Place(z, states, shooting.pieces(z, states), width)
        place, count = _descend(shooting, place, pressed)
        z, states, iterations = place.z, place.states, iterations + count
    return z, iterations


def _descend(shooting: Shooting, place: _Place, pressed: Callable[[], bool]) -> tuple[_Place, int]:
    """Levenberg and Marquardt's method until there is little to be gained."""
    damping, cost = 1e-2, place.cost
    if not cost < np.inf:
        return place, 0
    for count in range(_ITERATIONS):
        equations = _equations(place)
        for _ in range(_TRIES):
            if pressed():
                return place, count
            try:
                dz, ds = equations.step(damping)
            except np.linalg.LinAlgError:
                damping = max(10.0 * damping, 1e-4)
                continue
            part = min(1.0, _LONGEST / max(float(np.max(np.abs(dz))), np.finfo(float).tiny))
            moved = place.z + part * dz, place.states + part * ds
            tried = _Place(*moved, shooting.pieces(*moved), place.width)
            if tried.cost < cost:
                break
            damping = max(6.0 * damping, 1e-4)
        else:
            return place, count
        gained, place, cost, damping = cost - tried.cost, tried, tried.cost, damping / 5.0
        if part == 1.0 and gained < _ENOUGH * abs(cost):
            return place, count + 1
    return place, _ITERATIONS
