"""A solution with jumps: the posteriors of its pieces as one.

Each piece begins with what a jump has made of the end of the one before: of its mean, of the
model's covariance and of the estimated error (by the Jacobian ``D`` of the jump)::

    m⁺ = g(m⁻),      Σ⁺ = D Σ⁻ Dᵀ,      e⁺ = D e⁻

Within a piece nothing is different from any other solve. No piece is smoothed by what comes after
the next jump.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np

from probode.base.precision import double_precision
from probode.base.status import Status
from probode.global_error.diagnosis import LIMITS, Diagnosis
from probode.global_error.result import Calibration
from probode.posterior.again import PART, Compared, compared, lost_repeat
from probode.posterior.outcome import Problem, Stats
from probode.posterior.paths import NodePath
from probode.posterior.pieces_views import PieceViews
from probode.posterior.posterior import Posterior

_COUNTS = (
    *("steps", "accepted", "rejected", "f_evaluations", "jacobian_evaluations"),
    *("calibration_f_evaluations", "calibration_jacobian_evaluations"),
)


@dataclass(frozen=True)
class Values:
    """Gaussians at several times, from several pieces."""

    mean: np.ndarray
    std: np.ndarray
    covariance: Callable[[], np.ndarray]

    @property
    def cov(self) -> np.ndarray:
        """Covariances, one for each time."""
        return self.covariance()


@dataclass(frozen=True, repr=False)
class PiecewisePosterior(PieceViews):
    """Posterior over a solution with jumps, in pieces between them.

    ``t`` has the time of a jump twice: ``mean`` and ``std`` are those before it, then those after
    it. At the time of a jump ``posterior(t)`` is the value after it. What it does not have of a
    :class:`Posterior` (``condition``) its ``pieces`` have.

    Examples
    --------
    >>> import probode
    >>> result = probode.solve_ivp(
    ...     lambda t, y: -y, (0, 2), [1.0], jumps=[(1.0, lambda t, y: y + 1)], dense_output=True
    ... )
    >>> len(result.posterior.pieces)
    2
    >>> round(float(result.posterior(1.0).mean[0]), 3)  # after the jump
    1.368
    """

    pieces: tuple[Posterior, ...]
    jacobians: tuple[np.ndarray, ...]
    """``D`` of the jumps between the pieces, in real form; of events, the saltation matrix.

    Of SparseEK1, which has no samples that would go through them, empty.
    """
    ended: Status | None = None
    """How the solve ended, if not as its last piece did."""
    note: str = ""
    """Why, in words."""
    whole: Problem | None = None
    """What solves all of it again; the vector fields are those of the pieces."""

    @property
    def first(self) -> Posterior:
        """The piece before the first jump."""
        return self.pieces[0]

    @property
    def last(self) -> Posterior:
        """The piece in which it ended."""
        return self.pieces[-1]

    def __getattr__(self, name: str) -> Any:
        if name in ("solver", "method", "shape", "is_complex", "tolerances", "engine", "given"):
            return getattr(self.pieces[0], name)
        if name in ("status", "status_code", "success", "problem"):
            if self.ended is not None and name != "problem":
                ended = Status(self.ended)
                return {"status": ended, "success": False}.get(name, ended.value)
            return getattr(self.pieces[-1], name)
        raise AttributeError(
            f"a posterior with jumps has no attribute {name!r}; its pieces may: see .pieces."
        )

    @property
    def jump_times(self) -> np.ndarray:
        """When the pieces begin, but for the first."""
        return np.array([float(piece.t[0]) for piece in self.pieces[1:]])

    @property
    def t(self) -> np.ndarray:
        """Times of the steps of all pieces, shape ``(N,)``; those of jumps twice."""
        return np.concatenate([np.asarray(piece.t) for piece in self.pieces])

    @property
    def step_sizes(self) -> np.ndarray:
        """Lengths of the accepted steps."""
        return np.concatenate([np.asarray(piece.step_sizes) for piece in self.pieces])

    @property
    def mean(self) -> np.ndarray:
        """Posterior means at the times ``t``, shape ``(N, *shape)``."""
        return self.derivative(k=0).mean

    @property
    def std(self) -> np.ndarray:
        """Posterior standard deviations at the times ``t``, shape ``(N, *shape)``."""
        return self.derivative(k=0).std

    @property
    def cov(self) -> np.ndarray:
        """Posterior covariances at the times ``t``, shape ``(N, d, d)``."""
        return self.derivative(k=0).cov

    def __call__(self, t: Any) -> Values:
        """The posterior at any time or times; at that of a jump, the value after it."""
        return self.derivative(t, 0)

    def derivative(self, t: Any = None, k: int = 1) -> Values:
        """The ``k``-th derivative of the solution, as :meth:`Posterior.derivative`."""
        return self._gathered(t, lambda piece, times: piece.derivative(times, k))

    def state(self, t: Any = None) -> Values:
        """What a start needs, as :meth:`Posterior.state`."""
        return self._gathered(t, lambda piece, times: piece.state(times))

    def global_error(self, t: Any = None, k: int = 0) -> np.ndarray:
        """Signed estimate of ``mean - solution``, as :meth:`Posterior.global_error`."""
        return self._put_together(t, lambda piece, times: piece.global_error(times, k))

    def corrected(self, t: Any = None, k: int = 0) -> np.ndarray:
        """The mean with the estimated error taken off, as :meth:`Posterior.corrected`."""
        return self._put_together(t, lambda piece, times: piece.corrected(times, k))

    def sample(self, n: int = 1, *, seed: Any = 0, t: Any = None, k: int = 0) -> np.ndarray:
        """Joint samples, as :meth:`Posterior.sample`: they go through the jumps.

        The last piece is drawn first. The ends of those before are drawn given what follows: their
        deviations ``δ⁻`` are such that ``D δ⁻`` are those after the jump. Where a piece begins
        exactly for the model, there is nothing to go through.
        """
        if t is None:
            return np.concatenate(self.drawn(n, seed, None, k), axis=1)
        each = np.asarray(t, float).reshape(-1)
        piece_of = self._piece_of(each)
        times = [each[piece_of == i] for i in range(len(self.pieces))]
        found = np.empty((n, len(each), *self.shape))
        for i, rows in enumerate(self.drawn(n, seed, times, k)):
            found[:, piece_of == i] = rows
        return found.reshape(n, *np.shape(t), *self.shape)

    def drawn(self, n: int, seed: Any, times: Any, k: int) -> list[np.ndarray]:
        """Such samples of each piece: at its steps, or at the ``times`` that are given for it.

        Between times that are too close to each other rounding adds up, from one piece to the one
        before it. So no more than a few are drawn in a step. What others differ from the mean by is
        interpolated: between so many, a path of the prior is as smooth as a polynomial.
        """
        key = jax.random.key(seed) if isinstance(seed, int | np.integer) else seed
        found: list[Any] = []
        after: np.ndarray | None = None
        for i in reversed(range(len(self.pieces))):
            piece, key = self.pieces[i], jax.random.fold_in(key, i)
            asked = None if times is None else np.asarray(times[i], float)
            few = None if asked is None else _few_in_a_step(np.asarray(piece.t), asked)
            own = None if few is None else np.append(few, piece.t[0])
            end = None
            if after is not None and np.any(after):
                key, subkey = jax.random.split(key)
                noise = np.asarray(jax.random.normal(subkey, after.shape, np.float32), float)
                plain: Any = replace(piece, calibration=None).state(piece.t[-1:])
                end = deviations_before(self.jacobians[i], plain.cov[0], after, noise)
            rows, after = piece.sample_given_end(n, key, own, k, end)
            if asked is not None and few is not None:
                rows = rows[:, :-1]
                if few is not asked:
                    off = rows - np.asarray(piece.derivative(few, k).mean)
                    between = _interpolated(np.asarray(piece.t), few, off, asked)
                    rows = between + np.asarray(piece.derivative(asked, k).mean)
            found.append(rows)
        return found[::-1]

    def diagnose(self, again: bool = False) -> Diagnosis:
        """Whether to trust the error estimate: the worst that the pieces say.

        The range that an error is measured by is that of the whole solution: a piece may be short.
        With ``again`` the whole problem is solved again, as by :meth:`Posterior.diagnose`, and
        compared where both are in the same piece.
        """
        found = self._diagnosed()
        return self._solved_again().onto(found) if again else found

    def _solved_again(self) -> Compared:
        """Compared with a solve at a tenth of the tolerance."""
        if self.whole is None or self.whole.repeat is None:
            raise ValueError(lost_repeat((self.whole or Problem()).lost))
        if not self.success:
            raise ValueError(
                "diagnose(again=True) is for solves that come to their end, and this one did not "
                f"({self.message}): solve to an earlier time."
            )
        second = self.whole.repeat(self, PART)
        both = zip(self.pieces, second.pieces, strict=False)
        found = [compared(one, other, inside=True) for one, other in both]
        total, count = sum(one.total for one in found), sum(one.numbers for one in found)
        early = len(second.pieces) < len(self.pieces) or not second.success
        return Compared(total, count, float(second.t[-1]) if early else None)

    def _diagnosed(self) -> Diagnosis:
        found = [piece.diagnose() for piece in self.pieces]
        flags = dict.fromkeys(flag for one in found for flag in one.flags if flag != "size")
        names = dict.fromkeys(name for one in found for name in one.numbers)
        worst = {name: max(one.numbers.get(name, 0.0) for one in found) for name in names}
        largest = float("nan")
        if "size" in worst:
            worst["size"] = largest = self._relative_error()
            flags |= {} if largest <= LIMITS["size"] else {"size": None}
        notes = tuple(dict.fromkeys(note for one in found for note in one.notes))
        return Diagnosis(tuple(flags), worst, largest, found[-1].mode, notes)

    def _relative_error(self) -> float:
        """The largest estimated error, relative to the range of its component."""
        mean = np.concatenate(
            [piece.state().mean.reshape(len(piece.t), -1) for piece in self.pieces]
        )
        error = np.concatenate([np.asarray(made.error) for made in self._calibrations])
        extent, largest = np.ptp(mean, axis=0), np.max(np.abs(error), axis=0, initial=0.0)
        return float(np.max(largest / np.where(extent > 0.0, extent, np.inf), initial=0.0))

    def calibrate(self, mode: str = "defect") -> "PiecewisePosterior":
        """The same with standard deviations of the size of the global error, piece after piece."""
        made: list[Posterior] = []
        for i, piece in enumerate(self.pieces):
            begins = None if i == 0 else self.jacobians[i - 1] @ _end_of(made[-1])
            made.append(replace(piece, begins=begins).calibrate(mode))
        return replace(self, pieces=tuple(made))

    @property
    def calibration(self) -> Any:
        """That of the last piece; ``None``: the standard deviations are the model's."""
        return self.last.calibration

    @property
    def _calibrations(self) -> list[Calibration]:
        return [piece.calibration for piece in self.pieces if piece.calibration is not None]

    @property
    def log_evidence(self) -> Any:
        """Logarithm of the evidence: the sum over the pieces."""
        return sum(piece.log_evidence for piece in self.pieces)

    @property
    def stats(self) -> Stats:
        """What all pieces cost."""
        total: dict[str, Any] = {
            name: sum(int(getattr(piece.stats, name)) for piece in self.pieces) for name in _COUNTS
        }
        return replace(self.last.stats, **total)

    @property
    def message(self) -> str:
        """How the solve ended, in words."""
        if self.ended is None:
            return self.last.message
        return " ".join(filter(None, [Status(self.ended).message, self.note]))

    def __repr__(self) -> str:
        lines = [f"Posterior {self._what()}", f"  {self._extent()}", f"  {self.message}"]
        if self.calibration is not None:
            lines += [f"  {line}" for line in self.diagnose().verdict.splitlines()]
        return "\n".join(lines)

    __str__ = __repr__

    def _repr_html_(self) -> str:
        from probode.posterior import display

        return display.html_of_pieces(self, self._what(), self._extent())

    def _what(self) -> str:
        count = len(self.pieces) - 1
        return f"of {self.solver.name} with {count} jump{'s' if count != 1 else ''}"

    def _extent(self) -> str:
        start, end = float(self.t[0]), float(self.t[-1])
        return f"from t = {start:g} to {end:g}, {int(self.stats.accepted)} steps"

    # What the pieces say --------------------------------------------------------------------------

    def _cut(self, t: Any) -> list[tuple[Posterior, Any]]:
        """Pieces, and which of the times (all of their own) belong to each."""
        if t is None:
            return [(piece, None) for piece in self.pieces]
        times = np.atleast_1d(np.asarray(t, float))
        piece_of = self._piece_of(times)
        if np.any(np.diff(piece_of) < 0):
            raise ValueError("times of a table must be in the order of integration.")
        return [(self.pieces[i], times[piece_of == i]) for i in np.unique(piece_of)]

    def _piece_of(self, times: np.ndarray) -> np.ndarray:
        """The piece that each time belongs to: at a jump the one that it begins."""
        sign = -1.0 if self.t[-1] < self.t[0] else 1.0
        return np.searchsorted(sign * self.jump_times, sign * times, side="right")

    def _put_together(self, t: Any, of: Callable[[Posterior, Any], Any]) -> np.ndarray:
        if t is None:
            return np.concatenate([np.asarray(of(piece, None)) for piece in self.pieces])
        times = np.asarray(t, float)
        piece_of = self._piece_of(times.reshape(-1))
        found: np.ndarray | None = None
        for i in np.unique(piece_of):
            here = piece_of == i
            rows = np.asarray(of(self.pieces[i], times.reshape(-1)[here]))
            if found is None:
                found = np.empty((len(piece_of), *rows.shape[1:]))
            found[here] = rows
        if found is None:
            found = np.asarray(of(self.first, times.reshape(-1)))
        return found.reshape(*times.shape, *found.shape[1:])

    def _gathered(self, t: Any, of: Callable[[Posterior, Any], Any]) -> Values:
        parts: dict[tuple[int, int], Any] = {}

        def remembered(piece: Posterior, times: Any) -> Any:
            key = (id(piece), 0)
            if key not in parts:
                parts[key] = of(piece, times)
            return parts[key]

        with double_precision():
            mean = self._put_together(t, lambda piece, times: remembered(piece, times).mean)
            std = self._put_together(t, lambda piece, times: remembered(piece, times).std)
        return Values(
            mean,
            std,
            lambda: self._put_together(t, lambda piece, times: remembered(piece, times).cov),
        )


