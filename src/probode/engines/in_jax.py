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
from typing import Any, NamedTuple

import jax
import numpy as np
from threadpoolctl import ThreadpoolController

from probode.base.compile import compiled
from probode.base.limits import Limits, in_words
from probode.base.precision import is_traced
from probode.base.status import Status
from probode.engines import native
from probode.engines.fallback import Fallback, revived
from probode.engines.kept import (
    MOST_ROWS,
    AnyChunk,
    Keeper,
    Kept,
    capacity,
    needed_bytes,
    needed_when_sparse,
)
from probode.engines.native import driver
from probode.engines.native.driver import NativeChunk
from probode.filter import loop, restart, saving
from probode.filter.loop import Chunk, Solve
from probode.filter.saving import Saving
from probode.filter.step import Method

_CHUNK_SECONDS = 0.2
_UNLIMITED = 2**30
_FIRST_ATTEMPTS, _LARGE_STATE = 4, 400
"""Attempts before looking at the clock for the first time; one, if it may take seconds."""
_REHEARSAL, _AGAIN, _KNOWN_WELL = 0.05, 8, 256
"""Part of the time limit after which to find out what smoothing and calibrating will take. Where
that was seen with few steps, again with that many times as many."""
_SMOOTHED_POINT = 0.4
"""Smoothing a save point, in steps to get there: one decomposition instead of three."""

begin = compiled(1)(loop.begin)
fill_chunk = compiled(1)(loop.fill_chunk)
begin_saving = compiled(2, 3, 4)(saving.begin_saving)
run_saving = compiled()(saving.run_saving)
cross_saving = compiled()(saving.cross_saving)
smooth_saved = compiled()(saving.smooth_saved)


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

    limits: Limits
    max_steps: int | None = None
    callback: Callable[[Progress], Any] | None = None
    shape: tuple[int, ...] = ()
    watch: Callable[[AnyChunk], int | None] | None = None
    """Sees every chunk of steps; a number ends the solve with ``Status.EVENT`` after that step."""
    judge: Callable[[AnyChunk], Status | None] = lambda chunk: None
    """Sees every chunk of steps too; a status ends the solve with it after the chunk."""
    needs: Callable[[int], float] = lambda steps: 0.0
    """Bytes that so many steps take, with all that will be made of them."""
    method: Method | None = None
    sparse: bool = False
    """Whether covariances of the steps need not be kept, if they take much memory."""
    rehearse: Callable[[Solve, Kept], float] | None = None
    """Does with some chunks what has to be done with all of them; returns seconds per step."""

    def bounded(
        self, method: Method, smoothing: bool, calibrating: bool, sparse: bool = False
    ) -> "Monitor":
        """With a bound on the memory of all steps, smoothed and calibrated if that is wanted."""
        least = needed_bytes(method, 1, smoothing, calibrating)
        if not self.limits.allows(least):
            n, d = method.structure.n, method.structure.d
            raise ValueError(
                f"a single step with d = {d} components at order {n - 1} takes {in_words(least)}, "
                f"more than max_memory = {in_words(self.limits.memory)}. Use EK0 (memory linear "
                "in d), a lower order, or a larger max_memory."
            )

        def needs(steps: int) -> float:
            dense = needed_bytes(method, steps, smoothing, calibrating)
            return min(dense, needed_when_sparse(method, steps)) if sparse else dense

        return self._replace(needs=needs, method=method, sparse=sparse)

    def room(self, steps: int) -> int:
        """How many more steps than these the memory has room for."""
        if self.limits.allows(self.needs(steps + MOST_ROWS)):
            return _UNLIMITED
        now, more = self.needs(steps), self.needs(steps + 1)
        return int((self.limits.memory - now) / max(more - now, 1.0))

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
    stops: Sequence[Status] = (),
    attempts: int = _FIRST_ATTEMPTS,
    reserve: Callable[[Any, float], float] = lambda carry, pace: 0.0,
) -> tuple[Any, Status]:
    """Call ``chunk(carry, attempts)`` until the solve ends or something stops it.

    The number of attempts per chunk follows the clock, so that Python gets its turn a few times a
    second, however slow a step is; ``attempts`` is that of the first chunk, which is always run.
    ``reserve(carry, pace)`` are the seconds that will be needed after the last step, when an
    attempt takes ``pace`` seconds.
    """
    start, limits, pace = time.perf_counter(), monitor.limits, 0.0
    if limits.left <= 0.0:
        attempts = 1
    with interruptible() as pressed:
        while True:
            if stops:
                return carry, stops[0]
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
            # Half of an attempt: to end as near to the limit as steps allow.
            if done > 0 and limits.left <= reserve(carry, pace) + pace / 2:
                return carry, Status.TIME_LIMIT
            if done > 0 and monitor.wants_stop(solve, elapsed):
                return carry, Status.CALLBACK
            if monitor.max_steps is not None:
                attempts = min(attempts, monitor.max_steps - done)
            before = time.perf_counter()
            carry = chunk(carry, attempts)
            took = time.perf_counter() - before
            made = int(solve_of(carry).counts.attempted) - done
            pace = took / max(made, 1)
            seconds = limits.share(_CHUNK_SECONDS)
            attempts = int(min(seconds / max(pace, 1e-9 / max(made, 1)) + 1, _UNLIMITED))


