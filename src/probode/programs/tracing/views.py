"""NumPy's views and item assignment for values that cannot be written to.

A view is an operation on the array that it looks into: ``read`` takes the part out, ``write`` puts
a new part in. Indices are static wherever NumPy's are, so both become slices, concatenations,
padding and selections: operations that every transformation of JAX knows, and that compile to fast
code.
"""

import operator
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

Value = np.ndarray | jax.Array
"""What is computed with: known (NumPy) or traced (JAX)."""


@dataclass(frozen=True)
class Index:
    """``x[key]`` with integers, slices, ``None`` and ``...``: NumPy's basic indexing."""

    key: tuple[Any, ...]

    @property
    def name(self) -> tuple[Any, ...]:
        """A key that differs from those of other views."""
        ends = [(k.start, k.stop, k.step) if isinstance(k, slice) else k for k in self.key]
        return "index", ends

    def read(self, base: Any) -> Any:
        """The part of ``base``."""
        return base[self.key]

    def write(self, base: Value, part: Value) -> Value:
        """``base`` with the part replaced."""
        return write_slices(base, self.key, part)

    def same(self, key: tuple[Any, ...]) -> bool:
        """Whether ``key`` is this index."""
        return len(key) == len(self.key) and all(
            type(a) is type(b) and a == b for a, b in zip(key, self.key, strict=True)
        )


@dataclass(frozen=True)
class Reshape:
    """``x.reshape(shape)``."""

    shape: tuple[int, ...]

    @property
    def name(self) -> tuple[Any, ...]:
        """A key that differs from those of other views."""
        return "reshape", self.shape

    def read(self, base: Any) -> Any:
        """``base`` in the new shape."""
        return base.reshape(self.shape)

    def write(self, base: Value, part: Value) -> Value:
        """``part`` in the old shape."""
        return part.reshape(base.shape)


@dataclass(frozen=True)
class Transpose:
    """``x.transpose(axes)``."""

    axes: tuple[int, ...]

    @property
    def name(self) -> tuple[Any, ...]:
        """A key that differs from those of other views."""
        return "transpose", self.axes

    def read(self, base: Any) -> Any:
        """``base`` with its axes in the new order."""
        return base.transpose(self.axes)

    def write(self, base: Value, part: Value) -> Value:
        """``part`` with its axes in the old order."""
        return part.transpose(tuple(np.argsort(self.axes).tolist()))


View = Index | Reshape | Transpose


def normalise(key: tuple[Any, ...]) -> tuple[Any, ...]:
    """An index with integers of any kind as ``int``."""
    return tuple(_entry(entry) for entry in key)


def _entry(entry: Any) -> Any:
    if isinstance(entry, np.ndarray) and entry.ndim == 0 and entry.dtype.kind in "iu":
        return int(entry)
    if isinstance(entry, np.integer):
        return int(entry)
    if isinstance(entry, slice):
        return slice(*(_bound(bound) for bound in (entry.start, entry.stop, entry.step)))
    return entry


def _bound(bound: Any) -> int | None:
    return None if bound is None else operator.index(bound)


def is_basic(key: tuple[Any, ...]) -> bool:
    """Whether NumPy would make a view (or, for integers only, pick an element)."""
    return all(
        entry is None
        or entry is Ellipsis
        or isinstance(entry, slice)
        or (isinstance(entry, int) and not isinstance(entry, bool))
        for entry in key
    )


def view_shape(shape: tuple[int, ...], key: tuple[Any, ...]) -> tuple[int, ...]:
    """Shape of ``x[key]``; an ``IndexError`` where NumPy raises one."""
    result: tuple[int, ...] = np.broadcast_to(np.False_, shape)[key].shape
    return result


def write_slices(base: Value, key: tuple[Any, ...], part: Value) -> Value:
    """``base`` with ``base[key] = part`` for basic indices."""
    axes = _axes(base.shape, key)
    counts = tuple(count for _, count, _ in axes)
    if 0 in counts:
        return base
    part = jnp.broadcast_to(part, view_shape(base.shape, key)).reshape(counts)
    backwards = [axis for axis, (_, _, step) in enumerate(axes) if step < 0]
    if backwards:
        part = lax.rev(part, backwards)
        axes = [
            (start + (count - 1) * step, count, -step) if step < 0 else (start, count, step)
            for start, count, step in axes
        ]
    partial = [
        axis for axis, (count, n) in enumerate(zip(counts, base.shape, strict=True)) if count != n
    ]
    if not partial:
        return part
    if isinstance(base, np.ndarray) and not base.any():
        return _pad(part, axes, base.shape)
    if len(partial) == 1 and (counts[partial[0]] == 1 or axes[partial[0]][2] == 1):
        axis = partial[0]
        start = axes[axis][0]
        base = jnp.asarray(base)
        before = lax.slice_in_dim(base, 0, start, axis=axis)
        after = lax.slice_in_dim(base, start + counts[axis], None, axis=axis)
        pieces = [piece for piece in (before, part, after) if piece.shape[axis]]
        return lax.concatenate(pieces, axis)
    inside = np.zeros(base.shape, bool)
    inside[key] = True
    return jnp.where(inside, _pad(part, axes, base.shape), base)


def _axes(shape: tuple[int, ...], key: tuple[Any, ...]) -> list[tuple[int, int, int]]:
    """First index, count and step along every axis."""
    entries = [entry for entry in key if entry is not None]
    if Ellipsis in entries:
        at = entries.index(Ellipsis)
        missing = len(shape) - len(entries) + 1
        entries[at : at + 1] = [slice(None)] * missing
    entries += [slice(None)] * (len(shape) - len(entries))
    axes = []
    for n, entry in zip(shape, entries, strict=True):
        if isinstance(entry, slice):
            every = range(*entry.indices(n))
            axes.append((every.start, len(every), every.step))
        else:
            axes.append((entry % n, 1, 1))
    return axes


def _pad(part: Value, axes: list[tuple[int, int, int]], shape: tuple[int, ...]) -> jax.Array:
    """``part`` at its places, zeros elsewhere."""
    config = []
    for (start, count, step), n in zip(axes, shape, strict=True):
        last = start + (count - 1) * step
        config.append((start, n - 1 - last, step - 1))
    part = jnp.asarray(part)
    return lax.pad(part, jnp.zeros((), part.dtype), config)


def write_known_places(base: Value, key: tuple[Any, ...], part: Value) -> Value:
    """``base`` with ``base[key] = part`` for index arrays and masks whose values are known.

    Where a place is named twice the last value stays, as in NumPy.
    """
    places = np.arange(base.size).reshape(base.shape)[key]
    if places.size == 0:
        return base
    part = jnp.broadcast_to(part, places.shape).reshape(-1)
    source = np.full(base.size, -1)
    source[places.reshape(-1)] = np.arange(places.size)
    source = source.reshape(base.shape)
    return jnp.where(source >= 0, part[np.maximum(source, 0)], base)


def write_traced_places(base: Value, key: tuple[Any, ...], part: Value) -> Value:
    """``base`` with ``base[key] = part`` where an index or a mask is traced."""
    mask = key[0]
    is_mask = len(key) == 1 and isinstance(mask, jax.Array) and mask.dtype.kind == "b"
    if is_mask and jnp.ndim(part) == 0 and mask.shape == base.shape[: mask.ndim]:
        mask = mask.reshape(mask.shape + (1,) * (base.ndim - mask.ndim))
        return jnp.where(mask, part, base)
    return jnp.asarray(base).at[key].set(part)
