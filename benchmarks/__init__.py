"""Benchmarks: ``python -m benchmarks work_precision`` and ``python -m benchmarks.step_cost``.

BLAS is kept to one thread, before anything loads it: on matrices of a few rows more threads only
wait for each other. XLA's own threads stay as they are by default.
"""

import os

for _name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")