def _progress(solve: Solve, elapsed: float, shape: tuple[int, ...]) -> Progress:
    return Progress(
        t=float(solve.state.t),
        y=np.asarray(solve.state.mean[0]).reshape(shape),
        steps=int(solve.counts.attempted),
        accepted=int(solve.counts.accepted),
        step_size=float(solve.control.h),
        elapsed=elapsed,
    )


def solve_all(given: Fallback, monitor: Monitor) -> tuple[Solve, Status, Kept]:
    """Solve and keep every step; ``given`` are the inputs, with what to do where they fail."""
    method, _, _, control, _, t1, _ = given.inputs
    rows, restarts = capacity(method), given.restarts
    if native.supports(method, control):
        steps = _native_steps(given, rows, monitor.limits)
        return collect_native(monitor, driver.NOT_BEGUN, steps)

    def fill(solve: Solve, attempts: int, wanted: int) -> tuple[Solve, Chunk]:
        crossed = _across(given, solve, _begun)
        if crossed is not None:
            return crossed[1], Chunk.of(crossed[0])
        wanted, field = min(wanted, rows), given.inputs.field
        until = restarts.until(solve.state.t, t1)
        following, chunk = jax.block_until_ready(
            fill_chunk(method, rows, field, control, solve, until, attempts, wanted)
        )
        return _reviving(given, following, until != t1), chunk

    first = 1 if method.structure.factor_shape[-1] > _LARGE_STATE else _FIRST_ATTEMPTS
    return on_host(collect_chunks(monitor, _begun(given), fill, first_attempts=first))


def _reviving(given: Fallback, solve: Solve, at_a_stop: bool) -> Solve:
    """A solve that goes on, where it has ended only for a while."""
    arrived = at_a_stop and int(solve.status) == Status.SUCCESS
    return revived(solve) if arrived or given.goes_on(solve) else solve


def _across(
    given: Fallback, solve: Solve, begun: Callable[[Fallback], Solve]
) -> tuple[loop.Rows, Solve] | None:
    """The step across a switch, if the solve is right before one."""
    beyond = given.restarts.beyond(solve.state.t)
    if beyond is None:
        return None
    y, jacobian = restart.landing(given.inputs.method, solve, *beyond, given.linearised)
    anew = jax.tree.map(np.asarray, begun(given.after(beyond[0], y)))
    return restart.across(given.inputs.method, solve, anew, jacobian)


def _begun(given: Fallback) -> Solve:
    solve = begin(*given.outset)
    return begin(*given.outset) if given.starts_again(solve) else solve


def _native_steps(given: Fallback, rows: int, limits: Limits) -> driver.Fill:
    """Chunks of the kernels, with other steps from where the inputs have changed."""
    restarts = given.restarts
    steps = driver.traceable_steps(*given.inputs, rows, limits, restarts)

    def begun(anew: Fallback) -> Solve:
        return _native_steps(anew, rows, limits)(driver.NOT_BEGUN, 0, 1)[0].solve

    def fill(carry: driver.Carry, attempts: int, wanted: int) -> tuple[driver.Carry, NativeChunk]:
        nonlocal steps
        crossed = None if carry.vector is None else _across(given, carry.solve, begun)
        if crossed is not None:
            return driver.packed_step(given.inputs.method, *crossed)
        if carry.vector is None and restarts.beyond(given.inputs.t0) is not None:
            attempts = 0  # begin only: what follows is a step across
        following, chunk = steps(carry, attempts, wanted)
        if given.starts_again(following.solve):
            steps = driver.traceable_steps(*given.inputs, rows, limits, restarts)
            return fill(carry, attempts, wanted)
        if given.goes_on(following.solve):
            steps = driver.traceable_steps(*given.inputs, rows, limits, restarts)
            following = driver.revived(given.inputs.method, following)
        return following, chunk

    return fill


def on_host(result: tuple[Solve, Status, Kept]) -> tuple[Solve, Status, Kept]:
    """A result whose solve holds NumPy arrays."""
    return jax.tree.map(np.asarray, result[0]), result[1], result[2]