def _end_of(piece: Posterior) -> np.ndarray:
    """The estimated error of the last state of a piece."""
    assert piece.calibration is not None
    return np.asarray(piece.calibration.error[-1])


def deviations_before(
    matrix: np.ndarray, cov: np.ndarray, after: np.ndarray, noise: np.ndarray
) -> np.ndarray:
    """Draws ``δ ~ N(0, Σ)`` given that ``D δ`` is what it is ``after`` a jump, row by row.

    ``z + Σ Dᵀ (D Σ Dᵀ)⁻¹ (after - D z)`` with ``z ~ N(0, Σ)``, made of standard normal ``noise``.
    """
    std = np.sqrt(np.diag(cov))
    std[std == 0.0] = 1.0
    cov, matrix = cov / std / std[:, None], matrix * std
    values, vectors = np.linalg.eigh(cov)
    drawn = noise @ (vectors * np.sqrt(np.maximum(values, 0.0))).T
    size = np.sqrt(np.diag(matrix @ cov @ matrix.T))
    size[size == 0.0] = 1.0
    matrix, after = matrix / size[:, None], after / size
    inverse = np.linalg.pinv(matrix @ cov @ matrix.T, rcond=1e-10)
    found: np.ndarray = drawn + (after - drawn @ matrix.T) @ inverse @ matrix @ cov
    return found * std


