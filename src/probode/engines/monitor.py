"""Running a solve from Python: chunk by chunk, stoppable, nothing that was computed lost.

What happens here happens outside any trace, whichever engine takes the steps. Between two chunks
Python is in charge: it honours Ctrl-C, limits of time and memory, a callback, and whoever watches.
"""

import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import jax
import numpy as np

from probode.base.limits import Limits, in_words
from probode.base.precision import on_host
from probode.base.status import Status
from probode.base.waiting import doing
from probode.engines.journal import Run
from probode.engines.kept import (
    MOST_ROWS,
    Kept,
    capacity,
    needed_bytes,
    needed_when_on_disk,
    needed_when_sparse,
)
from probode.engines.protocol import UNLIMITED, Carry, Engine, Given
from probode.filter.loop import Rows, Solve
from probode.filter.step import Method
from probode.model.structure import Dense

_CHUNK_SECONDS = 0.2
_REHEARSAL, _AGAIN, _KNOWN_WELL = 0.05, 8, 256
"""Part of the time limit after which to find out what smoothing and calibrating will take. Where
that was seen with few steps, again with that many times as many."""


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
    watch: Callable[[Rows], int | None] | None = None
    """Sees the rows of a chunk; a number ends the solve with ``Status.EVENT`` after that step."""
    judge: Callable[[Rows], Status | None] = lambda rows: None
    """Sees them too; a status ends the solve with it after the chunk."""
    needs: Callable[[int], float] = lambda steps: 0.0
    """Bytes that so many steps take, with all that will be made of them."""
    sparse: bool = False
    """Whether covariances of the steps need not be kept, if they take much memory."""
    rehearse: Callable[[Solve, Kept], float] | None = None
    """Does with some chunks what has to be done with all of them; returns seconds per step."""
    journal: Callable[[Engine, Given], Run] | None = None
    """Where the steps are kept, to go on from after a kill."""

    def bounded(
        self,
        method: Method,
        smoothing: bool,
        calibrating: bool,
        sparse: bool = False,
        on_disk: bool = False,
    ) -> "Monitor":
        """With a bound on the memory of all steps, smoothed and calibrated if that is wanted."""
        least = needed_bytes(method, 1, smoothing, calibrating)
        if not self.limits.allows(least):
            n, d = method.structure.n, method.structure.d
            way_out = "EK0 (memory linear in d)"
            if not isinstance(method.structure, Dense):
                way_out = 'save_at with few times (it keeps no steps), calibration="model" (a part)'
            raise ValueError(
                f"a single step with d = {d} components at order {n - 1} takes {in_words(least)} "
                "with all that is made of it, more than max_memory = "
                f"{in_words(self.limits.memory)}. Use {way_out}, a lower order, or a larger "
                "max_memory."
            )

        def needs(steps: int) -> float:
            if on_disk:
                return needed_when_on_disk(method, steps)
            dense = needed_bytes(method, steps, smoothing, calibrating)
            return min(dense, needed_when_sparse(method, steps, calibrating)) if sparse else dense

        return self._replace(needs=needs, sparse=sparse)

    def room(self, steps: int) -> int:
        """How many more steps than these the memory has room for."""
        if self.limits.allows(self.needs(steps + MOST_ROWS)):
            return UNLIMITED
        now, more = self.needs(steps), self.needs(steps + 1)
        return int((self.limits.memory - now) / max(more - now, 1.0))

    def wants_stop(self, solve: Solve, elapsed: float) -> bool:
        """Tell the callback; whether it answers that the solve should stop."""
        if self.callback is None:
            return False
        return bool(self.callback(_progress(solve, elapsed, self.shape)))


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


def drive(
    monitor: Monitor,
    carry: Any,
    chunk: Callable[[Any, int], Any],
    attempts: int,
    stops: Sequence[Status] = (),
    reserve: Callable[[Any, float], float] = lambda carry, pace: 0.0,
) -> tuple[Any, Status]:
    """Call ``chunk(carry, attempts)`` until ``carry.solve`` ends or something stops it.

    The number of attempts per chunk follows the clock, so that Python gets its turn a few times a
    second, however slow a step is; ``attempts`` is that of the first chunk, which is always run.
    ``reserve(carry, pace)`` are the seconds that will be needed after the last step, when an
    attempt takes ``pace`` seconds.
    """
    start, limits, pace = time.perf_counter(), monitor.limits, 0.0
    if limits.left <= 0.0:
        attempts = 1

    def where() -> str:
        solve = carry.solve
        return f"t = {float(solve.state.t):.6g}, {int(solve.counts.attempted)} steps"

    with interruptible() as pressed, doing(where):
        while True:
            if stops:
                return carry, stops[0]
            solve = carry.solve
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
            made = int(carry.solve.counts.attempted) - done
            pace = took / max(made, 1)
            seconds = limits.share(_CHUNK_SECONDS)
            attempts = int(min(seconds / max(pace, 1e-9 / max(made, 1)) + 1, UNLIMITED))


