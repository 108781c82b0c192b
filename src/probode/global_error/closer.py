"""Steps in which the transport sees too little, divided into pieces.

Three or four stages do not see what happens in a step in two cases:

- ``f`` has a *kink* (``abs``, ``max``, ``where``) that the solution crosses there. The quadrature
  over the step misses as much as the solver itself did, ``h²`` times the jump of ``d f/dt``. The
  nodes of Kronrod, which hold those of Gauss, show how much, along the interpolant ``P``::

      miss = |h sum_j n_j f(t_j, P_j)|

  where ``n`` are the differences of the two weights. For some places of a kink they cancel.
  Therefore they are combined, as the root of a sum of squares, with weights of the same size that
  are odd around the middle of the step and also vanish for smooth functions (null rules).

- The sweeps do not converge: ``h |λ| > 4.6``. Such steps, far beyond the limit of stability,
  amplify oscillations of the size of rounding.

Such steps are divided. ``P`` and its derivatives at the nodes between the pieces reproduce ``P``,
so the same transport runs along all nodes as if they were the solver's. What is missed in spite of
that is a number to judge by, in units of the standard deviations ``s``::

    kinks = sqrt(sum_n mean_i (miss_ni / s_ni)²)
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from probode.global_error import interpolant
from probode.global_error.between import Evaluator
from probode.global_error.schemes import Scheme
from probode.global_error.sweeps import Sweeps
from probode.global_error.transport import PATIENCE, Transported, empty
from probode.programs.switches import MARGIN

_PIECES, _ROUNDS = 8, 2
"""Number of pieces of a step that needs dividing, and how often pieces are divided again. A kink
lies in one piece; each division shrinks ``h²`` there to a 64th."""


class Care(NamedTuple):
    """Thoroughness of the search for kinks."""

    share: float = 1.0
    """Part of the steps that are searched: those over which the error changes most."""
    missed: float = 0.01
    """Part of a standard deviation that may be missed in a step."""


IN_PYTHON = Care(0.05, 0.05)
"""Thoroughness for an ``f`` that Python evaluates: whether it has kinks is not known."""
_STUCK = 0.05
"""Part of the error that the last sweep may change if the sweeps have converged."""
_MOST = 4
"""Largest number of pieces that are added, per step of the solver."""
_FEW = 200
"""Number of pieces that may be added to any solve, however short."""
_LEAST = 6
"""Smallest number of steps that are searched."""
_BLOCK = 1 << 20
"""Numbers in the states at which ``f`` is evaluated at once."""
_ROUNDING, _TINY = 64.0 * float(np.finfo(float).eps), 1e-300
"""Smallest standard deviation that is trusted: a part of the value, and a number."""

Carry = Callable[[np.ndarray, np.ndarray], Transported]
"""The transport, from times and means at the nodes."""
Deviations = Callable[[Transported], np.ndarray]
"""Standard deviations at the ends of the steps, ``(N, d)``, from a transport."""


def look_closer(
    scheme: Scheme,
    carry: Carry,
    f: Evaluator | None,
    t: np.ndarray,
    means: np.ndarray,
    moved: Transported,
    deviations: Deviations,
    care: Care,
) -> tuple[Transported, float, int]:
    """Return the transport with steps divided where needed, ``kinks``, and evaluations of ``f``.

    ``f`` is ``None`` if it has no kinks. ``carry`` may stop early: then nothing changes.
    """
    steps, spent = len(t) - 1, 0
    pieces, every = np.ones(steps, int), np.arange(steps)
    missed = np.zeros_like(moved.error)
    if f is not None:
        some = _changing_most(moved, deviations, care.share)
        missed[some] = missing(f, scheme.k, t, means, some, 1)
        spent += len(some) * LOOKS
    stuck = _stuck(scheme, moved)
    room = _FEW + _MOST * steps
    for _ in range(_ROUNDS):
        need = np.where(stuck, np.inf, 0.0)
        if f is not None:
            need = np.maximum(need, np.max(missed / deviations(moved), axis=1) / care.missed)
        worst = every[need > 1.0]
        worst = worst[np.argsort(-need[worst], kind="stable")]
        added = np.cumsum(pieces[worst] * (_PIECES - 1))
        worst = worst[added <= room - np.sum(pieces - 1)]
        if not len(worst):
            break
        finer = pieces.copy()
        finer[worst] *= _PIECES
        further = carry(*divided(scheme.k, t, means, finer))
        if further.error.shape[0] < np.sum(finer) or not np.all(np.isfinite(further.error)):
            break
        pieces = finer
        starts = np.cumsum(pieces) - pieces
        stuck = np.logical_or.reduceat(_stuck(scheme, further), starts)
        spent += _spent(scheme, moved)
        moved = joined(scheme, further, pieces)
        if f is not None:
            for count in np.unique(pieces[worst]):
                some = worst[pieces[worst] == count]
                missed[some] = missing(f, scheme.k, t, means, some, int(count))
                spent += len(some) * int(count) * LOOKS
    left = 0.0 if f is None else in_bars(missed, deviations(moved))
    return moved, left, spent


def _changing_most(moved: Transported, deviations: Deviations, share: float) -> np.ndarray:
    """Find the steps over which the error changes most, in units of the standard deviations."""
    count = len(moved.error)
    if share == 1.0:
        return np.arange(count)
    change = np.max(np.abs(moved.first) / deviations(moved), axis=1)
    few = min(count, max(_LEAST, int(share * count)))
    return np.sort(np.argsort(change)[count - few :])


def no_smaller(std: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return standard deviations at the ends of steps, ``(N, d)``, at least rounding of ``y``.

    ``y`` are the values at all nodes.
    """
    size = np.abs(y)
    return np.maximum(std, _ROUNDING * np.maximum(size[1:], size[:-1]) + _TINY)


