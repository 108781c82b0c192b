"""Many alike, some at a time, by the threads of all cores."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Event, Lock
from typing import Any

from probode.base.limits import cores

_SECONDS = 0.05
"""About how long a turn takes: between two of them somebody may have pressed Ctrl-C."""


def in_turns(
    some: Callable[[int, int], None],
    count: int,
    *,
    least: int = 1,
    most: float = float("inf"),
    stop: Event | None = None,
    on_progress: Callable[[int], Any] | None = None,
) -> int:
    """``some(first, last)`` of all, by several threads; how many before ``stop`` was set.

    ``least`` at a time, and as many as take about a twentieth of a second, ``most`` at most.
    """
    turns = _Turns(count, least)

    def work(_: int = 0) -> None:
        size = least
        while stop is None or not stop.is_set():
            first, last = turns.next(size)
            if first == last:
                return
            before = time.perf_counter()
            some(first, last)
            took = max(time.perf_counter() - before, 1e-6)
            size = max(1, min(8 * size, int((last - first) * _SECONDS / took)))
            size = int(min(-(-size // least) * least, most))  # whole groups
            if on_progress is not None:
                on_progress(last - first)

    workers = min(cores(), -(-count // least))
    if workers < 2:
        work()
    else:
        with ThreadPoolExecutor(workers) as pool:
            list(pool.map(work, range(workers)))
    return turns.given


class _Turns:
    """What waits, given out some at a time."""

    def __init__(self, count: int, least: int) -> None:
        self.count, self.given, self.least = count, 0, least
        self._lock = Lock()

    def next(self, size: int) -> tuple[int, int]:
        with self._lock:
            first = self.given
            # Towards the end less, so that all threads end at about the same time.
            rest = self.count - first
            fewer = max(1, rest // 4 // self.least) * self.least
            self.given = first + min(size, fewer, rest)
            return first, self.given
