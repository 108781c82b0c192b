"""``solve_ensemble(..., reduce=...)``: members are gathered into statistics, and let go."""

from collections import Counter
from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from probode.base.status import Status
from probode.engines.lanes.records import LaneResults, Members
from probode.ensemble.problem import Family, part
from probode.ensemble.reductions import (
    Chunk,
    Function,
    HistogramCounts,
    QuantileValues,
    Reduction,
)
from probode.posterior.export import library, library_version

if TYPE_CHECKING:
    from xarray import Dataset

_NAMED = 100
"""Of so many members that failed the numbers are kept."""
_AHEAD = 16
"""Chunks that may wait for one before them."""
_READ_BYTES = 2**26


def read_reductions(reduce: Any) -> dict[str, Reduction]:
    """What the user asked for, by name."""
    if isinstance(reduce, Mapping):
        named = [(str(name), _reduction(one)) for name, one in reduce.items()]
    else:
        several = reduce if isinstance(reduce, list | tuple) else [reduce]
        named = [(one.name, one) for one in map(_reduction, several)]
    if not named:
        raise ValueError("reduce must name at least one reduction, got none.")
    twice = [name for name, times in Counter(name for name, _ in named).items() if times > 1]
    if twice:
        raise ValueError(
            f"reduce has several reductions of the name {twice[0]!r}: give names of your own, as "
            "reduce={'name': reduction, ...}."
        )
    return {name: one.fresh() for name, one in named}


def _reduction(one: Any) -> Reduction:
    if isinstance(one, type) and issubclass(one, Reduction):
        raise TypeError(f"reduce must be made of reductions, got a class: write {one.__name__}().")
    if isinstance(one, Reduction):
        return one
    if callable(one):
        return Function(one)
    raise TypeError(
        "reduce must be a reduction such as probode.reductions.Mean(), a function of a chunk, or a "
        f"list or dictionary of these, got {one!r}."
    )


@dataclass
class Tally:
    """Reductions and counts of the members seen so far: of a chunk, or of all."""

    reductions: dict[str, Reduction]
    statuses: Counter[int] = field(default_factory=Counter)
    left_out: list[int] = field(default_factory=list)
    """Numbers of members that failed, the first of them."""

    def fresh(self) -> "Tally":
        """One like this that has seen no members."""
        return Tally({name: one.fresh() for name, one in self.reductions.items()})

    def update(self, start: int, members: Members, results: Any) -> None:
        """Take in the members from number ``start`` on, as an engine returns them."""
        status = np.asarray(results.status)
        self.statuses.update(status.tolist())
        done = np.flatnonzero(status == Status.SUCCESS.value)
        failed = np.flatnonzero(status != Status.SUCCESS.value)
        self._note((start + failed).tolist())
        if len(done) == 0:
            return
        shape = members.shape or (members.d,)
        whole = len(done) == len(status)
        chosen = members if whole else part(members, done)

        def own(values: Any) -> np.ndarray:
            return values if whole else values[done]

        mean, std = (own(x).reshape(len(done), -1, *shape) for x in (results.mean, results.std))
        cov = None if results.cov is None else own(results.cov)
        chunk = Chunk(start + done, chosen.times, mean, std, cov, chosen.args)
        for one in self.reductions.values():
            one.update(chunk)

    def merge(self, other: "Tally") -> None:
        """Take in what another has seen."""
        self.statuses.update(other.statuses)
        self._note(other.left_out)
        for name, one in self.reductions.items():
            one.merge(other.reductions[name])

    def _note(self, numbers: list[int]) -> None:
        self.left_out = sorted([*self.left_out, *numbers])[:_NAMED]


class Reducing:
    """A sink that keeps statistics only. Chunks are taken in their order."""

    def __init__(self, family: Family, reductions: dict[str, Reduction]) -> None:
        self.family = family
        self.tally = Tally(reductions)
        self._next = 0
        self._early: dict[int, tuple[Any, LaneResults]] = {}

    def write(self, chunk: Any, results: LaneResults) -> None:
        """Take in the results of a chunk."""
        self._early[chunk[0]] = chunk, results
        # One that is late does not hold up all others: sums are then rounded differently.
        while self._early and (self._next in self._early or len(self._early) > _AHEAD):
            self._take(min(self._early))

    def _take(self, start: int) -> None:
        chunk, results = self._early.pop(start)
        self.tally.update(chunk[0], self.family.members(np.arange(*chunk)), results)
        self._next = max(self._next, chunk[1])

    def merge(self, tally: Tally) -> None:
        """Take in what a worker has made of a chunk."""
        self.tally.merge(tally)

    def finish(self) -> "Reduced":
        """The results; members that were not solved are marked as interrupted."""
        for start in sorted(self._early):
            self._take(start)
        return reduced_of(self.family, self.tally)


