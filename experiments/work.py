"""Running configurations: from the cache where they are, else computed, in one or two processes."""

import importlib
import multiprocessing
import queue
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from experiments.cache import Cache, Configuration, Values

_POLL_SECONDS = 0.2


@dataclass(frozen=True)
class Batch:
    """Configurations that share a compiled solver; ``timed`` ones are never run beside others."""

    configurations: tuple[Configuration, ...]
    timed: bool = False


class Bar(Protocol):
    """What is used of a progress bar."""

    def update(self, n: int = 1) -> Any:
        """Advance by ``n``."""

    def set_description_str(self, text: str) -> Any:
        """Say what is being done."""


class Quiet:
    """Progress without a bar: one line for each new stage."""

    def __init__(self) -> None:
        self.stage = ""

    def update(self, n: int = 1) -> None:
        """Nothing to draw."""

    def set_description_str(self, text: str) -> None:
        """Print the stage, once."""
        if text != self.stage:
            print(f"probode paper: {text}", file=sys.stderr, flush=True)
            self.stage = text


@contextmanager
def progress_bar(total: int) -> Iterator[Bar]:
    """A bar on a terminal that has tqdm installed, else a line for each stage."""
    try:
        from tqdm.auto import tqdm
    except ImportError:
        tqdm = None
    if tqdm is None or not sys.stderr.isatty():
        yield Quiet()
        return
    with tqdm(total=total, smoothing=0.05, unit="run") as bar:
        yield bar


def compute(configuration: Configuration, cache: Cache) -> Values:
    """Hand a configuration to the module of its experiment."""
    name = configuration.experiment.replace("-", "_")
    return importlib.import_module(f"experiments.{name}").compute(configuration, cache)


def perform(batches: Sequence[Batch], cache: Cache, processes: int, bar: Bar) -> None:
    """Compute whatever the cache does not hold yet; what is timed comes last and alone."""
    missing: list[Batch] = []
    for batch in batches:
        left = tuple(c for c in batch.configurations if cache.load(c) is None)
        bar.update(len(batch.configurations) - len(left))
        if left:
            missing.append(Batch(left, batch.timed))
    together = [batch for batch in missing if not batch.timed]
    alone = [batch for batch in missing if batch.timed]
    if processes > 1 and len(together) > 1:
        _in_processes(together, cache, processes, bar)
    else:
        alone = together + alone
    for batch in alone:
        for configuration in batch.configurations:
            bar.set_description_str(configuration.experiment)
            cache.get(configuration, lambda c: compute(c, cache))
            bar.update(1)


def spread(
    function: Callable[..., Any], arguments: Sequence[tuple[Any, ...]], processes: int, bar: Bar
) -> list[Any]:
    """Results of a function for each of some arguments, shared among processes, in order."""
    found = []
    if processes == 1 or len(arguments) == 1:
        for one in arguments:
            found.append(function(*one))
            bar.update(1)
        return found
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, context) as pool:
        for result in pool.map(function, *zip(*arguments, strict=True)):
            found.append(result)
            bar.update(1)
    return found


_messages: Any = None
"""In a worker: where it reports what it has done."""
_stop: Any = None
"""In a worker: set when nothing more is wanted."""


def _begin_worker(messages: Any, stop: Any) -> None:
    global _messages, _stop
    _messages, _stop = messages, stop


def _work(batch: Batch, cache: Cache) -> None:
    for configuration in batch.configurations:
        if _stop.is_set():
            return
        cache.get(configuration, lambda c: compute(c, cache))
        _messages.put(configuration)


def _in_processes(batches: Sequence[Batch], cache: Cache, processes: int, bar: Bar) -> None:
    """Share batches among fresh processes, which report each configuration as it is done."""
    context = multiprocessing.get_context("spawn")
    messages, stop = context.Queue(), context.Event()
    with ProcessPoolExecutor(processes, context, _begin_worker, (messages, stop)) as pool:
        futures = [pool.submit(_work, batch, cache) for batch in batches]
        try:
            _watch(futures, messages, bar)
        except BaseException:
            # Ctrl-C reaches the workers too; what ends this process alone does not.
            stop.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _watch(futures: Sequence["Future[None]"], messages: Any, bar: Bar) -> None:
    """Move the bar until all is done; raise what a worker has raised."""
    while True:
        finished = all(future.done() for future in futures)
        try:
            while True:
                done: Configuration = messages.get(timeout=0 if finished else _POLL_SECONDS)
                bar.set_description_str(done.experiment)
                bar.update(1)
        except queue.Empty:
            pass
        for future in futures:
            if future.done():
                future.result()
        if finished:
            return
