"""A process that solves with a checkpoint, until it is done or killed.

Run by ``test_checkpoint.py``, with the place of the checkpoint and a file for the result.
"""

import sys
import time

import numpy as np
from only_python import number

from probode import Checkpoint, solve_ivp
from probode.engines import journal, kept

END = 40.0


def slow(t, y):
    """Only Python can evaluate it, and takes its time."""
    time.sleep(1e-3)
    return [y[1], (1.0 - y[0] ** 2) * y[1] - y[0]] if number(y[0]) < 1e9 else [0.0, 0.0]


def crossing(t, y):
    """Now and then."""
    return y[0]


def main(place=None):
    """All that a result says."""
    options = {} if place is None else {"checkpoint": Checkpoint(place, every=0.0)}
    result = solve_ivp(slow, (0.0, END), [2.0, 0.0], rtol=1e-7, events=crossing, **options)
    assert result.success
    return {
        "t": result.t,
        "y": result.y,
        "y_std": result.y_std,
        "t_events": result.t_events[0],
        "t_events_std": result.t_events_std[0],
        "samples": result.posterior.sample(2, seed=1, t=np.linspace(0.0, END, 7)),
        "nfev": result.nfev,
    }


if __name__ == "__main__":
    journal.SHARE, kept.MOST_ROWS = 0, 32  # saved all the time
    print("begun", flush=True)
    found = main(sys.argv[1])
    np.savez(sys.argv[2], **found)
