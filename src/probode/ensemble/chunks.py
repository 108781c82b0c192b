"""Members in chunks: sized to a memory budget, solved by this process's devices."""

from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from threading import Event
from typing import Any, Protocol

import numpy as np

from probode.engines.abreast.on_card import free_memory_of
from probode.engines.lanes.records import LaneResults
from probode.engines.monitor import interruptible
from probode.ensemble.engines import solve_members
from probode.ensemble.problem import Family
from probode.ensemble.settings import Settings

_LARGEST, _LARGEST_ON_CARD = 2**16, 2**20
_LARGEST_BYTES = 2**25
"""Of a chunk of the kernels on a CPU, which gain nothing from more: three or four chunks are in
memory at a time, one that is solved and one that is written, with copies of it."""
_PART_OF_CARD = 0.4
"""Of the free memory of a card, for results; steps that are looked back over take as much."""
_PER_PLACE = 4
"""Chunks for each place that solves them, so that all finish at about the same time."""
_LEAST = 256
"""Members of a chunk, unless there are fewer: the end of a chunk leaves lanes idle."""

Chunk = tuple[int, int]
"""The members from ``start`` to before ``stop``."""


class Sink(Protocol):
    """Where results go."""

    def write(self, chunk: Chunk, results: LaneResults) -> None:
        """Keep the results of a chunk."""


def bytes_per_member(family: Family, settings: Settings) -> int:
    """Memory that the inputs and the results of a member take."""
    d = int(np.prod(family.shape, dtype=int))
    entries = family.times * d * (2 + d * settings.covariance) + family.times + d + 16
    return 8 * entries


def chunk_size(
    family: Family,
    settings: Settings,
    memory: int,
    places: int,
    card: Any = None,
    collected: bool = False,
) -> int:
    """Members of a chunk: all chunks at work fit into half of the memory budget.

    A ``card`` is given as many at once as that allows: it hands them out to its threads by itself.
    Where results are ``collected``, there is memory for all of them, and those of a single chunk
    are not copied to it: they have to fit into the memory of the card.
    """
    each = bytes_per_member(family, settings)
    fitting = memory // (2 * places * each)
    if card is not None:
        if collected:
            fitting = max(fitting, int(_PART_OF_CARD * free_memory_of(card)) // each)
        shared = -(-family.count // places)
        return max(1, min(fitting, shared, _LARGEST_ON_CARD))
    kernels = settings.engine == "kernels"  # they use all cores, and end at about the same time
    shared = -(-family.count // (places * (1 if kernels else _PER_PLACE)))
    most = max(_LARGEST_BYTES // each, _LEAST) if kernels else _LARGEST
    return max(1, min(fitting, max(shared, _LEAST), most, _LARGEST, family.count))


def chunks_of(count: int, size: int) -> Iterator[Chunk]:
    """All members, cut into chunks."""
    for start in range(0, count, size):
        yield start, min(start + size, count)


def run_here(
    vector_field: Callable[..., Any],
    family: Family,
    settings: Settings,
    chunks: list[Chunk],
    places: list[Any],
    sink: Sink,
    on_progress: Callable[[int], Any],
) -> bool:
    """Solve chunk after chunk on the devices of this process; whether all were done.

    Ctrl-C ends it with what there is.
    """
    stop = Event()
    free = list(places)
    waiting = list(reversed(chunks))
    running: dict[Future[LaneResults], tuple[Chunk, Any]] = {}

    def solve(chunk: Chunk, device: Any) -> LaneResults:
        members = family.members(slice(*chunk))
        return solve_members(
            vector_field, members, settings, device=device, on_progress=on_progress, stop=stop
        )

    with interruptible() as pressed, ThreadPoolExecutor(len(places)) as pool:

        def begin() -> None:
            while waiting and free and not pressed.is_set():
                chunk, device = waiting.pop(), free.pop()
                running[pool.submit(solve, chunk, device)] = (chunk, device)

        try:
            begin()
            while running:
                if pressed.is_set():
                    stop.set()
                    waiting.clear()
                finished, _ = wait(running, timeout=0.2, return_when=FIRST_COMPLETED)
                solved = [(future.result(), *running.pop(future)) for future in finished]
                free += [device for _, _, device in solved]
                begin()  # the next ones are solved while these are written
                for results, chunk, _ in solved:
                    sink.write(chunk, results)
        finally:  # an error in one chunk must not wait for the others to end
            stop.set()
        return not pressed.is_set()
