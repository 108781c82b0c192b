"""Measures one problem in a process of its own; :mod:`benchmarks.measure` starts and watches it.

    python -m benchmarks.worker sweep|first '{"problem": ..., ...}'

Every result is one line of JSON on standard output, as soon as it is known. A compiled solve cannot
be interrupted from inside: the parent ends this process when a line is overdue.
"""

import contextlib
import gc
import importlib
import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

BURST_BELOW = 0.01
"""Solves shorter than this (seconds) are timed three in a row: the first finds cold caches."""
ENOUGH = 3e-12
"""Errors below this serve no target: tighter tolerances are left out."""


_OUT = sys.stdout


def keep_output_clean() -> None:
    """Give what solvers print (from C as well) to standard error; our lines go where they went."""
    global _OUT
    _OUT = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)


def emit(event: str, **data: Any) -> None:
    """Write one line."""
    print(json.dumps({"event": event, **data}), file=_OUT, flush=True)


@contextlib.contextmanager
def deadline(seconds: float) -> Iterator[None]:
    """Raise ``TimeoutError`` after so many seconds, at the next line of Python."""

    def stop(signum: int, frame: Any) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def sweep(job: dict[str, Any]) -> None:
    """Find out what each solver reaches, then time all of them in turns."""
    import jax
    from threadpoolctl import threadpool_limits

    from benchmarks import problems, solvers

    jax.config.update("jax_enable_x64", True)
    threadpool_limits(1, user_api="blas")
    problem = problems.get(job["problem"])
    reference = problems.reference(problem, Path(job["cache"]))
    emit("ready")
    tasks = []
    for name in job["solvers"]:
        run = _warm(solvers.SOLVERS[name], problem, job)
        if run is None:
            continue
        if name in job["known"]:
            tasks += [(name, tol, run, seconds) for tol, seconds in job["known"][name]]
        else:
            tasks += _scout(name, run, problem, reference, job)
    _time_in_turns(tasks, job)


def _warm(solver: Any, problem: Any, job: dict[str, Any]) -> Any:
    """Build and compile; ``None`` where that fails."""
    from benchmarks import adapters

    emit("start", solver=solver.name, tol=None)
    start = time.perf_counter()
    try:
        run = solver.build(problem, job["budget"])
        with contextlib.suppress(adapters.SolverFailed):
            run(job["tolerances"][len(job["tolerances"]) // 4])
        seconds = time.perf_counter() - start
        if hasattr(run, "compile_all"):  # of a choice: what other tolerances will ask for
            run.compile_all()
    except Exception as error:
        emit("failed", solver=solver.name, tol=None, message=_short(error))
        return None
    emit("compiled", solver=solver.name, seconds=seconds)
    return run


def _scout(
    name: str, run: Any, problem: Any, reference: Any, job: dict[str, Any]
) -> list[tuple[str, float, Any, float]]:
    """One solve at each tolerance, from loose to tight, as long as the budget allows."""
    tasks = []
    tightest = job["stop"].get(name)
    for tol in job["tolerances"]:
        if tightest is not None and tol <= tightest:
            break
        emit("start", solver=name, tol=tol)
        start = time.perf_counter()
        try:
            with deadline(job["budget"]):
                outcome = run(tol)
        except TimeoutError:
            emit("over", solver=name, tol=tol)
            break
        except Exception as error:
            late = time.perf_counter() - start > job["budget"]
            if late:
                emit("over", solver=name, tol=tol)
                break
            emit("failed", solver=name, tol=tol, message=_short(error))
            continue
        seconds = time.perf_counter() - start
        error = problem.error(outcome.y, reference)
        tasks.append((name, tol, run, seconds))
        emit(
            "point",
            solver=name,
            tol=tol,
            error=error,
            seconds=seconds,
            steps=outcome.steps,
            evaluations=outcome.evaluations,
        )
        if error < ENOUGH:
            break
    return tasks


def _time_in_turns(tasks: list[tuple[str, float, Any, float]], job: dict[str, Any]) -> None:
    """Round-robin, so that a busy moment of the machine meets all solvers alike.

    A long solve takes part in fewer rounds, at least two, at most ``job["seconds"]`` in all.
    """
    from benchmarks import adapters

    for turn in range(job["rounds"]):
        gc.collect()
        gc.disable()
        for name, tol, run, seconds in tasks:
            if turn >= 2 and turn * seconds > job["seconds"]:
                continue
            emit("start", solver=name, tol=tol)
            times = []
            # A solver that obeys the budget may give up in a busy moment: no time then.
            with contextlib.suppress(adapters.SolverFailed):
                for _ in range(3 if seconds < BURST_BELOW else 1):
                    start = time.perf_counter()
                    run(tol)
                    times.append(time.perf_counter() - start)
            emit("times", solver=name, tol=tol, times=times)
        gc.enable()


def first(job: dict[str, Any]) -> None:
    """Import and first solve in a fresh process, and the memory the solve adds."""
    start = time.perf_counter()
    for module in _IMPORTS[job["family"]]:
        importlib.import_module(module)
    imported = time.perf_counter() - start

    # The benchmark's own imports (JAX among them, also for SciPy) are not counted.
    from benchmarks import problems, solvers

    problem, solver = problems.get(job["problem"]), solvers.SOLVERS[job["solver"]]
    before = _memory("VmRSS")
    _forget_peak()
    start = time.perf_counter()
    run = solver.build(problem, job["budget"])
    run(job["tol"])
    solved = time.perf_counter() - start
    peak = _memory("VmHWM")
    added = peak - before if peak and before else None
    emit("first", solver=solver.name, imported=imported, solved=solved, memory=added)


_IMPORTS = {
    "probode": ("probode",),
    "smoother": ("probode",),
    "probdiffeq": ("jax", "probdiffeq.probdiffeq", "probdiffeq.ivpsolve"),
    "diffrax": ("jax", "diffrax"),
    "SciPy": ("scipy.integrate",),
    "CVODE": ("sksundae.cvode",),
}


def _memory(field: str) -> float | None:
    """MiB from ``/proc/self/status``; ``None`` where there is no such file."""
    try:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith(field):
                return int(line.split()[1]) / 1024
    except OSError:
        pass
    return None


def _forget_peak() -> None:
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def _short(error: Exception) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 120 else text[:117] + "..."


if __name__ == "__main__":
    keep_output_clean()
    {"sweep": sweep, "first": first}[sys.argv[1]](json.loads(sys.argv[2]))