def in_bars(missed: np.ndarray, std: np.ndarray) -> float:
    """Return ``kinks``: the part missed in all steps together, in standard deviations."""
    return float(np.sqrt(np.sum(np.mean((missed / std) ** 2, axis=1))))


def missing(
    f: Evaluator,
    k: int,
    t: np.ndarray,
    means: np.ndarray,
    which: np.ndarray,
    pieces: int,
) -> np.ndarray:
    """Return ``miss`` in the steps ``which``, each divided into ``pieces``: rows ``(n, d)``.

    Zero in steps across switches in time, which are as short as rounding leaves these times unsure.
    """
    across = 4.0 * MARGIN * max(abs(t[0]), abs(t[-1]))
    nodes, weights = null_rules()
    d, count = means.shape[-1], len(nodes) * pieces
    tau = ((np.arange(pieces)[:, None] + nodes) / pieces).reshape(-1)
    rows = interpolant.value_rows(np, k, tau)
    found = np.empty((len(which), d))
    size = max(1, _BLOCK // (count * d))
    for begin in range(0, len(which), size):
        n = which[begin : begin + size]
        h = t[n + 1] - t[n]
        w = interpolant.data(np, k, means[n], means[n + 1], h)
        states = means[n, None, 0] + np.einsum("cw,nwd->ncd", rows, w)
        times = t[n, None] + h[:, None] * tau
        with np.errstate(all="ignore"):
            slopes = f(times.reshape(-1), states.reshape(-1, d))
            parts = slopes.reshape(len(n), pieces, len(nodes), d)
            rules = np.einsum("rc,npcd->rnpd", weights, parts)
            sums = np.hypot(*rules).sum(axis=1)
            length = np.where(np.abs(h) > across, np.abs(h), 0.0)
            found[begin : begin + size] = length[:, None] / pieces * sums
    return np.where(np.isfinite(found), found, 0.0)  # what is not, the solver would have rejected


_KRONROD = (
    [0.0, 0.339981043584856, 0.640286217496310, 0.861136311594053, 0.976560250737573],
    [
        *(0.346442981890136, 0.326949189601452, 0.266798340452284, 0.170053605335723),
        0.062977373665473,
    ],
)
"""Nodes on [0, 1] and weights of the extension of Gauss with four nodes on [-1, 1]."""
LOOKS = 9
"""Evaluations of ``f`` in a step, or in a piece of one, that show what is missed there."""


@lru_cache
def null_rules() -> tuple[np.ndarray, np.ndarray]:
    """Nodes on [0, 1], and the weights of both null rules in its rows."""
    half, weights = map(np.array, _KRONROD)
    nodes = np.concatenate([-half[:0:-1], half])
    even = np.concatenate([weights[:0:-1], weights])
    gauss, of_gauss = np.polynomial.legendre.leggauss(4)
    even[np.argmin(np.abs(nodes[:, None] - gauss), axis=0)] -= of_gauss
    # Odd weights that annihilate τ, τ³ and τ⁵.
    odd = np.linalg.svd(half[1:] ** np.array([[1], [3], [5]]))[2][-1]
    odd = np.concatenate([-odd[::-1], [0.0], odd])
    odd *= np.linalg.norm(even) / np.linalg.norm(odd)
    return 0.5 + 0.5 * nodes, 0.5 * np.stack([even, odd])


def _stuck(scheme: Scheme, moved: Transported) -> np.ndarray:
    """Whether the sweeps over a step have not converged.

    An error near rounding level changes only by rounding after the first few sweeps.
    """
    if not isinstance(scheme, Sweeps):
        return np.zeros(moved.error.shape[0], bool)
    tried = moved.corrections >= PATIENCE - scheme.sweeps
    sizes = [np.sqrt(np.sum(x**2, axis=-1)) for x in (moved.second, moved.error)]
    return tried & (sizes[0] > _STUCK * sizes[1])


def divided(
    k: int, t: np.ndarray, means: np.ndarray, pieces: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the nodes of all pieces of all steps: times, and the derivatives of ``P`` there."""
    ends = np.concatenate([[0], np.cumsum(pieces)])
    times, values = np.empty(ends[-1] + 1), np.empty((ends[-1] + 1, k + 1, means.shape[-1]))
    times[ends], values[ends] = t, means[:, : k + 1]
    for count in np.unique(pieces[pieces > 1]):
        n = np.nonzero(pieces == count)[0]
        h = t[n + 1] - t[n]
        at = ends[n][:, None] + np.arange(1, count)
        times[at] = t[n, None] + h[:, None] * (np.arange(1, count) / count)
        values[at] = interpolant.inside(k, h, means[n], means[n + 1], int(count))
    return times, values


def joined(scheme: Scheme, moved: Transported, pieces: np.ndarray) -> Transported:
    """Combine a transport along the pieces into one along the steps.

    The evaluations of the pieces count as corrections.
    """
    d, s, ends = moved.error.shape[-1], scheme.collocation.s, np.cumsum(pieces)
    begins = ends - pieces
    found: Any = empty(len(pieces), s, d)
    before = np.concatenate([np.zeros((1, d)), moved.error[:-1]])
    for count in np.unique(pieces):
        n = np.nonzero(pieces == count)[0]
        at = begins[n][:, None] + np.arange(count)
        found.first[n] = np.sum(moved.first[at], axis=1)
        found.second[n] = np.max(np.abs(moved.second[at]), axis=1)
        of_pieces = (count - 1) * (scheme.f_per_step // s)
        found.corrections[n] = np.sum(moved.corrections[at], axis=1) + of_pieces
        found.repeats[n] = np.sum(moved.repeats[at], axis=1)
        if count == 1:
            found.stages[n] = moved.stages[at[:, 0]]
            continue
        for i, node in enumerate(scheme.collocation.nodes):
            j = min(int(node * count), count - 1)
            rows = scheme.collocation.dense_rows(np, np.asarray(node * count - j))
            one = at[:, j]
            known: Any = [before[one, None], moved.stages[one], moved.error[one, None]]
            found.stages[n, i] = np.einsum("w,nwd->nd", rows, np.concatenate(known, axis=1))
    return found._replace(error=moved.error[ends - 1])


def _spent(scheme: Scheme, moved: Transported) -> int:
    """Count the evaluations of ``f`` in a transport that is repeated."""
    again = int(np.sum(moved.corrections) + np.sum(moved.repeats))
    return len(moved.error) * scheme.f_per_step + scheme.collocation.s * again
