"""Results of all members, in memory or on disk, under the same names."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from probode.base.status import Status
from probode.engines.lanes.records import LaneResults
from probode.ensemble.chunks import Chunk
from probode.ensemble.problem import Family
from probode.ensemble.settings import Settings

COUNTS = ("steps", "accepted", "rejected", "f_evaluations", "jacobian_evaluations")


def layout(family: Family, settings: Settings) -> dict[str, tuple[tuple[int, ...], Any, Any]]:
    """Shape of one member, type, and what stands for "not computed", of each variable."""
    times, d = family.times, int(np.prod(family.shape, dtype=int))
    variables: dict[str, tuple[tuple[int, ...], Any, Any]] = {
        "mean": ((times, d), np.float64, np.nan),
        "std": ((times, d), np.float64, np.nan),
    }
    if settings.covariance:
        variables["cov"] = ((times, d, d), np.float64, np.nan)
    variables.update(dict.fromkeys(COUNTS, ((), np.int64, 0)))
    return variables


class Collected(Mapping[str, np.ndarray]):
    """In memory: arrays with the members, in C order of the dimensions, in front."""

    def __init__(self, family: Family, settings: Settings) -> None:
        self._arrays = {
            name: np.full((family.count, *shape), blank, dtype)
            for name, (shape, dtype, blank) in layout(family, settings).items()
        }
        self._arrays["status"] = np.full(family.count, Status.INTERRUPTED.value)

    def write(self, chunk: Chunk, results: LaneResults) -> None:
        """Keep the results of a chunk."""
        for name, array in self._arrays.items():
            array[slice(*chunk)] = getattr(results, name)

    def __getitem__(self, name: str) -> np.ndarray:
        return self._arrays[name]

    def __iter__(self) -> Any:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)
