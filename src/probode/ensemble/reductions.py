"""Statistics over the members of an ensemble, gathered chunk by chunk: nothing else is kept.

A :class:`Reduction` describes one. It is updated with the members of a chunk, merged with another
of its kind that has seen other members, and gives a result at the end; its size does not depend on
the number of members. Members that failed are left out, at all of their times: all entries of a
result are of the same members.
"""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from probode.ensemble.sketch import Sketch

__all__ = [
    "Chunk",
    "Function",
    "Histogram",
    "HistogramCounts",
    "Max",
    "Mean",
    "Min",
    "QuantileValues",
    "Quantiles",
    "Reduction",
    "Variance",
]


@dataclass(frozen=True, eq=False)
class Chunk:
    """Members that a reduction is handed: those of a chunk that reached their end.

    Arrays have the members in front; ``shape`` below is that of ``y0``.
    """

    numbers: np.ndarray
    """Which members of the ensemble they are, in C order of its dimensions."""
    t: np.ndarray
    """Save points, ``(B, T)``."""
    mean: np.ndarray
    """Posterior means, ``(B, T, *shape)``."""
    std: np.ndarray
    """Posterior standard deviations, ``(B, T, *shape)``."""
    cov: np.ndarray | None
    """Posterior covariances ``(B, T, d, d)``, if they were asked for."""
    args: tuple[Any, ...]
    """Parameters: those that vary have the members in front, the others are as they were given."""

    def __len__(self) -> int:
        return len(self.numbers)


class Reduction:
    """A statistic over the members of an ensemble; inherit from it for one of your own.

    ``name`` is the one it has in the result, unless another is given.
    """

    name = "reduction"

    def update(self, chunk: Chunk) -> None:
        """Take in the members of a chunk."""
        raise NotImplementedError

    def merge(self, other: Any) -> None:
        """Take in the members that ``other``, of the same kind and settings, has seen."""
        raise NotImplementedError

    def result(self) -> Any:
        """The statistic over all members seen so far."""
        raise NotImplementedError

    def fresh(self) -> Any:
        """One like this that has seen no members."""
        return deepcopy(self)


def _blank(shape: tuple[int, ...]) -> np.ndarray:
    return np.full(shape, np.nan)


def _read_of(of: str) -> str:
    if of not in ("mean", "std"):
        raise ValueError(f"of must be 'mean' or 'std' (of each member), got {of!r}.")
    return of


@dataclass
class _Moments:
    """Number, mean and sum of squared distances from it; merged without cancellation."""

    count: int = 0
    mean: Any = 0.0
    squares: Any = 0.0

    def add(self, values: np.ndarray) -> None:
        mean = values.mean(axis=0)
        # The mean is rounded: what that changes is corrected for.
        away = values - mean
        mean = mean + away.mean(axis=0)
        self.join(_Moments(len(values), mean, np.square(values - mean).sum(axis=0)))

    def join(self, other: "_Moments") -> None:
        if other.count == 0:
            return
        if self.count == 0:
            self.count, self.mean, self.squares = other.count, other.mean, other.squares
            return
        total = self.count + other.count
        away = other.mean - self.mean
        self.squares = (
            self.squares + other.squares + np.square(away) * (self.count * other.count / total)
        )
        self.mean = self.mean + away * (other.count / total)
        self.count = total


@dataclass
class Mean(Reduction):
    """The mean over the members, ``(T, *shape)``; to rounding that of NumPy.

    Parameters
    ----------
    of
        ``"mean"``: of the posterior means of the members; ``"std"``: of their standard deviations.
    """

    of: str = "mean"
    name = "mean"
    _seen: _Moments = field(default_factory=_Moments, init=False, repr=False)

    def __post_init__(self) -> None:
        _read_of(self.of)

    def update(self, chunk: Chunk) -> None:
        """Take in the members of a chunk."""
        self._seen.add(getattr(chunk, self.of))

    def merge(self, other: "Mean") -> None:
        """Take in what another has seen."""
        self._seen.join(other._seen)

    def result(self) -> Any:
        """The mean; ``None`` before any member."""
        return self._seen.mean if self._seen.count else None


