"""What a solve has kept: rows of its steps joined and smoothed, and how much memory that takes."""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple, cast

import jax
import numpy as np

from probode.base.compile import compiled
from probode.base.limits import Limits
from probode.engines.native import driver
from probode.engines.native.driver import NativeChunk
from probode.filter import smooth
from probode.filter.loop import Chunk, Rows
from probode.filter.smooth import Marginals
from probode.filter.step import Method
from probode.model.gaussian import pack, unpack
from probode.model.structure import Dense

AnyChunk = Chunk | NativeChunk
"""Steps in a buffer of JAX's, or of the native kernels."""

_CHUNK_BYTES = 32 * 2**20
MOST_ROWS = 1024
"""In a chunk."""
_WORKING_MATRICES = 24
"""Square matrices as large as a dense factor that a step, smoothing it, and a chunk make use of."""
_CALIBRATION_NUMBERS = 32
"""Numbers per component and step that a calibration makes on its way."""

smooth_chunk = compiled()(smooth.smooth_chunk)


def capacity(method: Method) -> int:
    """Steps per chunk: many for small states, few where a single one takes megabytes."""
    return int(max(4, min(MOST_ROWS, _CHUNK_BYTES // state_bytes(method))))


def state_bytes(method: Method) -> int:
    """Memory that one state takes, its factor square."""
    n, d = method.structure.n, method.structure.d
    return 8 * (n * d + int(np.prod(method.structure.factor_shape)))


def row_bytes(method: Method) -> int:
    """Memory that one state takes where it is kept: of its factor the triangle."""
    n, d = method.structure.n, method.structure.d
    *blocks, _, size = method.structure.factor_shape
    return 8 * (n * d + int(np.prod(blocks)) * size * (size + 1) // 2)


def needed_bytes(method: Method, steps: int, smoothing: bool, calibrating: bool) -> float:
    """Memory for so many steps: rows, as many smoothed ones, what a calibration makes of them."""
    d, dense = method.structure.d, isinstance(method.structure, Dense)
    row = row_bytes(method) * (1 + smoothing)
    if calibrating:
        row += 8 * (_CALIBRATION_NUMBERS * d + (3 * d * d if dense else 0))
    return working_bytes(method) + steps * row


def needed_when_sparse(method: Method, steps: int) -> float:
    """The same where covariances are dropped: of every span where it begins, and one in full."""
    n, d = method.structure.n, method.structure.d
    most = capacity(method)
    in_full = 2 * most * row_bytes(method) + 2 * SPARSE_FROM
    row = state_bytes(method) / most + 8 * (n + _CALIBRATION_NUMBERS) * d
    return working_bytes(method) + in_full + steps * row


def working_bytes(method: Method) -> float:
    """Memory that a step takes, however many there are."""
    return _WORKING_MATRICES * state_bytes(method) if isinstance(method.structure, Dense) else 0.0


SPARSE_FROM = 256 * 2**20
"""Bytes of rows from which on those of a solve with chosen times are dropped, to be made again."""


class Span(NamedTuple):
    """Steps that were dropped: the solve where they begin, and what makes them again."""

    carry: Any
    steps: int
    fill: Callable[[Any, int, int], tuple[Any, Any]]

    def chunks(self) -> list[AnyChunk]:
        """The steps once more: the same, to the last digit."""
        carry, left, made = self.carry, self.steps, []
        while left > 0:
            carry, chunk = self.fill(carry, 2**30, left)
            made.append(compact(chunk))
            left -= int(chunk.steps)
        return made


Kept = list[AnyChunk] | list[Span]
"""All steps, or what makes them again."""


class Keeper:
    """Collects chunks; if ``sparse``, only where they began once they take much memory."""

    def __init__(self, method: Method | None, sparse: bool, fill: Any) -> None:
        self.method, self.sparse, self.fill = method, sparse, fill
        self.chunks: list[AnyChunk] = []
        self.spans: list[Span] = []
        self.steps = 0
        self._starts: list[Any] = []

    def add(self, carry: Any, chunk: AnyChunk) -> None:
        """A chunk, and the solve before it."""
        self.steps += int(chunk.steps)
        if self.spans:
            return self._span(carry, int(chunk.steps))
        self.chunks.append(compact(chunk))
        if not self.sparse or self.method is None:
            return None
        self._starts.append(carry)
        if self.steps * row_bytes(self.method) > SPARSE_FROM:
            for begun, kept in zip(self._starts, self.chunks, strict=True):
                self._span(begun, int(kept.steps))
            self._starts, self.chunks = [], []
        return None

    def _span(self, carry: Any, steps: int) -> None:
        """Spans are as long as chunks may be: as many rows as are made again at a time."""
        assert self.method is not None
        if self.spans and self.spans[-1].steps + steps <= capacity(self.method):
            last = self.spans.pop()
            carry, steps = last.carry, last.steps + steps
        self.spans.append(Span(carry, steps, self.fill))


def compact(chunk: AnyChunk) -> AnyChunk:
    """A chunk of JAX's without the room that was not used, factors packed; in NumPy arrays."""
    if isinstance(chunk, NativeChunk):
        return chunk
    steps = int(chunk.steps)
    rows = jax.tree.map(lambda x: np.asarray(x)[: steps + 1], chunk.rows)
    return Chunk(pack_rows(rows), steps)


def joined(
    method: Method, last: Marginals, chunks: list[AnyChunk], smoothing: bool, limits: Limits
) -> tuple[Rows, Marginals | None]:
    """Rows of all chunks, and the same smoothed, given the ``last`` one smoothed.

    ``None`` if that is not wanted, or not done in time. The chunks are taken out of their list, so
    that no row is held twice.
    """
    settings = chunks[0].settings if isinstance(chunks[0], NativeChunk) else None
    rows = kept_rows(method, chunks)
    if not _is_finite(last):  # steps beyond the largest numbers: smoothing would spread them
        end = len(rows.t) - 1
        while end > 0 and not _is_finite(Marginals(rows.mean[end], rows.factor[end])):
            end -= 1
        rows = jax.tree.map(lambda x: x[: end + 1], rows)
        last = Marginals(rows.mean[end], unpack(rows.factor[end]))
    if not smoothing:
        return rows, None
    if settings is not None:
        return rows, driver.smooth_rows(method, settings, rows, last, limits)
    return rows, smooth_rows(method, rows, last, limits)


def _is_finite(state: Marginals) -> bool:
    return bool(np.all(np.isfinite(state.mean)) and np.all(np.isfinite(state.factor)))


def smooth_rows(method: Method, rows: Rows, last: Marginals, limits: Limits) -> Marginals | None:
    """All rows smoothed by JAX, chunk by chunk from the end backwards; ``None``: not in time."""
    most = capacity(method)
    last = jax.tree.map(np.asarray, last)
    mean, factor = np.empty_like(rows.mean), np.empty_like(rows.factor)
    end = len(rows.t) - 1
    mean[end], factor[end] = last.mean, pack(last.factor)
    while end > 0:
        if limits.expired():
            return None
        count = min(most, end)
        begin = end - count
        part = jax.tree.map(lambda x: _padded(x[begin : end + 1], most + 1), rows)  # noqa: B023
        part = dataclasses.replace(part, factor=unpack(part.factor))
        buffer, last = smooth_chunk(method, part, count, last)
        mean[begin:end] = np.asarray(buffer.mean)[:count]
        factor[begin:end] = pack(np.asarray(buffer.factor)[:count])
        end = begin
    return Marginals(mean, factor)  # type: ignore[arg-type]


def kept_rows(method: Method, chunks: list[AnyChunk]) -> Rows:
    """Rows of all chunks (made by :func:`compact`) with packed factors."""
    if native := native_ones(chunks):
        return driver.join_chunks(method, native)
    # Row 0 of each repeats the last of the one before.
    return jax.tree.map(
        lambda first, *rest: np.concatenate([first, *(part[1:] for part in rest)]),
        *(chunk.rows for chunk in chunks),
    )


def native_ones(chunks: list[AnyChunk]) -> list[NativeChunk] | None:
    """The list, if its chunks are the kernels'."""
    return cast(list[NativeChunk], chunks) if isinstance(chunks[0], NativeChunk) else None


def pack_rows(rows: Rows) -> Rows:
    """The same rows with packed factors, in NumPy arrays."""
    rows = jax.tree.map(np.asarray, rows)
    return dataclasses.replace(rows, factor=pack(rows.factor))


def _padded(x: np.ndarray, room: int) -> np.ndarray:
    """``room`` rows, the last one repeated where there are not enough."""
    missing = room - len(x)
    return np.concatenate([x, np.repeat(x[-1:], missing, axis=0)]) if missing > 0 else x
