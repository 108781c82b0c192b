"""Running compiled pieces from Python: chunk by chunk, stoppable, in scoped double precision.

What happens here happens outside any trace. Between two chunks Python is in charge: it honours
Ctrl-C, a time limit and a callback, and nothing that was computed is lost.
"""

import dataclasses
import importlib
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import lru_cache
from typing import Any, NamedTuple, cast

import jax
import numpy as np
from threadpoolctl import ThreadpoolController

from probode import loop, native, saving, smooth
from probode.compile import compiled
from probode.fallback import Fallback, revived
from probode.gaussian import pack
from probode.loop import Chunk, Rows, Solve
from probode.native import driver
from probode.native.driver import NativeChunk
from probode.precision import is_traced
from probode.saving import Saving
from probode.smooth import Marginals
from probode.status import Status
from probode.step import Method

_CHUNK_BYTES = 32 * 2**20
_CHUNK_ROWS = 1024
_CHUNK_SECONDS = 0.2
_UNLIMITED = 2**30
_FIRST_ATTEMPTS = 4
"""Attempts before looking at the clock for the first time: a single one may take seconds."""

begin = compiled(0, 1)(loop.begin)
fill_chunk = compiled(0, 1)(loop.fill_chunk)
smooth_chunk = compiled(0)(smooth.smooth_chunk)
begin_saving = compiled(0, 2, 3, 4)(saving.begin_saving)
run_saving = compiled(0)(saving.run_saving)
smooth_saved = compiled(0)(saving.smooth_saved)


AnyChunk = Chunk | NativeChunk
"""Steps in a buffer of JAX's, or of the native kernels."""


class Progress(NamedTuple):
    """What a callback is told between two chunks of steps."""

    t: float
    y: np.ndarray
    steps: int
    accepted: int
    step_size: float
    elapsed: float


class Monitor(NamedTuple):
    """When to stop early."""

    max_steps: int | None = None
    time_limit: float | None = None
    callback: Callable[[Progress], Any] | None = None
    shape: tuple[int, ...] = ()
    watch: Callable[[AnyChunk], int | None] | None = None
    """Sees every chunk of steps; a number ends the solve with ``Status.EVENT`` after that step."""

    def wants_stop(self, solve: Solve, elapsed: float) -> bool:
        """Tell the callback; whether it answers that the solve should stop."""
        if self.callback is None:
            return False
        return bool(self.callback(_progress(solve, elapsed, self.shape)))


@lru_cache(maxsize=1)
def _blas() -> ThreadpoolController:
    # JAX takes its LAPACK from SciPy, and loads it late: a controller made before that would not
    # know it.
    importlib.import_module("scipy.linalg.cython_lapack")
    return ThreadpoolController()


class _OneThread:
    """A limit that several threads may ask for: the first sets it, the last takes it back."""

    def __init__(self) -> None:
        self._turn = threading.Lock()
        self._users = 0
        self._limit: Any = None

    def __enter__(self) -> None:
        with self._turn:
            if self._users == 0:
                self._limit = _blas().limit(limits=1, user_api="blas")
            self._users += 1

    def __exit__(self, *_: Any) -> None:
        with self._turn:
            self._users -= 1
            if self._users == 0:
                self._limit.restore_original_limits()


_ONE_THREAD = _OneThread()


def one_blas_thread() -> AbstractContextManager[None]:
    """Keep BLAS from splitting small matrices among threads, which costs more than it gains."""
    return _ONE_THREAD


@contextmanager
def interruptible() -> Iterator[threading.Event]:
    """Turn Ctrl-C into a flag, so that the solve can end between two chunks with what it has.

    A second Ctrl-C interrupts at once. Outside the main thread signals cannot be caught.
    """
    pressed = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield pressed
        return
    previous = signal.getsignal(signal.SIGINT)
    if not callable(previous):
        yield pressed
        return

    def handle(number: int, frame: Any) -> None:
        if pressed.is_set():
            previous(number, frame)
        pressed.set()

    signal.signal(signal.SIGINT, handle)
    try:
        yield pressed
    finally:
        signal.signal(signal.SIGINT, previous)