@dataclass
class Variance(Reduction):
    """The variance over the members, ``(T, *shape)``; to rounding that of NumPy.

    Parameters
    ----------
    ddof
        What is taken from the number of members in the divisor: 1 for the unbiased estimate.
    of
        As in :class:`Mean`.
    """

    ddof: int = 1
    of: str = "mean"
    name = "variance"
    _seen: _Moments = field(default_factory=_Moments, init=False, repr=False)

    def __post_init__(self) -> None:
        _read_of(self.of)

    def update(self, chunk: Chunk) -> None:
        """Take in the members of a chunk."""
        self._seen.add(getattr(chunk, self.of))

    def merge(self, other: "Variance") -> None:
        """Take in what another has seen."""
        self._seen.join(other._seen)

    def result(self) -> Any:
        """The variance; NaN with too few members, ``None`` before any."""
        seen = self._seen
        if seen.count == 0:
            return None
        left = seen.count - self.ddof
        return seen.squares / left if left > 0 else _blank(np.shape(seen.squares))


@dataclass
class _Extreme(Reduction):
    of: str = "mean"
    _value: Any = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        _read_of(self.of)

    def _most(self, values: Any) -> np.ndarray:
        raise NotImplementedError

    def update(self, chunk: Chunk) -> None:
        """Take in the members of a chunk."""
        self._take(self._most(getattr(chunk, self.of)))

    def merge(self, other: Any) -> None:
        """Take in what another has seen."""
        if other._value is not None:
            self._take(other._value)

    def _take(self, value: np.ndarray) -> None:
        self._value = value if self._value is None else self._most(np.stack([self._value, value]))

    def result(self) -> Any:
        """The value; ``None`` before any member."""
        return self._value


@dataclass
class Min(_Extreme):
    """The smallest value over the members, ``(T, *shape)``. ``of``: as in :class:`Mean`."""

    name = "min"

    def _most(self, values: Any) -> np.ndarray:
        return np.min(values, axis=0)


@dataclass
class Max(_Extreme):
    """The largest value over the members, ``(T, *shape)``. ``of``: as in :class:`Mean`."""

    name = "max"

    def _most(self, values: Any) -> np.ndarray:
        return np.max(values, axis=0)


@dataclass(frozen=True, eq=False)
class QuantileValues:
    """Quantiles over the members, and how far their ranks may be off."""

    q: np.ndarray
    values: np.ndarray
    """``(len(q), T, *shape)``."""
    rank_error: float
    """Bound, as a part of the members: ``values[i]`` is a quantile between ``q[i] - rank_error``
    and ``q[i] + rank_error``. Zero if all values were kept: then they are NumPy's."""


@dataclass
class Quantiles(Reduction):
    """Quantiles over the members, ``(len(q), T, *shape)``.

    Exact (those of ``numpy.quantile``) for up to ``2 size`` members. Of more a summary is kept, by
    sorting and taking every other value; its quantiles are values of members, whose rank is off by
    less than ``log2(members / size) / (2 size)`` of the members (``rank_error`` in the result is
    the bound for what was done). Up to ``2 size`` values are kept for each doubling of the members.

    Parameters
    ----------
    q
        Numbers between 0 and 1.
    size
        Half of the values that are sorted at once, an even number.
    of
        As in :class:`Mean`.
    """

    q: Any
    size: int = 2048
    of: str = "mean"
    name = "quantiles"
    _sketch: Sketch = field(init=False, repr=False)

    def __post_init__(self) -> None:
        _read_of(self.of)
        self.q = np.atleast_1d(np.asarray(self.q, float))
        if self.q.ndim != 1 or not np.all((self.q >= 0.0) & (self.q <= 1.0)):
            raise ValueError(f"q must be numbers between 0 and 1, got {self.q}.")
        if self.size < 2 or self.size % 2:
            raise ValueError(f"size must be an even number of values, got {self.size!r}.")
        self._sketch = Sketch(int(self.size))

    def update(self, chunk: Chunk) -> None:
        """Take in the members of a chunk."""
        self._sketch.add(getattr(chunk, self.of))

    def merge(self, other: "Quantiles") -> None:
        """Take in what another has seen."""
        self._sketch.join(other._sketch)

    def result(self) -> QuantileValues | None:
        """The quantiles; ``None`` before any member."""
        sketch = self._sketch
        if sketch.count == 0:
            return None
        return QuantileValues(self.q, sketch.quantiles(self.q), sketch.rank_error)


@dataclass(frozen=True, eq=False)
class HistogramCounts:
    """How many members lie in each bin, and how many outside of all."""

    edges: np.ndarray
    counts: np.ndarray
    """``(T, *shape, bins)``."""
    below: np.ndarray
    """``(T, *shape)``."""
    above: np.ndarray
    """``(T, *shape)``."""


