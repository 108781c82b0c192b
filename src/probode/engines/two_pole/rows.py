"""A step of the two-pole filter as others see it: a row of means and a factor, a solve."""

from math import factorial
from typing import Any

import jax
import numpy as np

from probode.base.status import Status
from probode.engines.two_pole.step import Counts as Made
from probode.filter.control import ControlState
from probode.filter.loop import Counts, Rows, Solve
from probode.filter.step import Method, State
from probode.model.diffusion import Evidence
from probode.model.two_pole import gains


def as_rows(method: Method, numbers: np.ndarray, mean: np.ndarray) -> Rows:
    """Derivatives in plain units, ``(N, q+1, d)``, and how uncertain they are by the model.

    ``numbers``, ``(N, 5)``: ``t, h``, the noise, the standard deviation and the order.
    """
    n, (t, h, noise, std, order) = method.structure.n, numbers.T.copy()
    at_zero = np.zeros((n, n))
    for q in range(1, n):
        at_zero[q, 2 : q + 1] = [factorial(i) * gains(q).at_zero[i] for i in range(2, q + 1)]
    found = at_zero[order.astype(int)] * noise[:, None]  # in units of h^(1-i)
    found[:, 0] = std / np.abs(h)
    factor = np.zeros((len(t), n, n))
    factor[:, np.arange(n), np.arange(n)] = found / np.abs(method.prior.weights)
    return Rows(t, h, noise, mean, factor)  # type: ignore[arg-type]


def as_row(method: Method, numbers: tuple[float, ...], mean: np.ndarray) -> Rows:
    """One of them."""
    one = as_rows(method, np.array([numbers]), mean[None])
    found: Rows = jax.tree.map(lambda x: x[0], one)
    return found


def as_solve(
    method: Method, row: Rows, following: float, failures: int, made: Made, status: Status
) -> Solve:
    """The same for those who look at a solve between two chunks."""
    control: list[Any] = [following, 1.0, made.accepted, failures > 0]
    counts: list[Any] = [made.attempted, made.accepted, made.f, made.jacobians, made.factorisations]
    zero: Any = np.zeros(())
    return Solve(
        state=State(row.t, row.h, row.mean, row.factor),
        scale=row.scale,
        control=ControlState(*(np.asarray(x) for x in control)),  # type: ignore[arg-type]
        evidence=Evidence(zero, zero, zero, zero, method.structure.d, False),
        counts=Counts(*(np.asarray(x) for x in counts)),  # type: ignore[arg-type]
        status=np.asarray(status.value),  # type: ignore[arg-type]
        reference=np.asarray(1.0),  # type: ignore[arg-type]
    )
