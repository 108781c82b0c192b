"""The residual of an equation at a predicted state, and what one step of the prior says of it.

An equation demands that ``r(t, x) = 0``. At the predicted mean it has the residual ``z``, and the
linearisation ``H = Σ_i B_i E_i`` with a block ``B_i`` for each derivative that it reads (``E_i x``
is the ``i``-th derivative). In the coordinates of a step (see :mod:`probode.model.prior`) that is
``H = Σ_i T_i B_i E_i``. For ``y' = f(t, y)`` it is ``E_1 - J E_0`` with ``J = 0`` (EK0), the
diagonal of the Jacobian of ``f`` (DiagonalEK1) or all of it (EK1).
"""

from typing import Any, NamedTuple, Protocol

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from probode.model.gaussian import Update, condition, norm, std_of, whiten
from probode.model.prior import Prior

Block = Any
"""A multiple of the identity (a number), a diagonal ``(d,)`` or a matrix ``(d, d)``."""

MOST = 20.0
"""The residual of a step counts as at most so many times what its update corrects."""

Blocks = dict[int, Block]
"""The blocks ``B_i`` of a linearisation, by derivative; those that are missing are zero."""


class VectorField(Protocol):
    """What a linearisation needs to know of the function of an equation."""

    def __call__(self, t: Array, y: Float[Array, " m"]) -> Float[Array, " d"]:
        """``f(t, y)``; ``y`` holds all derivatives that the equation reads, one after the other."""
        ...

    def jacobian(self, t: Array, y: Array) -> tuple[Array, Array]:
        """``f(t, y)`` and its Jacobian, ``(d, m)``."""
        ...

    def jacobian_diagonal(self, t: Array, y: Array) -> tuple[Array, Array]:
        """``f(t, y)`` and the diagonals of the square blocks of its Jacobian, ``(m,)``."""
        ...


def diagonals(jacobian: Any) -> Any:
    """The diagonals of the square blocks of a Jacobian ``(d, k d)``, unless it is given so."""
    if jacobian.ndim == 1:
        return jacobian
    d, m = jacobian.shape
    return jacobian[np.arange(m) % d, np.arange(m)]


class Residual(NamedTuple):
    """``z`` and the linearisation at a predicted mean."""

    z: Float[Array, " d"]
    blocks: Blocks
    rounding: Float[Array, " d"]
    """The level below which ``z`` is rounding noise."""


class LocalNoise(NamedTuple):
    """The residual as seen by one step of unit noise from an exactly known state."""

    whitened: Float[Array, " d"]
    """``w`` with ``wᵀw = zᵀ (H Q̃ Hᵀ)⁻¹ z``."""
    std: Float[Array, " d"]
    """``sqrt(diag(B_k⁻¹ H Q̃ Hᵀ B_k⁻ᵀ))``: of the derivative ``k`` that the equation determines.

    Times ``|h|`` and the ``s`` of the step it is the error that is judged.
    """
    update: Update | None = None
    """The update of the derivatives that the equation reads, where it is linearised again."""
    unbounded: Float[Array, " d"] | None = None
    """``std`` by the residual alone, where it is bounded by the correction."""


def local_noise(prior: Prior, h: Array, residual: Residual, exact: int | None) -> LocalNoise:
    """Whiten the residual with ``H Q̃ Hᵀ``; ``exact`` is the derivative that it determines.

    The factor ``L`` of ``Q̃`` is upper triangular, so only its leading entries meet ``H``: for a
    highest derivative ``k`` the rows ``0..k`` of ::

        (L Hᵀ)_r = Σ_i L_ri T_i B_iᵀ          i = r..k

    and a QR of them gives the factor. (A Cholesky decomposition of ``H Q̃ Hᵀ`` would lose half the
    digits, and fail for a stiff Jacobian.)
    """
    z, blocks, _ = residual
    d = z.shape[0]
    factor, coords = prior.noise_factor(jnp.abs(h)), prior.coordinates(h)
    mixed = factor.shape[-1] != prior.size
    own = 2 if mixed else factor.ndim - 2
    widest = max(own, *(jnp.ndim(block) for block in blocks.values()))
    shape = {0: (), 1: z.shape, 2: (d, d)}[widest]

    def times(r: int, i: int, block: Any) -> Array:
        """``L_ri B_iᵀ``; a matrix of the prior's own mixes components."""
        if mixed:
            return factor[r * d : (r + 1) * d, i * d : (i + 1) * d] @ block
        entry = factor[..., r, i]
        return (entry[:, None] if widest == 2 and own == 1 else entry) * block

    def row(r: int) -> Array:
        terms = [
            coords[i] * times(r, i, _widened(block, widest, d))
            for i, block in sorted(blocks.items())
            if i >= r
        ]
        return jnp.broadcast_to(sum(terms), shape)

    rows = [row(r) for r in range(max(blocks) + 1)]
    determined = 1.0 if exact is None else blocks[exact]
    if widest == 2:
        stack = jnp.concatenate(rows)
        if jnp.ndim(determined) == 2:
            return LocalNoise(whiten(stack, z), std_of(jnp.linalg.solve(determined, stack.T).T))
        return LocalNoise(whiten(stack, z), std_of(stack) / abs(determined))
    std = norm(jnp.stack(rows), 0) * jnp.ones_like(z)
    return LocalNoise(z / std, std / abs(determined))


