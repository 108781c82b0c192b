"""Collocation: nodes and coefficients of the Radau IIA and Gauss methods that carry the error.

A method with nodes ``c_i`` in [0, 1] integrates ``e' = G(t, e)`` over a step by::

    E_i = e_n + h sum_j a_ij G_j,       a_ij = integral of l_j from 0 to c_i,
    e_(n+1) = e_n + h sum_j b_j G_j,    b_j  = integral of l_j from 0 to 1

where ``l_j`` are the Lagrange polynomials of the nodes. Radau IIA has ``c_s = 1``, order ``2s-1``
and is L-stable; Gauss has order ``2s``.
"""

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.polynomial import Polynomial, legendre


@dataclass(frozen=True)
class Collocation:
    """A collocation method: ``kind`` is "radau" or "gauss", ``s`` the number of stages."""

    kind: str
    s: int

    @cached_property
    def nodes(self) -> np.ndarray:
        """``c``, shape ``(s,)``."""
        return _nodes(self.kind, self.s)

    @cached_property
    def middle(self) -> int:
        """The stage nearest to the middle of the step: there the Jacobian is evaluated."""
        return int(np.argmin(np.abs(self.nodes - 0.5)))

    @cached_property
    def matrix(self) -> np.ndarray:
        """``a``, shape ``(s, s)``."""
        return np.array([[p(c) for p in self._integrals] for c in self.nodes])

    @cached_property
    def weights(self) -> np.ndarray:
        """``b``, shape ``(s,)``."""
        return np.array([p(1.0) for p in self._integrals])

    @cached_property
    def _integrals(self) -> list[Polynomial]:
        polynomials = []
        for j in range(self.s):
            others = np.delete(self.nodes, j)
            lagrange = Polynomial.fromroots(others) / np.prod(self.nodes[j] - others)
            polynomials.append(lagrange.integ(lbnd=0.0))
        return polynomials

    @cached_property
    def spectrum(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """``a⁻¹ = T diag(λ) T⁻¹``, of each complex pair one: ``λ``, columns of T, rows of T⁻¹.

        A real vector is ``x = Re sum_k T_k (T⁻¹ x)_k`` with the columns of pairs counted twice.
        """
        values, vectors = np.linalg.eig(np.linalg.inv(self.matrix))
        inverse = np.linalg.inv(vectors)
        keep = values.imag >= 0.0
        twice = np.where(values.imag[keep] > 0.0, 2.0, 1.0)
        return values[keep], vectors[:, keep] * twice, inverse[keep]

    def dense_rows(self, xp: Any, tau: Any) -> Any:
        """Weights of ``(e_n, E_1, ..., E_s, e_(n+1))`` in the stage polynomial at ``τ``.

        The polynomial passes through all of them (for Radau the last stage *is* the end).
        """
        points = np.concatenate([[0.0], self.nodes, [] if self.kind == "radau" else [1.0]])
        rows = []
        for j, point in enumerate(points):
            others = np.delete(points, j)
            numerator = xp.stack([tau - other for other in others], axis=-1)
            rows.append(xp.prod(numerator, axis=-1) / np.prod(point - others))
        if self.kind == "radau":
            rows.append(xp.zeros_like(tau))
        return xp.stack(rows, axis=-1)

    @cached_property
    def end_slope(self) -> np.ndarray:
        """Weights of the same in ``h`` times the slope of the stage polynomial at ``τ = 1``.

        Of Radau: there the polynomial solves the equation of the error.
        """
        last = np.linalg.inv(self.matrix)[-1]
        return np.array([-last.sum(), *last, 0.0])

    @cached_property
    def start_slope(self) -> np.ndarray:
        """Weights of the same in ``h`` times the slope of Radau's stage polynomial at ``τ = 0``."""
        at_nodes = np.linalg.inv(self.matrix)
        lagrange = [np.prod(others / (others - c)) for c, others in self._each_with_others]
        first = np.array(lagrange) @ at_nodes
        return np.array([-first.sum(), *first, 0.0])

    @property
    def _each_with_others(self) -> list[tuple[float, np.ndarray]]:
        return [(c, np.delete(self.nodes, j)) for j, c in enumerate(self.nodes)]

    @cached_property
    def _bend(self) -> Polynomial:
        return (Polynomial.fromroots(self.nodes) / np.prod(-self.nodes)).integ(lbnd=0.0)

    def bend(self, xp: Any, tau: Any) -> Any:
        """``B(τ)``, what a slope of one at ``τ = 0`` adds where those at the nodes are to stay.

        ``B(τ) = integral of prod_i (x - c_i) / (-c_i) from 0 to τ``. Of Radau ``B(1) = 0``.
        """
        return sum(b * tau**k for k, b in enumerate(self._bend.coef)) + xp.zeros_like(tau)


@lru_cache(maxsize=16)
def _nodes(kind: str, s: int) -> np.ndarray:
    """Zeros of Legendre polynomials on [0, 1]: ``P_s`` (Gauss) or ``P_s - P_(s-1)`` (Radau)."""
    series = np.zeros(s + 1)
    series[s] = 1.0
    if kind == "radau":
        series[s - 1] = -1.0
    roots = np.sort(legendre.legroots(series).real)
    slope = legendre.legder(series)
    for _ in range(3):
        roots = roots - legendre.legval(roots, series) / legendre.legval(roots, slope)
    nodes = (roots + 1.0) / 2.0
    if kind == "radau":
        nodes[-1] = 1.0
    return nodes
