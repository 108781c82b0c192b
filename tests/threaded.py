"""A process whose first calls run in eight threads: the same numbers as one after the other.

Run by ``test_threads.py``, with a seed and the number of tasks; prints what differs.
"""

import logging
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import jax.numpy as jnp
import numpy as np
from only_python import number

from probode import EK0, EK1, Sweep, solve, solve_ensemble, solve_ivp

THREADS = 8
_result = np.zeros(2)


def oscillator(t, y):
    """Written for NumPy."""
    return np.array([y[1], -np.sin(y[0])])


def in_place(t, y):
    """With a result that all threads share."""
    _result[0], _result[1] = y[1], -4.0 * y[0]
    return _result


def with_a_branch(t, y):
    """Only Python can evaluate it."""
    return [y[1], -y[0]] if number(y[0]) > 0.5 else [y[1], -0.5]


def falling(t, y):
    """A stone."""
    return [y[1], -9.81]


def ground(t, y):
    """Where it falls to."""
    return y[0]


ground.terminal, ground.direction = True, -1


def numbers(result):
    """All that a result says, dense output and samples included."""
    t = np.linspace(result.t[0], result.t[-1], 5)
    found = [] if result.t_events is None else [*result.t_events, *result.y_events]
    sol = result.sol
    return [result.t, result.y, result.y_std, sol(t), sol.std(t), sol.sample(2, seed=1), *found]


def ivp(fun, y0=(1.0, 0.0), end=2.0, **options):
    """A task: solve, and give the numbers."""
    return lambda: numbers(solve_ivp(fun, (0.0, end), list(y0), dense_output=True, **options))


def saved():
    """The filter, at given times."""
    times = jnp.linspace(0.0, 1.0, 3)
    f = lambda t, y: jnp.cos(t) - y  # noqa: E731
    return [solve(f, (0.0, 1.0), jnp.ones(2), solver=EK1(3), save_at=times, smooth=False).std]


def ensemble():
    """Three members."""
    solved = solve_ensemble(
        lambda t, y, a: -a * y, (0.0, 1.0), [1.0], args=(Sweep([1.0, 2.0, 3.0]),), solver=EK0(2)
    )
    return [solved.mean, solved.std]


TASKS = [
    *(ivp(lambda t, y, k=k: -k * y) for k in (1.0, 2.0, 3.0)),
    *(ivp(lambda t, y, k: [y[1], -k * y[0]], args=(k,)) for k in (1.0, 2.0)),
    *(ivp(oscillator, method=method) for method in ("EK0", "EK1", "DiagonalEK1") * 2),
    *[ivp(in_place), ivp(with_a_branch), ivp(falling, (1.0, 10.0), 50.0, events=ground)] * 2,
    *[saved, ensemble] * 2,
    *[ivp(oscillator, end=20.0, until="periodic"), ivp(lambda t, y: 1.0 - y, until="steady")] * 2,
    *[ivp(oscillator, breakpoints=[0.7]), ivp(oscillator, jumps=[(1.0, lambda t, y: 0.5 * y)])] * 2,
]


def main():
    """Print the numbers of tasks that gave something else in a thread."""
    logging.disable(logging.WARNING)
    sys.setswitchinterval(1e-4)  # turns taken more often than usual
    begin = threading.Barrier(THREADS)
    seed, count = map(int, sys.argv[1:])
    order = np.random.default_rng(seed).permutation(len(TASKS[:count]))

    def run(i):
        begin.wait()
        return [(k, TASKS[k]()) for k in order[i::THREADS]]

    with ThreadPoolExecutor(THREADS) as pool:
        found = dict(pair for part in pool.map(run, range(THREADS)) for pair in part)
        shared = solve_ivp(oscillator, (0.0, 2.0), [1.0, 0.0], dense_output=True)
        used = list(pool.map(lambda _: numbers(shared), range(3 * THREADS)))
    different = [k for k in sorted(found) if not same(found[k], TASKS[k]())]
    different += [-1 for one in used if not same(one, numbers(shared))]
    print("different:", different)


def same(these, those):
    """Exactly."""
    return all(np.array_equal(a, b) for a, b in zip(these, those, strict=True))


if __name__ == "__main__":
    main()
