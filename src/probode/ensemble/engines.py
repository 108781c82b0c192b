"""Which engine solves the members: the one place that knows them all."""

import os
from collections.abc import Callable
from threading import Event
from typing import Any

import jax

from probode.ensemble.settings import Settings
from probode.ensemble.vmapped import solve_vmapped
from probode.lanes.records import LaneResults, Members


def solve_members(
    vector_field: Callable[..., Any],
    members: Members,
    settings: Settings,
    *,
    device: Any = None,
    on_progress: Callable[[int], Any] | None = None,
    stop: Event | None = None,
) -> LaneResults:
    """Solve all members on one device, with the fastest engine that can."""
    return solve_vmapped(
        vector_field, members, settings, device=device, on_progress=on_progress, stop=stop
    )[0]


def places(devices: Any = None) -> list[Any]:
    """A device for each thread that solves members: a CPU device takes one per core.

    ``devices`` are JAX's; by default all of this process.
    """
    chosen = list(jax.local_devices() if devices is None else devices)
    if not chosen:
        raise ValueError("devices must name at least one device, got none.")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    on_cpu = sum(device.platform == "cpu" for device in chosen)
    threads = max(1, (cores or 1) // max(on_cpu, 1))
    return [
        device
        for turn in range(threads)
        for device in chosen
        if turn == 0 or device.platform == "cpu"
    ]
