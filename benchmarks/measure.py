"""Runs the workers, watches their time, and gathers what they say."""

import dataclasses
import json
import os
import platform
import queue
import statistics
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks import problems, solvers

ROOT = Path(__file__).resolve().parent.parent
START_SECONDS = 120.0
"""What a worker may take to import everything and find the reference."""


@dataclasses.dataclass(frozen=True)
class Plan:
    """How much to measure."""

    decades: float
    """Tolerances are this many decades apart."""
    rounds: int
    """How often each solve is timed, at most."""
    seconds: float
    """For how long each solve is timed, at most (but twice)."""
    budget: float
    """A solve that takes longer is left out, and with it all tighter tolerances."""
    compile_seconds: float
    """The same for the first call."""


QUICK = Plan(decades=2.0, rounds=5, seconds=0.3, budget=1.0, compile_seconds=30.0)
FULL = Plan(decades=1.0, rounds=11, seconds=1.5, budget=4.0, compile_seconds=120.0)


@dataclasses.dataclass
class Point:
    """One solver at one tolerance on one problem."""

    problem: str
    solver: str
    tol: float
    error: float
    steps: int | None
    evaluations: int | None
    first: float
    """Seconds of the first solve at this tolerance."""
    times: list[float] = dataclasses.field(default_factory=list)

    @property
    def seconds(self) -> float:
        """Median of the times."""
        return statistics.median(self.times)


@dataclasses.dataclass
class Results:
    """Everything measured."""

    header: dict[str, str]
    points: list[Point] = dataclasses.field(default_factory=list)
    compiled: dict[tuple[str, str], float] = dataclasses.field(default_factory=dict)
    """Seconds of the first call, the process being warm; by problem and solver."""
    first: dict[tuple[str, str], dict[str, float | None]] = dataclasses.field(default_factory=dict)
    """Import, first solve and memory in a fresh process."""
    notes: dict[tuple[str, str], list[str]] = dataclasses.field(default_factory=dict)

    def note(self, problem: str, solver: str, text: str) -> None:
        """Remember why something is missing."""
        notes = self.notes.setdefault((problem, solver), [])
        if text not in notes:
            notes.append(text)


def tolerances(problem: problems.Problem, decades: float) -> list[float]:
    """From loose to tight, the tightest included."""
    loose, tight = problem.tolerances
    count = max(1, round((loose - tight) / decades))
    return [10.0 ** (loose + (tight - loose) * i / count) for i in range(count + 1)]


def sweep(
    results: Results,
    problem: problems.Problem,
    names: list[str],
    plan: Plan,
    cache: Path,
    say: Callable[[str], None] = lambda text: None,
) -> None:
    """Measure these solvers on one problem, into ``results``."""
    runnable = _runnable(results, problem, names)
    stop: dict[str, float] = {}
    found: dict[tuple[str, float], Point] = {}
    while runnable:
        job = {
            "problem": problem.name,
            "solvers": runnable,
            "tolerances": tolerances(problem, plan.decades),
            "stop": stop,
            "known": _known(found, stop),
            "budget": plan.budget,
            "rounds": plan.rounds,
            "seconds": plan.seconds,
            "cache": str(cache),
        }
        stuck = _one_sweep(results, problem.name, job, plan, found, say)
        if stuck is None:
            results.points += [point for point in found.values() if point.times]
            return
        solver, tol, died = stuck
        if tol is None:
            late = f"no first call in {plan.compile_seconds:g} s"
            results.note(problem.name, solver, died or late)
            runnable = [name for name in runnable if name != solver]
        else:
            results.note(problem.name, solver, died or _over(plan, tol))
            stop[solver] = tol
        for key in [k for k in found if k[0] == solver and (tol is None or k[1] <= tol)]:
            del found[key]
        say(f"  {solver} {tol}: ended; again without it")


def _known(
    found: dict[tuple[str, float], Point], stop: dict[str, float]
) -> dict[str, list[tuple[float, float]]]:
    """What a worker need not find out again: all of the solvers before the one that got stuck."""
    names = list(dict.fromkeys(name for name, _ in found))
    # The last one found may have had tolerances to come; one that got stuck has none.
    complete = names[:-1] + [name for name in names[-1:] if name in stop]
    return {
        name: [(tol, point.first) for (n, tol), point in found.items() if n == name]
        for name in complete
    }