def _drive(
    monitor: Monitor,
    carry: Any,
    solve_of: Callable[[Any], Solve],
    chunk: Callable[[Any, int], Any],
    events: Sequence[Status] = (),
    attempts: int = _FIRST_ATTEMPTS,
) -> tuple[Any, Status]:
    """Call ``chunk(carry, attempts)`` until the solve ends or something stops it.

    The number of attempts per chunk follows the clock, so that Python gets its turn a few times a
    second, however slow a step is; ``attempts`` is that of the first chunk.
    """
    start = time.perf_counter()
    with interruptible() as pressed:
        while True:
            if events:
                return carry, events[0]
            solve = solve_of(carry)
            status = Status(int(solve.status))
            done = int(solve.counts.attempted)
            if status != Status.RUNNING:
                return carry, status
            elapsed = time.perf_counter() - start
            if pressed.is_set():
                return carry, Status.INTERRUPTED
            if monitor.max_steps is not None and done >= monitor.max_steps:
                return carry, Status.MAX_STEPS
            if monitor.time_limit is not None and elapsed >= monitor.time_limit:
                return carry, Status.TIME_LIMIT
            if done > 0 and monitor.wants_stop(solve, elapsed):
                return carry, Status.CALLBACK
            if monitor.max_steps is not None:
                attempts = min(attempts, monitor.max_steps - done)
            before = time.perf_counter()
            carry = chunk(carry, attempts)
            took = time.perf_counter() - before
            made = int(solve_of(carry).counts.attempted) - done
            attempts = int(min(max(made, 1) * _CHUNK_SECONDS / max(took, 1e-9) + 1, _UNLIMITED))


def _progress(solve: Solve, elapsed: float, shape: tuple[int, ...]) -> Progress:
    return Progress(
        t=float(solve.state.t),
        y=np.asarray(solve.state.mean[0]).reshape(shape),
        steps=int(solve.counts.attempted),
        accepted=int(solve.counts.accepted),
        step_size=float(solve.control.h),
        elapsed=elapsed,
    )


