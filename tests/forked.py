"""A process that solves in children: forked from one that has solved already, and spawned.

Run by ``test_threads.py``, with the way to start them; prints what came of each function.
"""

import logging
import multiprocessing
import sys

import numpy as np
from threaded import oscillator, with_a_branch

from probode import solve_ivp


def solved(fun):
    """All that a result says."""
    logging.disable(logging.WARNING)
    result = solve_ivp(fun, (0.0, 2.0), [1.0, 0.0], rtol=1e-6)
    return result.t, result.y, result.y_std


def main():
    """Solve here, and in two children at once."""
    context = multiprocessing.get_context(sys.argv[1])
    for fun in (oscillator, with_a_branch):
        here = solved(fun)
        with context.Pool(2) as pool:
            waiting = [pool.apply_async(solved, (fun,)) for _ in range(2)]
            for one in waiting:
                try:
                    there = one.get(timeout=100)
                    print(fun.__name__, "same" if all(map(np.array_equal, here, there)) else "not")
                except RuntimeError as error:
                    print(fun.__name__, "refused", "spawn" in str(error))


if __name__ == "__main__":
    main()