def _progress(solve: Solve, elapsed: float, shape: tuple[int, ...]) -> Progress:
    return Progress(
        t=float(solve.state.t),
        y=np.array(solve.state.mean[0]).reshape(shape),
        steps=int(solve.counts.attempted),
        accepted=int(solve.counts.accepted),
        step_size=float(solve.control.h),
        elapsed=elapsed,
    )


def collect(
    engine: Engine, given: Given, monitor: Monitor, keep: bool = True
) -> tuple[Solve, Status, Kept]:
    """Fill chunk after chunk until the solve ends or something stops it.

    When the monitor's ``watch`` says that only the first steps of a chunk are wanted, the chunk is
    filled again up to there, so that nothing later leaks into what is returned. Unless they are
    to ``keep``, no step needs memory, or only while it is watched.
    """
    limits, after, rehearsed = monitor.limits, 0.0, 0
    method = given.inputs.method
    run = None if monitor.journal is None else monitor.journal(engine, given)
    rows = capacity(method) if keep or monitor.watch is not None else 0
    steps = given.steps_by(engine, rows, limits)
    begun, fill = steps.begun, steps.fill
    kept = Kept(engine, method, fill, monitor.sparse)
    stops: list[Status] = []
    if run is not None and run.begun:
        begun, kept.steps = run.carry(steps), run.steps
        _see_again(monitor, run, stops)

    def chunk(carry: Carry, attempts: int) -> Carry:
        following, filled = fill(carry, attempts, monitor.room(kept.steps))
        wanted = None if monitor.watch is None else monitor.watch(filled)
        if wanted is not None:
            stops.append(Status.EVENT)
            if wanted < filled.steps:
                following, filled = fill(carry, attempts, wanted)
        if keep:
            kept.add(carry, filled)
        if run is not None:
            run.add(steps, given, following, filled)
            kept.last_alone(_KNOWN_WELL)
        if not stops and int(following.solve.status) == Status.RUNNING:
            verdict = monitor.judge(filled)
            if verdict is not None:
                stops.append(verdict)
            elif monitor.room(kept.steps) < 1:
                stops.append(Status.MEMORY_LIMIT)
            elif _REHEARSAL * limits.seconds < limits.elapsed < limits.seconds:
                rehearse(following.solve)
        return following

    def rehearse(solve: Solve) -> None:
        nonlocal after, rehearsed
        known = rehearsed >= _KNOWN_WELL or kept.steps < _AGAIN * rehearsed
        if monitor.rehearse is None or known:
            return
        some = kept.last(min(kept.steps // 2, _KNOWN_WELL))
        if some.steps > 0:
            count = some.steps
            after, rehearsed = monitor.rehearse(solve, some), count

    def reserve(carry: Carry, pace: float) -> float:
        return after * kept.steps

    carry, status = drive(monitor, begun, chunk, steps.attempts, stops, reserve)
    if run is not None and run.begun:
        kept.chunks[:] = [run.rows()]
    solve = carry.solve
    return solve if on_host(solve.status) else jax.tree.map(np.asarray, solve), status, kept


def _see_again(monitor: Monitor, run: Run, stops: list[Status]) -> None:
    """Whoever watches a solve has not seen the steps that were taken before it was stopped."""
    for begin in range(0, run.steps, MOST_ROWS):
        rows = run.rows(begin, min(begin + MOST_ROWS, run.steps) + 1)
        keep = None if monitor.watch is None else monitor.watch(rows)
        if keep is not None:
            if begin + keep != run.steps:
                raise ValueError(
                    "a terminal event lies before the end of the checkpoint, which has gone past "
                    "it: events were changed, or look at more than (t, y)."
                )
            stops.append(Status.EVENT)
        elif monitor.judge(rows) is not None:
            stops.append(Status.NOT_A_FUNCTION)