def columns_at_end(piece: Posterior) -> list[np.ndarray]:
    """Columns of a factor of the last state's covariance, for each derivative that a start has."""
    assert isinstance(piece.path, NodePath)
    method = piece.method
    found = [np.asarray(piece.path.select(method, j)[1][-1]) for j in range(method.equation.order)]
    axis = -2 if method.structure.name == "dense" else -1  # rows of zeros are left out
    most = max(column.shape[axis] for column in found)
    return [_filled(column, axis, most) for column in found]


def _filled(column: np.ndarray, axis: int, rows: int) -> np.ndarray:
    missing = [(0, 0)] * column.ndim
    missing[axis] = (0, rows - column.shape[axis])
    return np.pad(column, missing)


_IN_A_STEP = 12
"""Times in a step at which samples are drawn; what lies between is interpolated."""


def _few_in_a_step(nodes: np.ndarray, times: np.ndarray) -> np.ndarray:
    """``times``, if few of them are in each step; else the nodes, and a few in each step."""
    sign = -1.0 if nodes[-1] < nodes[0] else 1.0
    step = np.searchsorted(sign * nodes, sign * times)
    if len(times) == 0 or np.max(np.bincount(step)) <= _IN_A_STEP:
        return times
    parts = np.arange(_IN_A_STEP + 1) / (_IN_A_STEP + 1)
    inside = nodes[:-1, None] + np.diff(nodes)[:, None] * parts
    return np.append(inside[np.abs(np.diff(nodes)) > 1e3 * np.spacing(np.abs(nodes[1:]))], nodes)