def _runnable(results: Results, problem: problems.Problem, names: list[str]) -> list[str]:
    kept = []
    for name in names:
        solver = solvers.SOLVERS[name]
        if problem.kind not in solver.kinds:
            continue
        if solver.available():
            kept.append(name)
        else:
            results.note(problem.name, name, f"{solver.package} is not installed")
    return kept


def _over(plan: Plan, tol: float) -> str:
    return f"over {plan.budget:g} s at tol {tol:.0e}"


def _one_sweep(
    results: Results,
    name: str,
    job: dict[str, Any],
    plan: Plan,
    found: dict[tuple[str, float], Point],
    say: Callable[[str], None],
) -> tuple[str, float | None, str] | None:
    """One worker; its points go to ``found``. Returns where, and how, it got stuck if it did."""
    current: tuple[str, float | None] = ("", None)

    def patience() -> float:
        if not current[0]:
            return START_SECONDS
        return plan.compile_seconds if current[1] is None else 3 * plan.budget + 5

    for line in _lines("sweep", job, patience):
        if line is None or line["event"] == "died":
            died = "" if line is None else f"the process ended with code {line['code']}"
            if not current[0]:
                raise RuntimeError(f"{name}: the worker did not start; {died or 'too slow'}")
            return (*current, died)
        event, solver, tol = line["event"], line.get("solver", ""), line.get("tol")
        if event == "start":
            current = (solver, tol)
        elif event == "compiled":
            results.compiled.setdefault((name, solver), line["seconds"])
        elif event == "failed":
            at = "" if tol is None else f"at tol {tol:.0e}: "
            results.note(name, solver, f"{at}{line['message']}")
        elif event == "over":
            results.note(name, solver, _over(plan, tol))
        elif event == "point":
            keys = ("error", "steps", "evaluations", "seconds")
            found[solver, tol] = Point(name, solver, tol, *(line[key] for key in keys))
            say(f"  {solver} tol {tol:.0e}: error {line['error']:.1e}, {line['seconds']:.2e} s")
        elif event == "times":
            found[solver, tol].times += line["times"]
    return None


def first_call(results: Results, problem: problems.Problem, name: str, plan: Plan) -> None:
    """Import, first solve (at a tolerance of 1e-6) and memory in a fresh process."""
    job = {
        "problem": problem.name,
        "solver": name,
        "family": solvers.SOLVERS[name].family,
        "tol": 1e-6,
        "budget": plan.budget,
    }
    for line in _lines("first", job, lambda: plan.compile_seconds + plan.budget):
        if line is not None and line["event"] == "first":
            keys = ("imported", "solved", "memory")
            results.first[problem.name, name] = {key: line[key] for key in keys}
            return
    results.note(problem.name, name, "no first call in a fresh process")


def _lines(
    command: str, job: dict[str, Any], patience: Callable[[], float]
) -> Iterator[dict[str, Any] | None]:
    """Lines of a worker; ``None``, and the worker is ended, where one is overdue."""
    path = os.pathsep.join(p for p in (str(ROOT), os.environ.get("PYTHONPATH", "")) if p)
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.worker", command, json.dumps(job)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert process.stdout is not None
    waiting: queue.Queue[str | None] = queue.Queue()

    def read(stream: Any) -> None:
        for line in stream:
            waiting.put(line)
        waiting.put(None)

    threading.Thread(target=read, args=(process.stdout,), daemon=True).start()
    try:
        while True:
            try:
                line = waiting.get(timeout=patience())
            except queue.Empty:
                yield None
                return
            if line is None:
                if code := process.wait():
                    yield {"event": "died", "code": code}
                return
            yield json.loads(line)
    finally:
        process.kill()
        process.wait()


def header(plan: Plan) -> dict[str, str]:
    """Machine, versions, commit and settings; no date, so that equal runs give equal headers."""
    return {
        "cpu": _cpu(),
        "cores": str(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else "?"),
        "python": platform.python_version(),
        **solvers.versions(),
        "commit": _commit(),
        "blas threads": "1",
        "plan": ", ".join(f"{k} {v:g}" for k, v in dataclasses.asdict(plan).items()),
    }


def _cpu() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _commit() -> str:
    try:
        done = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--exclude=*"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return done.stdout.strip()
