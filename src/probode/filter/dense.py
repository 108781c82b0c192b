"""The filter with covariances that data may couple in any way."""

from dataclasses import replace

import jax.numpy as jnp
from jaxtyping import Array

from probode.filter.step import Method
from probode.model.structure import Dense


def dense(method: Method) -> Method:
    """The method with covariances that data may couple in any way."""
    structure = method.structure
    return replace(method, structure=Dense(structure.n, structure.d))


def widened(method: Method, factor: Array) -> Array:
    """A factor, or a gain, of the method's structure as a dense one."""
    made: Array = dense(method).structure.widen(factor)
    return made


def known_columns(method: Method, factor: Array, h: Array) -> Array:
    """Columns of a dense factor for ``(y, ..., y^(k-1))``, in plain units."""
    coords = method.prior.coordinates(h)
    parts = [coords[j] * method.structure.select(factor, j) for j in range(method.equation.order)]
    return jnp.concatenate(parts, axis=-1)
