"""Dense output of the two-pole filter: one polynomial in each step, with a continuous slope.

On a step of length ``h`` that ends at ``t_n``, with ``τ = (t - t_n)/h`` in [-1, 0]::

    P(τ) = sum_(i<=q) x_i τ^i + (-τ)^(q+1) (a + b (1 + τ))

has the derivatives of the filter at the right end, and through ``a`` and ``b`` value and slope of
the left one. It is of degree ``q + 2``: as exact as the steps are. Outside of the interval it is
the polynomial of the state at the nearer end alone, as the prior predicts.
"""

from math import factorial
from typing import Any

import numpy as np

from probode.filter.loop import Rows
from probode.filter.smooth import Marginals
from probode.filter.step import Method
from probode.model.gaussian import unpack


def coefficients(left: np.ndarray, right: np.ndarray, h: float) -> np.ndarray:
    """Of ``P`` in powers of ``τ``, ``(q+3, d)``, from derivatives ``(q+1, d)`` at both ends.

    Derivatives that are zero for all components belong to steps of a lower order.
    """
    q = len(right) - 1
    while q > 1 and not right[q].any():
        q -= 1
    x = np.stack([right[i] * (h**i / factorial(i)) for i in range(q + 1)])
    signs = (-1.0) ** np.arange(q + 1)
    # Differences with the value first: the step is small next to it.
    a = (left[0] - right[0]) - signs[1:] @ x[1:]
    slope = -(np.arange(q + 1) * signs) @ x
    b = h * left[1] - slope + (q + 1) * a
    s = (-1.0) ** (q + 1)
    return np.concatenate([x, (s * (a + b))[None], (s * b)[None]])


def value(polynomial: np.ndarray, tau: float, h: float, k: int) -> np.ndarray:
    """The ``k``-th derivative in time."""
    found = np.zeros(polynomial.shape[1])
    for i in range(len(polynomial) - 1, k - 1, -1):
        found = found * tau + polynomial[i] * (factorial(i) / factorial(i - k))
    return found / h**k


def last_term(polynomial: np.ndarray, tau: float) -> np.ndarray:
    """The size of ``b (-τ)^(q+1) (1 + τ)``."""
    return np.abs(polynomial[-1] * (-tau) ** (len(polynomial) - 2) * (1.0 + tau))


def unsure(method: Method, rows: Rows, right: Any, t: Any) -> np.ndarray:
    """How far the curve may be off between two nodes and not at them, ``(T, d)``: its last term."""
    nodes, means = np.asarray(rows.t), np.asarray(rows.mean)
    found = np.zeros((len(t), method.structure.d))
    for j, (end, time) in enumerate(zip(np.asarray(right), np.asarray(t), strict=True)):
        if end == 0:
            continue
        h = float(nodes[end] - nodes[end - 1]) or 1.0
        tau = float(time - nodes[end]) / h
        if -1.0 < tau < 0.0:
            found[j] = last_term(coefficients(means[end - 1], means[end], h), tau)
    return found


def interpolate(
    method: Method, rows: Rows, smoothed: Marginals | None, right: Any, t: Any, k: int
) -> tuple[np.ndarray, np.ndarray]:
    """See :meth:`probode.engines.protocol.Engine.interpolate`.

    Variances between two nodes are linear in time.
    """
    n, d = method.structure.n, method.structure.d
    times, nodes, means = np.asarray(t), np.asarray(rows.t), np.asarray(rows.mean)
    mean, columns = np.empty((len(times), d)), np.empty((len(times), 2 * n))
    known = (-1, np.empty(0))
    for j, (end, time) in enumerate(zip(np.asarray(right), times, strict=True)):
        begin = max(int(end) - 1, 0)
        h = float(nodes[end] - nodes[begin]) or 1.0
        tau = float(time - nodes[end]) / h
        inside = -1.0 <= tau <= 0.0 and end > 0
        if inside:
            if known[0] != end:
                known = (int(end), coefficients(means[begin], means[end], h))
            mean[j] = value(known[1], tau, h, k)
        else:
            base = end if tau > 0.0 else begin
            away = float(time - nodes[base])
            taylor = np.stack([means[base, i] / factorial(i) for i in range(n)])
            mean[j] = value(taylor, away, 1.0, k)
        part = float(np.clip(1.0 + tau, 0.0, 1.0))
        both = [_columns(method, rows, i, k) for i in (begin, int(end))]
        columns[j] = np.concatenate([np.sqrt(1.0 - part) * both[0], np.sqrt(part) * both[1]])
    return mean, columns


def _columns(method: Method, rows: Rows, i: int, k: int) -> np.ndarray:
    """Of the ``k``-th derivative at node ``i``, in plain units."""
    h, prior = float(rows.h[i]), method.prior
    factor = np.asarray(unpack(rows.factor[i]))
    return factor[:, k] * abs(prior.weights[k] * h ** (1 - k))
