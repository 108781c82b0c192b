"""Members on a cluster: chunks as Dask tasks, on whatever runs the workers."""

import os
from collections.abc import Callable
from typing import Any

import numpy as np

from probode.engines.lanes.records import LaneResults, Members
from probode.ensemble.chunks import Chunk, Sink
from probode.ensemble.engines import solve_members
from probode.ensemble.function import traceable
from probode.ensemble.problem import Family
from probode.ensemble.reduced import Reducing, Tally
from probode.ensemble.settings import Settings
from probode.ensemble.store import Store
from probode.posterior.export import library

_RETRIES = 3
_AHEAD = 2
"""Tasks that wait for each thread of the cluster: the inputs of no more are sent out."""


def check_client(client: Any) -> None:
    """Raise if ``client`` is not Dask's."""
    distributed = library("distributed", "dask")
    if not isinstance(client, distributed.Client) or client.asynchronous:
        raise TypeError(
            f"client must be a (synchronous) distributed.Client, got {type(client).__name__}: "
            "Client(cluster), with a cluster of dask.distributed, dask-jobqueue or dask-kubernetes."
        )


def threads_of(client: Any) -> int:
    """Threads that the workers have now; one, if they are still on their way."""
    return max(1, sum(client.nthreads().values()))


def run_on_cluster(
    client: Any,
    fun: Callable[..., Any],
    family: Family,
    settings: Settings,
    chunks: list[Chunk],
    sink: Sink,
    on_progress: Callable[[int], Any],
) -> bool:
    """Solve chunk after chunk on the workers of a cluster; whether all were done.

    Where the sink is a store the workers write to it, and results do not travel; for statistics
    each chunk is reduced by the worker that has solved it. Chunks of a worker
    that dies are given to another one. Ctrl-C ends it with what there is.
    """
    distributed = library("distributed", "dask")
    path = sink.path.absolute() if isinstance(sink, Store) else None
    blank = sink.tally.fresh() if isinstance(sink, Reducing) else None
    waiting = list(reversed(chunks))
    sent: dict[Any, Chunk] = {}

    def submit() -> Any:
        chunk = waiting.pop()
        members = family.members(np.arange(*chunk))
        future = client.submit(
            *(solve_chunk, fun, members, settings, chunk, path, blank),
            pure=False,
            retries=_RETRIES,
            key=f"probode-{chunk[0]}-{os.urandom(8).hex()}",
        )
        sent[future] = chunk
        return future

    room = min(len(waiting), _AHEAD * threads_of(client) + 1)
    completed = distributed.as_completed([submit() for _ in range(room)])
    try:
        for future in completed:
            chunk, results = sent.pop(future), future.result()
            if isinstance(sink, Reducing):
                sink.merge(results)
            elif results is not None:
                sink.write(chunk, results)
            future.release()
            on_progress(chunk[1] - chunk[0])
            if waiting:
                completed.add(submit())
    except KeyboardInterrupt:
        return False
    finally:
        client.cancel(list(sent))
    return True


def solve_chunk(
    fun: Callable[..., Any],
    members: Members,
    settings: Settings,
    chunk: Chunk,
    path: os.PathLike[str] | None,
    blank: Tally | None = None,
) -> LaneResults | Tally | None:
    """What a worker does: solve a chunk; write it if there is a store, reduce it if that is asked.

    ``blank`` has the reductions, before any member.
    """
    results = solve_members(traceable(fun, members), members, settings)
    if blank is not None:
        tally = blank.fresh()
        tally.update(chunk[0], members, results)
        return tally
    if path is None:
        return results
    Store(path).write(chunk, results)
    return None
