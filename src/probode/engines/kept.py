"""What a solve has kept: rows of its steps joined and smoothed, and how much memory that takes."""

from dataclasses import replace
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Array

from probode.base.limits import Limits, in_words
from probode.engines.protocol import UNLIMITED, Carry, Engine, Fill
from probode.filter.loop import Rows
from probode.filter.smooth import Marginals
from probode.filter.step import Method
from probode.model.gaussian import pack, unpack
from probode.model.structure import Dense

_CHUNK_BYTES = 32 * 2**20
MOST_ROWS = 1024
"""In a chunk."""
_WORKING_MATRICES = 24
"""Square matrices as large as a dense factor that a step, smoothing it, and a chunk make use of."""
_WORKING_VECTORS = 30
"""Vectors that a step without matrices and its start make use of, besides eight per derivative.

With a million components and no step kept 42 and eleven were seen."""
_CALIBRATION_NUMBERS = 32
"""Numbers per component and step that a calibration makes on its way."""
_CARRIED_NUMBERS = 12
"""The same where the error is carried along with the steps: scales are all that is left to make."""


def capacity(method: Method) -> int:
    """Steps per chunk: many for small states, few where a single one takes megabytes."""
    return int(max(4, min(MOST_ROWS, _CHUNK_BYTES // state_bytes(method))))


def state_bytes(method: Method) -> int:
    """Memory that one state takes, its factor square."""
    n, d = method.structure.n, method.structure.d
    return 8 * (n * d + int(np.prod(method.structure.factor_shape)) + _drift_size(method))


def _drift_size(method: Method) -> int:
    return 0 if method.drift_shape is None else int(np.prod(method.drift_shape))


def row_bytes(method: Method) -> int:
    """Memory that one state takes where it is kept: of its factor the triangle."""
    n, d = method.structure.n, method.structure.d
    *blocks, _, size = method.structure.factor_shape
    return 8 * (n * d + int(np.prod(blocks)) * size * (size + 1) // 2 + _drift_size(method))


def needed_bytes(method: Method, steps: int, smoothing: bool, calibrating: bool) -> float:
    """Memory for so many steps: rows, as many smoothed ones, what a calibration makes of them."""
    d, dense = method.structure.d, isinstance(method.structure, Dense)
    row = row_bytes(method) * (1 + smoothing)
    if calibrating:
        numbers = _CARRIED_NUMBERS if method.jacobian == "sparse" else _CALIBRATION_NUMBERS
        row += 8 * (numbers * d + (3 * d * d if dense else 0))
    return working_bytes(method) + steps * row


def needed_when_on_disk(method: Method, steps: int) -> float:
    """The same where rows lie on disk, and what is smoothed of them."""
    per_step = 8 * (_CALIBRATION_NUMBERS + method.structure.n) * method.structure.d
    return working_bytes(method) + steps * per_step


def needed_when_sparse(method: Method, steps: int, calibrating: bool) -> float:
    """The same where covariances are dropped: of every span where it begins, and one in full."""
    n, d = method.structure.n, method.structure.d
    most = capacity(method)
    in_full = 2 * most * row_bytes(method) + 2 * SPARSE_FROM
    numbers = (n + _CALIBRATION_NUMBERS) * d if calibrating else 2 + 2 * n * d / most
    row = state_bytes(method) / most + 8 * numbers
    return working_bytes(method) + in_full + steps * row


def working_bytes(method: Method) -> float:
    """Memory that a step takes, however many there are."""
    if isinstance(method.structure, Dense):
        return _WORKING_MATRICES * state_bytes(method)
    return _least_bytes(method.structure.n, method.structure.d)


def _least_bytes(n: int, d: int) -> float:
    """A start, the state, what is predicted of it, and what a step makes on its way."""
    return 8.0 * (8 * n + _WORKING_VECTORS) * d


def refuse_what_cannot_fit(order: int, d: int, limits: Limits) -> None:
    """Before anything is made of ``d`` components: the vectors of one step must fit."""
    least = _least_bytes(order + 1, d)
    if not limits.allows(least):
        raise ValueError(
            f"one step at order {order} with d = {d} components takes {in_words(least)} even if "
            f"nothing is kept, more than max_memory = {in_words(limits.memory)} (by default half "
            "of what is free). Use a lower order, or a larger max_memory."
        )


SPARSE_FROM = 256 * 2**20
"""Bytes of rows from which on those of a solve with chosen times are dropped, to be made again."""


class Span(NamedTuple):
    """Steps that were dropped: the solve where they begin, and what makes them again."""

    carry: Carry
    steps: int
    fill: Fill

    def chunks(self) -> list[Rows]:
        """The steps once more: the same, to the last digit."""
        carry, left, made = self.carry, self.steps, []
        while left > 0:
            carry, rows = self.fill(carry, UNLIMITED, left)
            made.append(rows)
            left -= rows.steps
        return made


class Kept:
    """The steps of a solve, chunk by chunk; of a ``sparse`` one only spans, once they are many."""

    def __init__(self, engine: Engine, method: Method, fill: Fill, sparse: bool = False) -> None:
        self.engine, self.method, self._fill, self._sparse = engine, method, fill, sparse
        self.chunks: list[Rows] = []
        self.spans: list[Span] = []
        self.steps = 0
        self._starts: list[Carry] = []

    def add(self, carry: Carry, rows: Rows) -> None:
        """A chunk, and the solve before it."""
        self.steps += rows.steps
        if self.spans:
            return self._span(carry, rows.steps)
        self.chunks.append(rows)
        if not self._sparse:
            return None
        self._starts.append(carry)
        if self.steps * row_bytes(self.method) > SPARSE_FROM:
            for begun, kept in zip(self._starts, self.chunks, strict=True):
                self._span(begun, kept.steps)
            self._starts, self.chunks = [], []
        return None

    def last_alone(self, least: int) -> None:
        """Let go of the first chunks, which someone else has kept, but for ``least`` steps."""
        while len(self.chunks) > 1 and sum(part.steps for part in self.chunks[1:]) >= least:
            del self.chunks[0]

    def _span(self, carry: Carry, steps: int) -> None:
        """Spans are as long as chunks may be: as many rows as are made again at a time."""
        if self.spans and self.spans[-1].steps + steps <= capacity(self.method):
            last = self.spans.pop()
            carry, steps = last.carry, last.steps + steps
        self.spans.append(Span(carry, steps, self._fill))

    def last(self, least: int) -> "Kept":
        """The last chunks (or spans) alone: at least one, and so many steps if there are."""
        some = Kept(self.engine, self.method, self._fill)
        mine, taken = (self.spans, some.spans) if self.spans else (self.chunks, some.chunks)
        for part in reversed(mine):
            if some.steps and some.steps >= least:
                break
            taken.insert(0, part)  # type: ignore[arg-type]
            some.steps += part.steps
        return some

    def joined(
        self, last: Marginals, chunks: list[Rows], smoothing: bool, limits: Limits
    ) -> tuple[Rows, Marginals | None]:
        """Rows of all chunks, and the same smoothed, given the ``last`` one smoothed.

        ``None`` if that is not wanted, or not done in time. The chunks are taken out of their list.
        """
        rows = self.engine.join(self.method, chunks)
        if not _is_finite(last):  # steps beyond the largest numbers: smoothing would spread them
            end = rows.steps
            while end > 0 and not _is_finite(Marginals(rows.mean[end], rows.factor[end])):
                end -= 1
            rows = jax.tree.map(lambda x: x[: end + 1], rows)
            last = Marginals(rows.mean[end], unpack(rows.factor[end]))
        return rows, self.engine.smooth(self.method, rows, last, limits) if smoothing else None


def _is_finite(state: Marginals) -> bool:
    return bool(np.all(np.isfinite(state.mean)) and np.all(np.isfinite(state.factor)))


def compact(rows: Rows, steps: Array | int) -> Rows:
    """The rows of so many steps, out of a buffer of JAX's."""
    return pack_rows(jax.tree.map(lambda x: np.asarray(x)[: int(steps) + 1], rows))


def pack_rows(rows: Rows) -> Rows:
    """The same rows with packed factors, in NumPy arrays."""
    rows = jax.tree.map(np.asarray, rows)
    return replace(rows, factor=pack(rows.factor))


def padded(rows: np.ndarray, size: int) -> np.ndarray:
    """``size`` rows, the last one repeated where there are not enough."""
    missing = size - len(rows)
    return np.concatenate([rows, np.repeat(rows[-1:], missing, axis=0)]) if missing > 0 else rows