def _interpolated(nodes: np.ndarray, at: np.ndarray, rows: np.ndarray, t: np.ndarray) -> np.ndarray:
    """Rows ``(n, len(at), ...)`` at other times, by cubic splines within each step."""
    from scipy.interpolate import CubicSpline

    sign = -1.0 if nodes[-1] < nodes[0] else 1.0
    nodes, at, t = sign * nodes, sign * at, sign * t
    order = np.argsort(at, kind="stable")
    at, rows = at[order], rows[:, order]
    step = np.clip(np.searchsorted(nodes, t) - 1, 0, len(nodes) - 2)
    found = np.empty((len(rows), len(t), *rows.shape[2:]))
    for i in np.unique(step):
        low, high = nodes[i], nodes[i + 1]
        x, first = np.unique(at[(at >= low) & (at <= high)], return_index=True)
        values = rows[:, np.flatnonzero((at >= low) & (at <= high))[first]]
        mine = step == i
        if len(x) > 3:
            found[:, mine] = CubicSpline(x, values, axis=1)(t[mine])
        else:  # across a switch
            found[:, mine] = values[:, np.argmin(np.abs(x[:, None] - t[mine]), axis=0)]
    return found


def holds(structure: Any, matrix: np.ndarray) -> bool:
    """Whether a covariance ``D Σ Dᵀ`` has the structure of ``Σ``.

    Where components are independent in the model, ``D`` must not mix them. If it does, bounds on
    the variances grow by ``|D|`` each time, however small the products of such matrices are.
    """
    return structure.name == "dense" or bool(
        np.allclose(matrix, np.eye(len(matrix)), rtol=0.0, atol=1e-6)
    )


def through(structure: Any, columns: list[np.ndarray], jacobian: np.ndarray) -> list[np.ndarray]:
    """Columns of ``D Σ Dᵀ`` from those of ``Σ``, as far as the structure can hold it.

    Where components are independent in the model, only their variances are kept.
    """
    k, d = len(columns), structure.d
    if structure.name == "dense":
        whole = np.concatenate(columns, axis=-1) @ jacobian.T
        return [whole[:, j * d : (j + 1) * d] for j in range(k)]
    if holds(structure, jacobian):
        return columns
    std = np.concatenate([structure.std(column) for column in columns])
    moved = np.sqrt(jacobian**2 @ std**2).reshape(k, d)
    made = []
    for j, column in enumerate(columns):
        new = np.zeros((*column.shape[:-1], max(column.shape[-1], k)))
        new[..., j] = moved[j] if new.ndim == 2 else np.sqrt(np.mean(moved[j] ** 2))
        made.append(new)
    return made