def collect_native(
    monitor: Monitor, carry: driver.Carry, fill: driver.Fill
) -> tuple[Solve, Status, Kept]:
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
) -> tuple[Any, Status, Kept]:
    """Fill chunk after chunk until the solve ends or something stops it.

    ``fill(carry, attempts, wanted)`` takes at most ``wanted`` steps in ``attempts`` attempts. When
    the monitor's ``watch`` says that only the first steps of a chunk are wanted, the chunk is
    filled again up to there, so that nothing later leaks into what is returned.
    """
    keeper = Keeper(monitor.method, monitor.sparse, fill)
    stops: list[Status] = []
    limits, after, rehearsed = monitor.limits, 0.0, 0

    def chunk(carry: Any, attempts: int) -> Any:
        following, filled = fill(carry, attempts, monitor.room(keeper.steps))
        keep = None if monitor.watch is None else monitor.watch(filled)
        if keep is not None:
            stops.append(Status.EVENT)
            if keep < int(filled.steps):
                following, filled = fill(carry, attempts, keep)
        keeper.add(carry, filled)
        if not stops and int(solve_of(following).status) == Status.RUNNING:
            verdict = monitor.judge(filled)
            if verdict is not None:
                stops.append(verdict)
            elif monitor.room(keeper.steps) < 1:
                stops.append(Status.MEMORY_LIMIT)
            elif _REHEARSAL * limits.seconds < limits.elapsed < limits.seconds:
                rehearse(solve_of(following))
        return following

    def rehearse(solve: Solve) -> None:
        nonlocal after, rehearsed
        known = rehearsed >= _KNOWN_WELL or keeper.steps < _AGAIN * rehearsed
        if monitor.rehearse is None or known:
            return
        kept = keeper.chunks or keeper.spans
        some, steps = len(kept), 0
        while some > 0 and (steps == 0 or steps < min(keeper.steps // 2, _KNOWN_WELL)):
            some -= 1
            steps += int(kept[some].steps)
        if steps > 0:
            after, rehearsed = monitor.rehearse(solve, kept[some:]), steps

    def reserve(carry: Any, pace: float) -> float:
        return after * keeper.steps

    carry, status = _drive(monitor, carry, solve_of, chunk, stops, first_attempts, reserve)
    return carry, status, keeper.spans or keeper.chunks


def at_end_only(save_at: Any, t1: Any) -> bool:
    """Whether the end of the interval, for all that is known, is the only save point."""
    return save_at.shape == (1,) and not is_traced(save_at, t1) and float(save_at[0]) == float(t1)


def solve_saving(
    given: Fallback,
    save_at: Any,
    keep_kernels: bool,
    monitor: Monitor,
    beside: saving.Beside | None = None,
) -> tuple[Saving, Status]:
    """Solve and keep the state at given times only."""
    method, _, _, control, _, t1, _ = given.inputs
    if beside is None and at_end_only(save_at, t1) and native.supports(method, control):
        # The end only: no step is kept, and the kernels do the rest.
        steps = _native_steps(given, 0, monitor.limits)
        solve, status, _ = collect_native(monitor, driver.NOT_BEGUN, steps)
        return saving.saving_of_end(method, solve, keep_kernels), status
    carry = begin_saving(method, _begun(given), save_at.shape[0], keep_kernels, beside)

    def chunk(carry: Saving, attempts: int) -> Saving:
        field = given.inputs.field
        crossed = _across(given, jax.tree.map(np.asarray, carry.solve), _begun)
        if crossed is not None and len(crossed[0].t) == 1:
            return dataclasses.replace(carry, solve=crossed[1])
        if crossed is not None:
            return cross_saving(method, field, control, carry, *crossed, t1, save_at)
        until = given.restarts.until(carry.solve.state.t, t1)
        carry = jax.block_until_ready(
            run_saving(method, field, control, carry, until, save_at, attempts)
        )
        return dataclasses.replace(carry, solve=_reviving(given, carry.solve, until != t1))

    def reserve(carry: Saving, pace: float) -> float:
        return _SMOOTHED_POINT * pace * int(carry.count) if keep_kernels else 0.0

    first = 1 if method.structure.factor_shape[-1] > _LARGE_STATE else _FIRST_ATTEMPTS
    carry, status = _drive(
        monitor, carry, lambda carry: carry.solve, chunk, attempts=first, reserve=reserve
    )
    if int(carry.count) == 0 and int(carry.solve.counts.attempted) == 0:
        carry = run_saving(method, given.inputs.field, control, carry, t1, save_at, 0)
    return carry, status
