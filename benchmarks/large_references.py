"""References for large stiff problems: closed forms, or CVODE at tolerances far below the judged.

They are computed once and kept in the folder for temporary files. How exact they are is seen by a
second run at ten times the tolerance, whose own error is most of the difference.
"""

import hashlib
import tempfile
import warnings
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.large_problems import Problem
from benchmarks.large_solvers import Failed, cvode_options, cvode_solver

FOLDER = Path(tempfile.gettempdir()) / "probode-large-references"


class Reference(NamedTuple):
    """Values at some times, ``(n, d)``, and about how far they are off."""

    y: np.ndarray
    doubt: np.ndarray


def reference(problem: Problem, times: np.ndarray, tight: float = 1e-11) -> Reference:
    """The solution at these times."""
    times = np.asarray(times, float)
    if problem.exact is not None:
        y = np.stack([problem.exact(float(t)) for t in times])
        return Reference(y, 1e-14 * np.abs(y))
    if problem.mass is not None:
        raise ValueError("a problem with a mass matrix needs a closed form.")
    path = FOLDER / f"{problem.name}-{problem.d}-{_fingerprint(problem, times, tight)}.npz"
    if not path.exists():
        FOLDER.mkdir(exist_ok=True)
        fine, coarse = (_cvode(problem, times, rtol) for rtol in (tight, 10.0 * tight))
        np.savez(path, y=fine, doubt=np.abs(fine - coarse))
    with np.load(path) as kept:
        return Reference(kept["y"], kept["doubt"])


def _fingerprint(problem: Problem, times: np.ndarray, tight: float) -> str:
    """Another one where equation, start, times or tolerance are others."""
    moved = problem.y0 + 0.01 * np.cos(np.arange(problem.d))
    slope = np.asarray(problem.in_numpy(0.3 * problem.end, moved))
    parts = problem.y0, slope, times, np.array([problem.end, problem.unit, tight])
    return hashlib.sha256(b"".join(x.tobytes() for x in parts)).hexdigest()[:16]


def _cvode(problem: Problem, times: np.ndarray, rtol: float) -> np.ndarray:
    kind = "sparse"
    if problem.bands is not None:
        kind = "band"
    elif problem.preconditioner is not None and problem.d > 2000:
        kind = "gmres"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        solver, _ = cvode_solver(problem, rtol, cvode_options(problem, kind))
        wanted = np.concatenate([[0.0], times])
        extra = len(wanted) == 2  # of two times it would keep every step
        if extra:
            wanted = np.insert(wanted, 1, 0.5 * wanted[1])
        found = solver.solve(wanted, problem.y0)
    if not found.success:
        raise Failed(f"no reference for {problem.name}: {found.message}")
    return np.array(found.y)[-len(times) :]
