"""Quantiles of a stream: all values as long as they are few, then a summary with a bound.

The summary has levels. On level ``l`` a value stands for ``2^l`` of them. Once a level has ``2k``
values they are sorted, and every other one goes up a level: a rank is moved by at most ``2^l``. In
turn these are the first or the second of each pair, so that what is moved one way is moved back
later. Many quantiles side by side: all cells of an array have as many values, and are sorted
together. (Munro and Paterson 1980; Manku, Rajagopalan and Lindsay 1998.)
"""

from dataclasses import dataclass, field

import numpy as np


@dataclass
class Sketch:
    """A summary of arrays of one shape; ``size`` is ``k``."""

    size: int
    count: int = 0
    moved: int = 0
    """Bound of how far a rank may be off."""
    levels: list[list[np.ndarray]] = field(default_factory=list)
    """On each level pieces with the values in front."""
    turns: list[int] = field(default_factory=list)

    @property
    def rank_error(self) -> float:
        """The bound, as a part of all values."""
        return self.moved / max(self.count, 1)

    def add(self, values: np.ndarray) -> None:
        """Take in arrays, stacked along the first axis.

        The summary depends on their order only, not on the pieces in which they come.
        """
        self.count += len(values)
        self._put(0, values.copy())  # a view would keep the whole chunk

    def join(self, other: "Sketch") -> None:
        """Take in what another has seen: the bounds add up."""
        self.count += other.count
        self.moved += other.moved
        for level, pieces in enumerate(other.levels):
            for piece in pieces:
                self._put(level, piece)

    def _put(self, level: int, values: np.ndarray) -> None:
        while len(self.levels) <= level:
            self.levels.append([])
            self.turns.append(0)
        pieces, full = [*self.levels[level], values], 2 * self.size
        if sum(map(len, pieces)) <= full:
            self.levels[level] = pieces
            return
        held, start = np.concatenate(pieces), 0
        while len(held) - start > full:
            ordered = np.sort(held[start : start + full], axis=0)
            kept = ordered[self.turns[level] :: 2].copy()
            self.turns[level] ^= 1
            self.moved += 2**level
            self._put(level + 1, kept)
            start += full
        self.levels[level] = [held[start:].copy()]

    def quantiles(self, q: np.ndarray) -> np.ndarray:
        """As ``numpy.quantile`` of all values, if all are there; else values at these ranks."""
        if self.moved == 0:
            return np.quantile(np.concatenate(self.levels[0]), q, axis=0)
        kept = [(2**i, piece) for i, pieces in enumerate(self.levels) for piece in pieces]
        values = np.concatenate([piece for _, piece in kept])
        shape = values.shape[1:]
        values = values.reshape(len(values), -1)
        weights = np.concatenate([np.full(len(piece), w) for w, piece in kept])
        order = np.argsort(values, axis=0, kind="stable")
        ranks = np.cumsum(weights[order], axis=0)  # of the last value that each stands for
        values = np.take_along_axis(values, order, axis=0)
        found = np.empty((len(q), values.shape[1]))
        for i, part in enumerate(q):
            place = np.argmax(ranks >= max(part * self.count, 1.0), axis=0)
            found[i] = np.take_along_axis(values, place[None], axis=0)[0]
        return found.reshape(len(q), *shape)