def correction_noise(prior: Prior, h: Array, residual: Residual) -> LocalNoise:
    """Whiten the residual as :func:`local_noise`; what the update moves y by bounds its ``std``.

    From an exactly known state an update moves ``y`` by ``δ = T_0 Q̃_0. Hᵀ (H Q̃ Hᵀ)⁻¹ z``. With the
    factor ``L`` of ``Q̃``, ``X = T_0 L_00 B_0ᵀ + L_01 B_1ᵀ`` and the triangle ``R`` of ``H Q̃ Hᵀ`` ::

        Cov(δ) = (T_0 L_00)² X R⁻¹ R⁻ᵀ Xᵀ          Cov(δ) + Cov(y after the update) = T_0² Q̃_00

    However stiff ``B_0`` is, this is bounded: of ``y' = λ (y - g(t))`` the standard deviation of
    ``z`` grows with ``|h λ|``, that of ``δ`` does not. For ``B_0 = 0`` and ``B_1 = 1`` they are
    multiples of each other, ``std(z) = c std(δ) / T_0`` with ``c = (L_01² + L_11²) / (L_00 L_01)``.
    So ::

        std = min(std(z), 20 c std(δ) / T_0)

    is that of the residual, unless a component relaxes about a hundred times in a step.
    """
    d = residual.z.shape[0]
    factor, coords = prior.noise_factor(jnp.abs(h)), prior.coordinates(h)
    if factor.shape != (prior.size, prior.size):
        raise ValueError(
            'error="correction" takes priors that are the same for all components, got '
            f'{prior!r}: use a number as its rate, IWP, or error="residual".'
        )
    by_value, by_slope = (_widened(residual.blocks.get(i, 0.0), 2, d) for i in (0, 1))
    rows = [
        coords[0] * factor[0, 0] * by_value + coords[1] * factor[0, 1] * by_slope,
        coords[1] * factor[1, 1] * by_slope,
    ]
    known, observed = jnp.kron(jnp.asarray(factor)[:2, :2], jnp.eye(d)), jnp.concatenate(rows)
    update = condition(known, observed, residual.z[:, None])
    unit = (factor[0, 1] ** 2 + factor[1, 1] ** 2) / (factor[0, 0] * factor[0, 1])
    alone, bound = std_of(observed), MOST * unit * std_of(update.cross[:, :d])
    return LocalNoise(update.whitened[:, 0], jnp.minimum(alone, bound), update, alone)


def times(block: Block, x: Float[Array, " d"]) -> Any:
    """``B x``."""
    return block @ x if jnp.ndim(block) == 2 else block * x


def product(a: Block, b: Block) -> Any:
    """``A B`` of two blocks."""
    if jnp.ndim(a) == jnp.ndim(b) == 2:
        return a @ b
    return a[:, None] * b if jnp.ndim(a) == 1 and jnp.ndim(b) == 2 else a * b


def quotient(a: Block, b: Block) -> Any:
    """``A⁻¹ B`` of two blocks."""
    if jnp.ndim(a) == 2:
        return jnp.linalg.solve(a, b * jnp.eye(a.shape[0]) if jnp.ndim(b) < 2 else b)
    return b / (a[:, None] if jnp.ndim(a) == 1 and jnp.ndim(b) == 2 else a)


def with_linear_part(residual: Residual, k: int, known: Block | None) -> Residual:
    """Where no Jacobian was used, that of a part of ``f``: ``B_(k-1) = -B_k L``."""
    if known is None:
        return residual
    blocks = {**residual.blocks, k - 1: -product(residual.blocks[k], jnp.asarray(known))}
    return residual._replace(blocks=blocks)


def _widened(block: Block, ndim: int, d: int) -> Any:
    """The transpose of a block, as a matrix where others are."""
    if ndim < 2:
        return block
    if jnp.ndim(block) == 2:
        return block.T
    return block * jnp.eye(d)