def reduce_data(
    family: Family, data: Mapping[str, Any], reductions: dict[str, Reduction]
) -> "Reduced":
    """The same of results that were kept, in memory or in a store, some members at a time."""
    tally = Tally(reductions)
    d = int(np.prod(family.shape, dtype=int))
    one = 8 * family.times * d * (2 + (d if "cov" in data else 0))
    size = max(1, _READ_BYTES // one)
    if hasattr(data, "chunk"):  # whole pieces of a store
        size = max(1, size // data.chunk) * data.chunk
    for start in range(0, family.count, size):
        rows = slice(start, min(start + size, family.count))
        members = family.members(np.arange(rows.start, rows.stop))
        tally.update(start, members, _Slice(data, rows))
    return reduced_of(family, tally)


class _Slice:
    """Some members of stored results, read when asked for."""

    def __init__(self, data: Mapping[str, Any], rows: slice) -> None:
        self._data, self._rows = data, rows

    def __getattr__(self, name: str) -> Any:
        return np.asarray(self._data[name][self._rows]) if name in self._data else None


def reduced_of(family: Family, tally: Tally) -> "Reduced":
    """What the user gets."""
    statuses = Counter(tally.statuses)
    missing = family.count - sum(statuses.values())
    running = statuses.pop(Status.RUNNING.value, 0)  # of a store that was not finished
    if missing + running:
        statuses[Status.INTERRUPTED.value] += missing + running
    t = None
    if not family.save_at.dims:
        t = family.members(np.zeros(1, int)).times[0].copy()
    return Reduced(
        {name: one.result() for name, one in tally.reductions.items()},
        t,
        family.shape,
        {Status(code): statuses[code] for code in sorted(statuses, reverse=True)},
        tuple(tally.left_out),
    )


@dataclass(frozen=True, eq=False)
class Reduced(Mapping[str, Any]):
    """Statistics over the members of an ensemble, by name: ``reduced["mean"]``.

    Arrays are ``(T, *shape)``, save points and the shape of ``y0``, unless a reduction says
    otherwise. Members that failed are left out, at all times.
    """

    results: dict[str, Any]
    t: np.ndarray | None
    """Save points ``(T,)``; ``None`` where they differ between members (then row ``k`` is of the
    ``k``-th of each)."""
    shape: tuple[int, ...]
    """Of one ``y``."""
    statuses: dict[Status, int]
    """How many members ended how."""
    first_failed: tuple[int, ...]
    """Numbers of members that were left out: the first hundred."""

    def __getitem__(self, name: str) -> Any:
        return self.results[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.results)

    def __len__(self) -> int:
        return len(self.results)

    @property
    def members(self) -> int:
        """Number of members."""
        return sum(self.statuses.values())

    @property
    def used(self) -> int:
        """Members that reached their end, of which the statistics are."""
        return self.statuses.get(Status.SUCCESS, 0)

    @property
    def failed(self) -> int:
        """Members that did not, and were left out."""
        return self.members - self.used

    def __repr__(self) -> str:
        ended = ", ".join(f"{count} {status.name}" for status, count in self.statuses.items())
        times = "" if self.t is None else f", {len(self.t)} times"
        return (
            f"Reduced from {self.members} members ({ended}){times}, y of shape {self.shape}: "
            + ", ".join(self.results)
        )

    def __deepcopy__(self, memo: Any) -> "Reduced":
        return Reduced(
            deepcopy(self.results, memo), self.t, self.shape, self.statuses, self.first_failed
        )

    def _is_over_times(self, value: Any) -> bool:
        if not isinstance(value, np.ndarray) or value.shape[1:] != self.shape:
            return False
        return self.t is None or len(value) == len(self.t)

    def to_xarray(self) -> "Dataset":
        """An xarray Dataset over ``time`` and ``state`` (``y`` flattened in C order).

        Results of functions are left out unless they are arrays ``(T, *shape)``.
        """
        xarray = library("xarray")
        d = int(np.prod(self.shape, dtype=int))
        variables: dict[str, Any] = {}
        coords: dict[str, Any] = {"state": np.arange(d)}
        if self.t is not None:
            coords["time"] = self.t
        for name, value in self.results.items():
            if isinstance(value, QuantileValues):
                flat = value.values.reshape(len(value.q), -1, d)
                about = {"rank_error": value.rank_error}
                variables[name] = ((f"{name}_q", "time", "state"), flat, about)
                coords[f"{name}_q"] = value.q
            elif isinstance(value, HistogramCounts):
                over = ("time", "state")
                bins = value.counts.shape[-1]
                variables[name] = ((*over, f"{name}_bin"), value.counts.reshape(-1, d, bins))
                variables[f"{name}_below"] = (over, value.below.reshape(-1, d))
                variables[f"{name}_above"] = (over, value.above.reshape(-1, d))
                edges = np.broadcast_to(value.edges, (*self.shape, bins + 1)).reshape(d, -1)
                variables[f"{name}_edges"] = (("state", f"{name}_edge"), edges)
            elif self._is_over_times(value):
                variables[name] = (("time", "state"), value.reshape(-1, d))
        attributes = {
            "source": f"probode {library_version()}",
            "members": self.members,
            "failed": self.failed,
            "shape": str(self.shape),
        }
        return xarray.Dataset(variables, coords, attributes)
