"""Members side by side on a GPU, a thread for each: ``src/abreast/card.hpp``.

The program is compiled for the problem at hand (:mod:`.source`), once, and kept on disk. All
members are one launch. Rows of the steps, which are looked back over, have room for so many of each
thread; the members that take more are solved again, by fewer threads with more room for each.
"""

import ctypes
from collections.abc import Callable
from functools import lru_cache
from threading import Event
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from probode.base.precision import double_precision
from probode.base.turns import in_turns
from probode.engines.abreast import cuda, source
from probode.engines.abreast.on_host import Given
from probode.engines.abreast.problem import NO_ROOM, Problem
from probode.engines.native.members import NOTES, Results

MOST_COLUMNS = 48
"""Of the factor of a block: matrices of more do not fit into the memory of a thread."""

_PIECE = 2**18
"""Numbers that a thread copies at a time."""

_PARTS, _PART = 4, 2**16
"""In how many parts members are solved, one of which is copied while the next is solved; and how
many there are in one at least, so that all threads have some."""

_THREADS = 128
_WARP = 32
_FEWEST_ROWS = 256
_PART_OF_MEMORY = 0.4
"""Of what is free, for the rows of the steps."""
_MOST_BYTES = 2**33
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
    """Memory of a device, asked for in one piece: asking takes as long as a small solve."""

    _LINE = 256  # where an array begins: bytes

    def __init__(self, device: Any) -> None:
        self.device, self._size, self._first = device, 0, 0
        self._arrays: list[tuple[int, np.ndarray]] = []
        self._held: Any = None

    def room(self, count: int, dtype: Any = float) -> int:
        """A place for so many numbers, from where the memory will begin."""
        place = self._size
        self._size += -(-max(count, 1) * np.dtype(dtype).itemsize // self._LINE) * self._LINE
        return place

    def of(self, array: np.ndarray) -> int:
        """A place for a copy of an array."""
        place = self.room(array.size, array.dtype)
        if array.size:
            self._arrays.append((place, np.ascontiguousarray(array)))
        return place

    def take(self) -> None:
        """Have it, filled with zeros but for the arrays."""
        with double_precision():
            self._held = jnp.zeros(self._size // 8, device=self.device)
        self._first = int(jax.block_until_ready(self._held).unsafe_buffer_pointer())
        for place, array in self._arrays:
            _card(self.device).copy_to(self._first + place, array)
        self._arrays.clear()

    def at(self, place: int) -> int:
        """The address of a place."""
        return self._first + place


def free_memory_of(device: Any) -> int:
    """Bytes that are left on a device."""
    stats = device.memory_stats() or {}
    return int(stats.get("bytes_limit", 2**32) - stats.get("bytes_in_use", 0))


class Run:
    """Members on a card: copied there, solved, and left there until they are asked for."""

    def __init__(self, problem: Problem, device: Any) -> None:
        self.problem, self.device, self.card = problem, device, _card(device)
        self.card.enter()
        self.function = _function(source.source(problem), device)
        sizes, count, times = problem.sizes, problem.members, problem.save_at.shape[1]
        self.widths = {"mean": times * sizes.d, "std": times * sizes.d}
        if sizes.covariance:
            self.widths["cov"] = times * sizes.d**2
        memory = _Memory(device)
        inputs = {name: memory.of(array) for name, array in problem.arrays().items()}
        lists = [memory.of(numbers) for numbers in problem.numbers]
        results = {name: memory.room(count * width) for name, width in self.widths.items()}
        results["notes"] = memory.room(count * NOTES)
        memory.take()
        self.results = {name: memory.at(place) for name, place in results.items()}
        self._memory = memory
        where = [self.results.get(name) for name in ("mean", "std", "cov", "notes")]
        places = {name: memory.at(place) for name, place in inputs.items()}
        self.given = Given.of(problem, places, tuple(where))
        self.lists = [ctypes.c_uint64(memory.at(place)) for place in lists]
        self.options = (ctypes.c_double * len(problem.options))(*problem.options)

    def solve(self, found: Results | None = None) -> None:
        """All members, however many steps some of them take; ``found``: where results go.

        They are solved in a few parts, so that one is copied while the next is solved.
        """
        count = self.problem.members
        parts = 1 if found is None else max(1, min(_PARTS, count // _PART))
        ends = [count * (k + 1) // parts for k in range(parts)]
        threads = self._blocks(ends[0]) * _THREADS
        most = self._rows(threads)
        with self.card.stream() as stream:
            marks, memory = self._launch(stream, threads, most, None, ends)
            if found is None:
                stream.wait()
            else:
                self._fetch_all(found, ends, marks)
                stream.wait()
            del memory
            if not self._keeps or most >= self.problem.options[7]:
                return
            statuses = np.empty(count) if found is None else found.notes[0]
            again = False
            while True:
                if found is None or again:
                    stream.copy_from(statuses, self.results["notes"])  # the first row
                which = np.flatnonzero(statuses == NO_ROOM).astype(np.int32)
                if len(which) == 0 or most >= self.problem.options[7]:
                    break
                threads, most, again = max(_THREADS, threads // 8), 8 * most, True
                if threads == _THREADS:
                    most = max(most, self._rows(threads))
                _, memory = self._launch(stream, threads, most, which, [len(which)])
                stream.wait()
                del memory
            if again and found is not None:
                self._fetch_all(found, [count], [stream.mark()])

    @property
    def _keeps(self) -> bool:
        return self.problem.sizes.smoothed and not self.problem.sizes.only_end

    def _blocks(self, count: int) -> int:
        beside = self.function.blocks_beside_each_other(_THREADS) * self.card.multiprocessors
        return min(beside, -(-count // _THREADS))

    def _rows(self, threads: int) -> int:
        """Steps of each thread that there is room for."""
        if not self._keeps:
            return 1
        room = min(int(free_memory_of(self.device) * _PART_OF_MEMORY), _MOST_BYTES)
        room //= 8 * self.problem.sizes.kept * threads
        return int(max(_FEWEST_ROWS, min(room, self.problem.options[7] + 1)))

    def _launch(
        self, stream: Any, threads: int, most: int, which: Any, ends: list[int]
    ) -> tuple[list[Any], _Memory]:
        """Begin the members up to each of ``ends``, one part after the other."""
        sizes, memory = self.problem.sizes, _Memory(self.device)
        rows = memory.room(most * threads * sizes.kept if self._keeps else 1)
        noted = memory.room(self.problem.save_at.shape[1] * threads * sizes.noted)
        turns = memory.of(np.array([0, *ends[:-1]], np.int64))
        chosen = None if which is None else memory.of(which)
        memory.take()
        self.given.order = None if chosen is None else memory.at(chosen)
        marks = []
        for k, end in enumerate(ends):
            self.function.launch(
                *(stream, threads // _THREADS, _THREADS),
                *(self.given, self.options, *self.lists),
                *(ctypes.c_uint64(memory.at(rows)), ctypes.c_long(most)),
                ctypes.c_uint64(memory.at(noted)),
                *(ctypes.c_long(end), ctypes.c_uint64(memory.at(turns) + 8 * k)),
            )
            marks.append(stream.mark())
        return marks, memory

    def fetch(self, found: Results) -> None:
        """Copy what was solved to arrays of NumPy's."""
        with self.card.stream() as stream:
            self._fetch_all(found, [self.problem.members], [stream.mark()])

    def _fetch_all(self, found: Results, ends: list[int], marks: list[Any]) -> None:
        """Copy the members up to each of ``ends`` to arrays, once the card has come so far.

        By way of memory that the card can write to, and by several threads: the pages of new arrays
        are made when they are first written.
        """
        pieces = []
        for first, last, mark in zip([0, *ends[:-1]], ends, marks, strict=True):
            parts = [
                (getattr(found, name).reshape(-1), first * width, last * width)
                for name, width in self.widths.items()
            ]
            addresses = [self.results[name] for name in self.widths]
            for row in range(NOTES):
                parts.append((found.notes[row], first, last))
                addresses.append(self.results["notes"] + 8 * row * self.problem.members)
            pieces += [
                (flat[i : min(i + _PIECE, end)], address + 8 * i, mark)
                for (flat, begin, end), address in zip(parts, addresses, strict=True)
                for i in range(begin, end, _PIECE)
            ]

        def copy(first: int, last: int) -> None:
            self.card.enter()
            with self.card.stream() as stream, self.card.pinned(8 * _PIECE) as memory:
                for array, place, mark in pieces[first:last]:
                    mark.wait()
                    passing = memory.view(float)[: len(array)]
                    stream.copy_from(passing, place)
                    np.copyto(array, passing)

        in_turns(copy, len(pieces), most=1)


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
    Run(problem, device).solve(results)
    if on_progress is not None:
        on_progress(problem.members)
