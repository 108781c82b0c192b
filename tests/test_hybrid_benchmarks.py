"""The models of ``benchmarks.hybrid``: solved in one call, with bars of the true size."""

import numpy as np
import pytest

from benchmarks.hybrid import judged, largest, true_pieces
from benchmarks.hybrid_problems import PROBLEMS

LONG = ("drug", "ball", "neuron")


@pytest.mark.parametrize(
    "problem",
    [
        pytest.param(one, marks=pytest.mark.slow if one.title.startswith(LONG) else ())
        for one in PROBLEMS
    ],
    ids=[one.title for one in PROBLEMS],
)
def test_bars_are_of_the_true_size(problem):
    starts = true_pieces(problem)
    for rtol in (1e-3, 1e-5):
        _, error, chi, y = judged(problem, starts, "EK1", rtol)
        assert 1 / 3 < chi < 3.0
        # The step control allows for rtol a step; the neuron multiplies errors as it fires.
        assert error < 300 * rtol
        hand = problem.by_hand("RK45", rtol)
        assert largest((np.asarray(y) - hand.y)[None], problem) < 100 * rtol


def test_one_call_takes_fewer_lines():
    for problem in PROBLEMS:
        ours, by_hand = problem.lines
        assert ours < by_hand