def capacity(method: Method) -> int:
    """Steps per chunk: many for small states, few where a single one takes megabytes."""
    n, d = method.structure.n, method.structure.d
    row = 8 * (n * d + int(np.prod(method.structure.factor_shape)))
    return int(max(4, min(_CHUNK_ROWS, _CHUNK_BYTES // row)))


def solve_all(given: Fallback, monitor: Monitor) -> tuple[Solve, Status, list[AnyChunk]]:
    """Solve and keep every step; ``given`` are the inputs, with what to do where they fail."""
    method, _, _, control, _, t1, _ = given.inputs
    rows = capacity(method)
    if native.supports(method, control):
        return collect_native(monitor, driver.NOT_BEGUN, _native_steps(given, rows))

    def fill(solve: Solve, attempts: int, wanted: int) -> tuple[Solve, Chunk]:
        wanted, field = min(wanted, rows), given.inputs.field
        following, chunk = jax.block_until_ready(
            fill_chunk(method, rows, field, control, solve, t1, attempts, wanted)
        )
        return revived(following) if given.goes_on(following) else following, chunk

    return on_host(collect_chunks(monitor, _begun(given), fill))


def _begun(given: Fallback) -> Solve:
    solve = begin(*given.inputs)
    return begin(*given.inputs) if given.starts_again(solve) else solve


def _native_steps(given: Fallback, rows: int) -> driver.Fill:
    """Chunks of the kernels, with other steps from where the inputs have changed."""
    steps = driver.traceable_steps(*given.inputs, rows)

    def fill(carry: driver.Carry, attempts: int, wanted: int) -> tuple[driver.Carry, NativeChunk]:
        nonlocal steps
        following, chunk = steps(carry, attempts, wanted)
        if given.starts_again(following.solve):
            steps = driver.traceable_steps(*given.inputs, rows)
            return fill(carry, attempts, wanted)
        if given.goes_on(following.solve):
            steps = driver.traceable_steps(*given.inputs, rows)
            following = driver.revived(given.inputs.method, following)
        return following, chunk

    return fill


def on_host(result: tuple[Solve, Status, list[AnyChunk]]) -> tuple[Solve, Status, list[AnyChunk]]:
    """A result whose solve holds NumPy arrays."""
    return jax.tree.map(np.asarray, result[0]), result[1], result[2]


def collect_native(
    monitor: Monitor, carry: driver.Carry, fill: driver.Fill
) -> tuple[Solve, Status, list[AnyChunk]]:
    """The same with native kernels, which look at the clock themselves."""
    carry, status, chunks = collect_chunks(
        monitor, carry, fill, lambda carry: carry.solve, _UNLIMITED
    )
    return carry.solve, status, chunks


def collect_chunks(
    monitor: Monitor,
    carry: Any,
    fill: Callable[[Any, int, int], tuple[Any, Any]],
    solve_of: Callable[[Any], Solve] = lambda carry: carry,
    first_attempts: int = _FIRST_ATTEMPTS,
) -> tuple[Any, Status, list[AnyChunk]]:
    """Fill chunk after chunk until the solve ends or something stops it.

    ``fill(carry, attempts, wanted)`` takes at most ``wanted`` steps in ``attempts`` attempts. When
    the monitor's ``watch`` says that only the first steps of a chunk are wanted, the chunk is
    filled again up to there, so that nothing later leaks into what is returned.
    """
    chunks: list[AnyChunk] = []
    events: list[Status] = []

    def chunk(carry: Any, attempts: int) -> Any:
        following, filled = fill(carry, attempts, _UNLIMITED)
        keep = None if monitor.watch is None else monitor.watch(filled)
        if keep is not None:
            events.append(Status.EVENT)
            if keep < int(filled.steps):
                following, filled = fill(carry, attempts, keep)
        chunks.append(filled)
        return following

    carry, status = _drive(monitor, carry, solve_of, chunk, events, first_attempts)
    return carry, status, chunks


def smooth_all(method: Method, solve: Solve, chunks: list[AnyChunk]) -> Marginals:
    """Smoothed rows of all chunks, from the end backwards, with packed factors."""
    last = Marginals(solve.state.mean, solve.state.factor)
    if native_chunks := _native(chunks):
        return driver.smooth_chunks(method, native_chunks, last)
    smoothed = []
    for chunk in reversed(chunks):
        buffer, last = smooth_chunk(method, chunk.rows, chunk.steps, last)
        smoothed.append(Marginals(buffer.mean, pack(np.asarray(buffer.factor))))
    return _join(chunks, jax.tree.map(np.asarray, smoothed[::-1]))


def kept_rows(method: Method, solve: Solve, chunks: list[AnyChunk]) -> Rows:
    """Rows of all chunks with packed factors; of a solve without a step, the one it has."""
    if not chunks:
        return pack_rows(jax.tree.map(lambda x: np.asarray(x)[None], Rows.of(solve)))
    if native_chunks := _native(chunks):
        return driver.join_chunks(method, native_chunks)
    return cast(Rows, _join(chunks, [pack_rows(chunk.rows) for chunk in chunks]))


def _native(chunks: list[AnyChunk]) -> list[NativeChunk] | None:
    """The chunks, if all of them are the kernels'."""
    found = [chunk for chunk in chunks if isinstance(chunk, NativeChunk)]
    return found if len(found) == len(chunks) else None


def pack_rows(rows: Rows) -> Rows:
    """The same rows with packed factors, in NumPy arrays."""
    rows = jax.tree.map(np.asarray, rows)
    return dataclasses.replace(rows, factor=pack(rows.factor))


def _join(chunks: list[AnyChunk], buffers: list[Any]) -> Any:
    """Join the buffers of chunks: row 0 of each repeats the last of the one before."""
    counts = [int(chunk.steps) for chunk in chunks]

    def one(*parts: np.ndarray) -> np.ndarray:
        first, last = parts[0], counts[0] + 1
        if len(parts) == 1:  # as it is, unless most of the buffer was never used
            return first[:last] if 2 * last > len(first) else first[:last].copy()
        rest = [b[1 : n + 1] for b, n in zip(parts[1:], counts[1:], strict=True)]
        return np.concatenate([first[:last], *rest])

    return jax.tree.map(one, *buffers)


def at_end_only(save_at: Any, t1: Any) -> bool:
    """Whether the end of the interval, for all that is known, is the only save point."""
    return save_at.shape == (1,) and not is_traced(save_at, t1) and float(save_at[0]) == float(t1)


def solve_saving(
    given: Fallback, save_at: Any, keep_kernels: bool, monitor: Monitor, scheme: Any = None
) -> tuple[Saving, Status]:
    """Solve and keep the state at given times only."""
    method, _, _, control, _, t1, _ = given.inputs
    if scheme is None and at_end_only(save_at, t1) and native.supports(method, control):
        # The end only: no step is kept, and the kernels do the rest.
        steps = _native_steps(given, 0)
        solve, status, _ = collect_native(monitor, driver.NOT_BEGUN, steps)
        return saving.saving_of_end(method, solve, keep_kernels), status
    carry = begin_saving(method, _begun(given), save_at.shape[0], keep_kernels, scheme)

    def chunk(carry: Saving, attempts: int) -> Saving:
        field = given.inputs.field
        carry = jax.block_until_ready(
            run_saving(method, field, control, carry, t1, save_at, attempts)
        )
        if not given.goes_on(carry.solve):
            return carry
        return dataclasses.replace(carry, solve=revived(carry.solve))

    carry, status = _drive(monitor, carry, lambda carry: carry.solve, chunk)
    if int(carry.count) == 0 and int(carry.solve.counts.attempted) == 0:
        carry = run_saving(method, given.inputs.field, control, carry, t1, save_at, 0)
    return carry, status