@dataclass
class Histogram(Reduction):
    """How many members lie in each bin, ``(T, *shape, bins)``: exact, as ``numpy.histogram``.

    A bin is ``[a, b)``, the last one ``[a, b]``. Members outside are counted as well.

    Parameters
    ----------
    edges
        ``bins + 1`` increasing numbers for all components; or for each, ``(*shape, bins + 1)``.
    of
        As in :class:`Mean`.
    """

    edges: Any
    of: str = "mean"
    name = "histogram"
    _parts: Any = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        _read_of(self.of)
        self.edges = np.asarray(self.edges, float)
        ok = self.edges.ndim > 0 and self.edges.shape[-1] > 1
        if not ok or not np.all(np.diff(self.edges, axis=-1) > 0):
            raise ValueError(f"edges must be at least two increasing numbers, got {self.edges}.")

    def update(self, chunk: Chunk) -> None:
        """Take in the members of a chunk."""
        values = getattr(chunk, self.of)
        shape, size = values.shape[2:], self.edges.shape[-1]
        if self.edges.shape[:-1] not in ((), shape):
            raise ValueError(
                f"edges must be (bins + 1,) or {(*shape, 'bins + 1')}, got {self.edges.shape}."
            )
        cells = values.reshape(len(values), values.shape[1], -1)
        edges = np.broadcast_to(self.edges, (*shape, size)).reshape(-1, size)
        found = np.empty((cells.shape[1], cells.shape[2], size + 1), np.int64)
        for i, j in np.ndindex(*found.shape[:2]):
            own, column = edges[j], cells[:, i, j]
            place = np.searchsorted(own, column, side="right")
            place[column == own[-1]] = size - 1
            found[i, j] = np.bincount(place, minlength=size + 1)
        found = found.reshape(*values.shape[1:], size + 1)
        self._parts = found if self._parts is None else self._parts + found

    def merge(self, other: "Histogram") -> None:
        """Take in what another has seen."""
        if other._parts is not None:
            self._parts = other._parts if self._parts is None else self._parts + other._parts

    def result(self) -> HistogramCounts | None:
        """The counts; ``None`` before any member."""
        if self._parts is None:
            return None
        parts = self._parts
        return HistogramCounts(self.edges, parts[..., 1:-1], parts[..., 0], parts[..., -1])


@dataclass
class Function(Reduction):
    """A function of the members of a chunk, whose values are combined.

    Parameters
    ----------
    function
        Maps a :class:`Chunk` to a tree of arrays (tuples, lists, dictionaries). What does not
        depend on how the members are cut into chunks is the user's care.
    combine
        Maps two such trees to one; by default they are added up, leaf by leaf.
    finish
        Maps the last one to the result.
    """

    function: Callable[[Chunk], Any]
    combine: Callable[[Any, Any], Any] | None = None
    finish: Callable[[Any], Any] | None = None
    _value: Any = field(default=None, init=False, repr=False)
    _any: bool = field(default=False, init=False, repr=False)

    def __post_init__(self) -> None:
        self.name = getattr(self.function, "__name__", "function").strip("<>")
        for what in (self.function, self.combine, self.finish):
            if what is not None and not callable(what):
                raise TypeError(f"a reduction needs functions, got {what!r}.")

    def fresh(self) -> "Function":
        """One like this that has seen no members."""
        return Function(self.function, self.combine, self.finish)

    def update(self, chunk: Chunk) -> None:
        """Take in the members of a chunk."""
        self._take(self.function(chunk))

    def merge(self, other: "Function") -> None:
        """Take in what another has seen."""
        if other._any:
            self._take(other._value)

    def _take(self, value: Any) -> None:
        if self._any:
            value = (self.combine or _added)(self._value, value)
        self._value, self._any = value, True

    def result(self) -> Any:
        """What the values were combined to; ``None`` before any member."""
        if not self._any or self.finish is None:
            return self._value
        return self.finish(self._value)


def _added(a: Any, b: Any) -> Any:
    try:
        return jax.tree.map(lambda x, y: np.asarray(x) + np.asarray(y), a, b)
    except ValueError as error:
        raise ValueError(
            "the values of a reduction's function for two chunks cannot be added up: give them one "
            f"shape, or say how with probode.reductions.Function(function, combine). {error}"
        ) from None
