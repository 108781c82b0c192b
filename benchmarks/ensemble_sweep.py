"""A large sweep with time series, killed half way and resumed, in memory that stays flat.

    python -m benchmarks.ensemble_sweep --members 10000000 --points 100 [--folder DIR]

Lorenz with ``rho`` from 0 to 21, every member at all save points with error bars, into a Zarr
store. A first process is killed (SIGKILL) when about half of the chunks are there, a second one
goes on with what is missing. Both report the largest memory that they held; the sum of both times
is set against one that was not disturbed (``--undisturbed``, for sizes that are worth it). Then
statistics are taken from the store, some members at a time.
"""

import argparse
import multiprocessing
import resource
import shutil
import signal
import tempfile
import time
from pathlib import Path

import jax.numpy as jnp
import numpy as np

import probode
from probode.ensemble.store import Store


def lorenz(t, y, rho):
    return jnp.stack([10 * (y[1] - y[0]), y[0] * (rho - y[2]) - y[1], y[0] * y[1] - 8 / 3 * y[2]])


def sweep(members, points, store, calibration):
    return probode.solve_ensemble(
        *(lorenz, (0.0, 1.0), np.ones(3), (np.linspace(0.0, 21.0, members),)),
        save_at=np.linspace(0.0, 1.0, points),
        solver=probode.EK0(3),
        rtol=1e-4,
        atol=1e-6,
        calibration=calibration,
        store=store,
    )


def work(members, points, store, calibration, report):
    begun = time.perf_counter()
    found = sweep(members, points, store, calibration)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    cpu = time.process_time()
    report.put((time.perf_counter() - begun, cpu, peak, found.engine, int(found.success.sum())))


def written(store):
    """Which part of the chunks is there: one piece of ``status`` for each."""
    try:
        pieces = Store(store)["status"]
    except (KeyError, OSError):  # not begun
        return 0.0
    return sum(file.name.isdigit() for file in store.glob("status/c/*")) / pieces.nchunks


def peak_of(process):
    """Largest memory of a running process, in MB."""
    try:
        lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    except OSError:
        return 0.0
    return next((int(x.split()[1]) / 1024 for x in lines if x.startswith("VmHWM")), 0.0)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--members", type=int, default=100_000)
    parser.add_argument("--points", type=int, default=100)
    parser.add_argument("--calibration", default="defect", choices=["defect", "model"])
    parser.add_argument("--folder", help="where the store goes; by default a temporary one")
    parser.add_argument("--undisturbed", action="store_true", help="also in one go, for comparison")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(dir=options.folder))
    store, fork = folder / "sweep.zarr", multiprocessing.get_context("spawn")
    report = fork.Queue()
    task = (options.members, options.points, store, options.calibration, report)
    size = options.members * options.points * 2 * 3 * 8 / 2**30
    print(f"{options.members} members x {options.points} points: {size:.2f} GB of results")
    try:
        first = fork.Process(target=work, args=task)
        begun = time.perf_counter()
        first.start()
        part = 0.0
        while first.is_alive() and part < 0.5:
            time.sleep(0.2)
            part, peak = written(store), peak_of(first)
        if first.is_alive():
            first.kill()
        first.join()
        half = time.perf_counter() - begun
        killed = "killed" if first.exitcode == -signal.SIGKILL else "done before it was killed"
        print(f"first process: {killed} after {half:.1f} s with {part:.0%} written, {peak:.0f} MB")
        second = fork.Process(target=work, args=task)
        second.start()
        spent, cpu, peak, engine, done = report.get()
        second.join()
        print(
            f"second process: the rest in {spent:.1f} s ({cpu:.1f} CPU s) by {engine!r}, "
            f"{peak:.0f} MB; {done} of {options.members} members reached their end"
        )
        disk = sum(file.stat().st_size for file in store.rglob("*") if file.is_file()) / 2**30
        begun = time.perf_counter()
        reduced = sweep(*task[:4]).reduce({"mean": probode.reductions.Mean()})
        print(
            f"{disk:.2f} GB on disk, read in {time.perf_counter() - begun:.1f} s; mean of the last "
            f"save point over all members: {reduced['mean'][-1]}"
        )
        if options.undisturbed:
            again = (*task[:2], folder / "whole.zarr", *task[3:])
            whole = fork.Process(target=work, args=again)
            whole.start()
            spent, cpu, peak, _, _ = report.get()
            whole.join()
            one, other = Store(store), Store(folder / "whole.zarr")
            same = all(np.array_equal(one[x][...], other[x][...], equal_nan=True) for x in one)
            print(f"in one go: {spent:.1f} s ({cpu:.1f} CPU s), {peak:.0f} MB, the same: {same}")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
