"""Long runs: memory of a solve whose rows go to disk, and periods against their error bars.

    python -m benchmarks.long_runs memory
    python -m benchmarks.long_runs periods

``memory`` solves a pendulum in a process for each case and prints the most memory that no file
backs. ``periods`` prints errors of periods over their standard deviations, against SciPy's DOP853.
"""

import argparse
import re
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
from scipy.integrate import solve_ivp as scipy_ivp
from scipy.optimize import brentq

from probode import solve_ivp

LENGTHS = (2e4, 8e4)
CASES = {"no checkpoint": (False, "defect"), "defect": (True, "defect"), "model": (True, "model")}
TOLERANCES = (1e-3, 1e-4, 1e-5, 1e-6, 1e-7)


def pendulum(t, y):
    return np.array([y[1], -np.sin(y[0])])


def anonymous():
    """Megabytes of this process that no file backs."""
    found = re.search(r"RssAnon:\s*(\d+) kB", Path("/proc/self/status").read_text())
    return int(found[1]) / 1024


def solved(length, case):
    """Print the steps of one solve, and the memory before and at most."""
    kept, calibration = CASES[case]
    options = {"rtol": 1e-8, "atol": 1e-10, "t_eval": [1.0], "calibration": calibration}
    solve_ivp(pendulum, (0.0, 1.0), [1.0, 0.0], **options)
    before, most, done = anonymous(), [0.0], threading.Event()

    def watch():
        while not done.is_set():
            most[0] = max(most[0], anonymous())
            time.sleep(0.02)

    watcher = threading.Thread(target=watch)
    watcher.start()
    with tempfile.TemporaryDirectory() as folder:
        place = {"checkpoint": Path(folder) / "run"} if kept else {}
        result = solve_ivp(pendulum, (0.0, length), [1.0, 0.0], **options, **place)
    done.set()
    watcher.join()
    steps = int(result.posterior.stats.steps)
    print(f"{case:14} {steps:9} steps  before {before:5.0f} MB  at most {most[0]:5.0f} MB")


CYCLES = {
    "Van der Pol": (lambda t, y: np.array([y[1], (1.0 - y[0] ** 2) * y[1] - y[0]]), [2.0, 0.0]),
    "Brusselator": (
        lambda t, y: np.array([1.0 + y[0] ** 2 * y[1] - 4.0 * y[0], 3.0 * y[0] - y[0] ** 2 * y[1]]),
        [1.5, 3.0],
    ),
    "Lotka-Volterra": (
        lambda t, y: np.array([1.5 * y[0] - y[0] * y[1], y[0] * y[1] - 3.0 * y[1]]),
        [10.0, 5.0],
    ),
}


def reference(fun, y0, end=120.0):
    """The last of the times between upward crossings of the middle of the first component."""
    tight = {"method": "DOP853", "rtol": 1e-13, "atol": 1e-13, "dense_output": True}
    sol = scipy_ivp(fun, (0.0, end), y0, **tight).sol
    late = np.linspace(0.7 * end, end, 4000)
    values = sol(late)[0]
    middle = 0.5 * (values.min() + values.max())
    up = np.flatnonzero((values[:-1] < middle) & (values[1:] >= middle))
    times = [brentq(lambda t: sol(t)[0] - middle, late[i], late[i + 1]) for i in up[-2:]]
    return times[1] - times[0]


def periods():
    for name, (fun, y0) in CYCLES.items():
        period, scores = reference(fun, y0), []
        for tol in TOLERANCES:
            options = {"until": "periodic", "rtol": tol, "atol": 0.1 * tol}
            found = solve_ivp(fun, (0.0, np.inf), y0, **options)
            scores.append((found.period - period) / found.period_std)
        print(f"{name:14} {period:.8f}", *(f"{score:6.2f}" for score in scores))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["memory", "periods"])
    parser.add_argument("--one", nargs=2, metavar=("LENGTH", "CASE"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.what == "periods":
        periods()
    elif options.one is not None:
        solved(float(options.one[0]), options.one[1])
    else:
        for case in CASES:
            for length in LENGTHS:
                command = [sys.executable, "-m", "benchmarks.long_runs", "memory", "--one"]
                subprocess.run([*command, str(length), case], check=True)


if __name__ == "__main__":
    main()
