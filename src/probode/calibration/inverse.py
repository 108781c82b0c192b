"""Inverses of many small matrices at once."""

import jax.numpy as jnp
from jaxtyping import Array, Complex

_UNROLLED = 4
"""Up to this size elimination is written out: vectorised over all matrices, no library calls."""


def inverse(matrix: Complex[Array, "*batch d d"]) -> Complex[Array, "*batch d d"]:
    """Inverse by elimination with partial pivoting.

    Libraries treat one matrix per call, which for matrices of order two or three costs ten times
    the arithmetic.
    """
    d = matrix.shape[-1]
    if d > _UNROLLED:
        return jnp.linalg.inv(matrix)
    eye = jnp.broadcast_to(jnp.eye(d, dtype=matrix.dtype), matrix.shape)
    rows = [jnp.concatenate([matrix[..., i, :], eye[..., i, :]], axis=-1) for i in range(d)]
    for i in range(d):
        for r in range(i + 1, d):
            # Sorting by the pivot: the largest ends up in row i.
            larger = (jnp.abs(rows[r][..., i]) > jnp.abs(rows[i][..., i]))[..., None]
            rows[i], rows[r] = (
                jnp.where(larger, rows[r], rows[i]),
                jnp.where(larger, rows[i], rows[r]),
            )
        rows[i] = rows[i] / rows[i][..., i : i + 1]
        for r in range(d):
            if r != i:
                rows[r] = rows[r] - rows[r][..., i : i + 1] * rows[i]
    return jnp.stack([row[..., d:] for row in rows], axis=-2)
