"""How long a solve may take, and how much memory: one object, made where the user's call begins.

It is handed down to everything that takes time: steps, smoothing, calibration, further rounds. What
cannot be interrupted (tracing and compiling, one evaluation of ``f``, one step) is counted, and the
clock looked at right after it.
"""

import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import inf, isfinite
from typing import Any

GRACE = 0.4
"""Seconds beyond the limit that what follows the steps may take, if it was guessed too short."""
_TRIALS = 3
"""Largest number of trials of ``finish``, if each of them runs out of time."""
_SLOWER = 1.6
"""All steps together take longer than a few of them tell: memory that is new, rare iterations."""
_PART_OF_MEMORY = 0.5
"""Of the memory that is free when a solve begins, what it may use by default."""
_LITTLE = 64 * 2**20
"""Bytes that are not worth asking about."""
_UNKNOWN_MEMORY = 8 * 2**30
"""Where the system does not say how much is free."""
_UNITS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


def rehearsed(finish: Callable[["Limits"], Any], steps: int, limits: "Limits") -> float:
    """Return the seconds per step that ``finish`` takes for ``steps`` steps, compiling excluded.

    The first trial compiles, which the solve itself then need not do: that time says nothing about
    further steps. A trial that is ended early may leave programs to be compiled by the next one.
    """
    took = inf
    for trial in range(_TRIALS):
        within = Limits(limits.left / 8, compiles=False)
        finish(within)
        late = within.expired()
        # What had to be ended early takes many times as long: there is no time for more steps.
        took = min(took, within.elapsed * (100.0 if late else 1.0))
        if limits.left <= 0.0 or (trial > 0 and not late):
            break
    return _SLOWER * took / steps


@contextmanager
def compiling() -> Iterator[None]:
    """Count the time spent within as time for compiling."""
    global _compiling
    begun = time.perf_counter()
    try:
        yield
    finally:
        _compiling += time.perf_counter() - begun


_compiling = 0.0
"""Seconds that this process has spent compiling."""


class Limits:
    """Seconds since this was made (without those in which it ``compiles``, or with), and bytes."""

    def __init__(
        self, seconds: float = inf, memory: float | None = inf, *, compiles: bool = True
    ) -> None:
        self._compiled = None if compiles else _compiling
        self.begun = time.perf_counter()
        self.seconds, self._memory = seconds, memory

    @staticmethod
    def read(time_limit: Any, max_memory: Any) -> "Limits":
        """From what the user said; without a word, half of the memory that is free."""
        seconds = inf if time_limit is None else _seconds(time_limit)
        return Limits(seconds, None if max_memory is None else _bytes(max_memory))

    @property
    def memory(self) -> float:
        """Bytes that may be used."""
        if self._memory is None:
            self._memory = max(_PART_OF_MEMORY * free_memory(), _LITTLE)
        return self._memory

    def allows(self, size: float) -> bool:
        """Whether so many bytes may be used. To ask the system takes as long as a small solve."""
        return (self._memory is None and size <= _LITTLE) or size <= self.memory

    @property
    def elapsed(self) -> float:
        """Seconds since the call began."""
        compiled = 0.0 if self._compiled is None else _compiling - self._compiled
        return time.perf_counter() - self.begun - compiled

    @property
    def left(self) -> float:
        """Seconds that the steps may still take."""
        return self.seconds - self.elapsed if isfinite(self.seconds) else inf

    def expired(self) -> bool:
        """Whether what follows the steps has to end."""
        return self.left < -GRACE

    def share(self, seconds: float) -> float:
        """At most ``seconds``, and at most an eighth of what is left: when to look at the clock."""
        return min(seconds, max(self.left / 8, 1e-3))


def _seconds(time_limit: Any) -> float:
    try:
        seconds = float(time_limit)
    except (TypeError, ValueError):
        seconds = -1.0
    if not seconds > 0.0:
        raise ValueError(f"time_limit must be a positive number of seconds, got {time_limit!r}.")
    return seconds


def _bytes(max_memory: Any) -> float:
    """A number of bytes, or one with a unit such as "4 GB" (powers of 1024)."""
    words = f"max_memory must be a number of bytes or a string such as '4 GB', got {max_memory!r}."
    if isinstance(max_memory, str):
        found = re.fullmatch(r"\s*([\d.]+(?:e\d+)?)\s*([kmgt]?)i?b?\s*", max_memory.lower())
        if found is None:
            raise ValueError(words)
        number, power = found[1], _UNITS[found[2]]
    else:
        number, power = max_memory, 0
    try:
        size = float(number) * 1024.0**power
    except (TypeError, ValueError):
        raise ValueError(words) from None
    if not size > 0.0:
        raise ValueError(words)
    return size


def free_memory() -> float:
    """Bytes that this process could still take: the system's, or what its container leaves."""
    return min(_free_in_system(), _free_in_container())


def _free_in_system() -> float:
    try:
        with open("/proc/meminfo") as file:
            found = re.search(r"MemAvailable:\s*(\d+) kB", file.read())
        if found is not None:
            return 1024.0 * int(found[1])
    except OSError:
        pass
    try:  # not Linux: all the memory there is
        return float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    except (AttributeError, OSError, ValueError):
        return float(_UNKNOWN_MEMORY)


def _free_in_container(root: str = "/sys/fs/cgroup") -> float:
    """By the control groups of Linux, of which containers make use.

    Files that were read count as used, but are let go when memory is short.
    """
    for most, used, details, mark in (
        ("memory.max", "memory.current", "memory.stat", ""),
        (
            "memory/memory.limit_in_bytes",
            "memory/memory.usage_in_bytes",
            "memory/memory.stat",
            "total_",
        ),
    ):
        try:
            with open(f"{root}/{most}") as limit, open(f"{root}/{used}") as now:
                free = float(limit.read()) - float(now.read())
        except (OSError, ValueError):  # not there, or "max"
            continue
        return max(free + _cached(f"{root}/{details}", mark), 0.0)
    return inf


def _cached(path: str, mark: str) -> float:
    """Bytes of files that a control group has in memory."""
    try:
        with open(path) as file:
            found = re.findall(rf"^{mark}(?:in)?active_file (\d+)$", file.read(), re.MULTILINE)
    except OSError:
        return 0.0
    return float(sum(map(int, found)))


def in_words(size: float) -> str:
    """A number of bytes, for a message."""
    return f"{size / 2**30:.2g} GB" if size >= 2**30 else f"{size / 2**20:.3g} MB"


def cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
