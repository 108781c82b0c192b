"""Members side by side on a GPU, a thread for each: ``src/abreast/card.hpp``.

The program is compiled for the problem at hand (:mod:`.source`), once, and kept on disk. All
members are one launch. Rows of the steps, which are looked back over, have room for so many of each
thread; the members that take more are solved again, by fewer threads with more room for each.
"""

import ctypes
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from threading import Event
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from probode.base.limits import cores
from probode.base.precision import double_precision
from probode.engines.abreast import cuda, source
from probode.engines.abreast.on_host import Given
from probode.engines.abreast.problem import NO_ROOM, Problem
from probode.engines.native.members import NOTES, Results

MOST_COLUMNS = 48
"""Of the factor of a block: matrices of more do not fit into the memory of a thread."""

_PIECE, _COPYING = 2**19, 8
"""Numbers that a thread copies at a time, and how many threads do so."""

_THREADS = 128
_WARP = 32
_FEWEST_ROWS = 256
_PART_OF_MEMORY = 0.4
"""Of what is free, for the rows of the steps."""
_MOST_BYTES = 2**32
"""For these, at first: it is filled with zeros."""


def lacks(device: Any) -> str | None:
    """What keeps programs from running on this device; ``None``: nothing."""
    if device.platform not in ("gpu", "cuda"):
        return "a GPU"
    try:
        _card(device)
        cuda._compiler()
    except cuda.Unavailable as what:
        return str(what)
    except (RuntimeError, OSError, AttributeError) as error:  # a card of another make
        return f"a card that CUDA knows ({error})"
    return None


@lru_cache(maxsize=16)
def _card(device: Any) -> cuda.Card:
    return cuda.Card(device)


@lru_cache(maxsize=64)
def _function(text: str, device: Any) -> cuda.Function:
    card = _card(device)
    card.enter()
    binary = cuda.compiled(text, source.headers(), card.architecture)
    return card.function(binary, "solve_members")


class _Memory:
    """Arrays on a device."""

    def __init__(self, device: Any) -> None:
        self.device = device
        self._held: list[Any] = []

    def room(self, count: int, dtype: Any = float) -> int:
        """Where so many numbers can be written."""
        with double_precision():
            array = jnp.zeros(max(count, 1), dtype, device=self.device)
        return self._hold(array)

    def of(self, array: np.ndarray) -> int:
        """Where a copy of an array is."""
        if array.size == 0:
            return self.room(1)
        where = self.room(array.size, array.dtype)
        _card(self.device).copy_to(where, np.ascontiguousarray(array))
        return where

    def _hold(self, array: Any) -> int:
        self._held.append(jax.block_until_ready(array))
        return int(array.unsafe_buffer_pointer())

    def free(self) -> int:
        """Bytes that are left."""
        stats = self.device.memory_stats() or {}
        limit = stats.get("bytes_limit", 2**32)
        return int(limit - stats.get("bytes_in_use", 0))


class Run:
    """Members on a card: copied there, solved, and left there until they are asked for."""

    def __init__(self, problem: Problem, device: Any) -> None:
        self.problem, self.device, self.card = problem, device, _card(device)
        self.card.enter()
        self.function = _function(source.source(problem), device)
        self.memory = _Memory(device)
        sizes, count, times = problem.sizes, problem.members, problem.save_at.shape[1]
        inputs = {name: self.memory.of(array) for name, array in problem.arrays().items()}
        self.lists = [ctypes.c_uint64(self.memory.of(numbers)) for numbers in problem.numbers]
        d = sizes.d
        self.shapes = {
            "mean": (count, times, d),
            "std": (count, times, d),
            "cov": (count, times, d, d),
            "notes": (NOTES, count),
        }
        if not sizes.covariance:
            del self.shapes["cov"]
        self.results = {
            name: self.memory.room(int(np.prod(shape))) for name, shape in self.shapes.items()
        }
        where = [self.results.get(name) for name in ("mean", "std", "cov", "notes")]
        self.given = Given.of(problem, inputs, tuple(where))
        self.options = (ctypes.c_double * len(problem.options))(*problem.options)

    def solve(self) -> None:
        """All members, however many steps some of them take."""
        count = self.problem.members
        beside = self.function.blocks_beside_each_other(_THREADS) * self.card.multiprocessors
        blocks = min(beside, -(-count // _THREADS))
        kept = self.problem.sizes.kept if self._keeps else 0
        most = self._rows(blocks * _THREADS, kept)
        statuses = np.empty(count)
        which = None
        while True:
            self._launch(blocks, most, which, count if which is None else len(which))
            if not self._keeps:
                return
            self.card.copy_from(statuses, self.results["notes"])  # the first row
            which = np.flatnonzero(statuses == NO_ROOM).astype(np.int32)
            if len(which) == 0 or most >= self.problem.options[7]:
                return
            blocks, most = max(1, blocks // 8), 8 * most
            if blocks == 1:
                most = max(most, self._rows(_THREADS, kept))

    @property
    def _keeps(self) -> bool:
        return self.problem.sizes.smoothed and not self.problem.sizes.only_end

    def _rows(self, threads: int, kept: int) -> int:
        """Steps of each thread that there is room for."""
        if not kept:
            return 1
        room = min(int(self.memory.free() * _PART_OF_MEMORY), _MOST_BYTES) // (8 * kept * threads)
        return int(max(_FEWEST_ROWS, min(room, self.problem.options[7] + 1)))

    def _launch(self, blocks: int, most: int, which: Any, count: int) -> None:
        sizes, threads = self.problem.sizes, blocks * _THREADS
        memory = _Memory(self.device)
        rows = memory.room(most * threads * sizes.kept if self._keeps else 1)
        noted = memory.room(self.problem.save_at.shape[1] * threads * sizes.noted)
        turn = memory.room(1, np.int64)
        chosen = 0 if which is None else memory.of(which)
        self.function.launch(
            blocks,
            _THREADS,
            *(self.given, self.options, *self.lists),
            *(ctypes.c_uint64(rows), ctypes.c_long(most), ctypes.c_uint64(noted)),
            *(ctypes.c_uint64(chosen), ctypes.c_long(count), ctypes.c_uint64(turn)),
        )
        self.card.wait()

    def fetch(self, found: Results) -> None:
        """Copy the results to arrays of NumPy's.

        By way of memory that the card can write to, and by several threads: the pages of new arrays
        are made when they are first written.
        """
        pieces = [
            (flat[i : i + _PIECE], where + flat.itemsize * i)
            for name, where in self.results.items()
            for flat in (getattr(found, name).reshape(-1),)
            for i in range(0, len(flat), _PIECE)
        ]

        def copy(piece: tuple[np.ndarray, int]) -> None:
            array, place = piece
            self.card.enter()
            passing = self.card.pinned(8 * _PIECE).view(float)[: len(array)]
            self.card.copy_from(passing, place)
            np.copyto(array, passing)

        with ThreadPoolExecutor(min(_COPYING, cores(), len(pieces))) as pool:
            list(pool.map(copy, pieces))


def solve(
    problem: Problem,
    results: Results,
    device: Any,
    *,
    stop: Event | None = None,
    on_progress: Callable[[int], Any] | None = None,
) -> None:
    """Solve all members on a device."""
    if stop is not None and stop.is_set():
        return
    run = Run(problem, device)
    run.solve()
    run.fetch(results)
    if on_progress is not None:
        on_progress(problem.members)
