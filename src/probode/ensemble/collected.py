"""Results of all members, in memory or on disk, under the same names."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from probode.base.limits import free_memory, in_words
from probode.base.status import Status
from probode.engines.lanes.records import COUNTS, SIGN_COUNT, LaneResults
from probode.ensemble.chunks import Chunk
from probode.ensemble.problem import Family
from probode.ensemble.settings import Settings

_LITTLE = 2**26
"""Bytes that are not worth asking about."""


def layout(family: Family, settings: Settings) -> dict[str, tuple[tuple[int, ...], Any, Any]]:
    """Shape of one member, type, and what stands for "not computed", of each variable."""
    times, d = family.times, int(np.prod(family.shape, dtype=int))
    variables: dict[str, tuple[tuple[int, ...], Any, Any]] = {
        "mean": ((times, d), np.float64, np.nan),
        "std": ((times, d), np.float64, np.nan),
    }
    if settings.covariance:
        variables["cov"] = ((times, d, d), np.float64, np.nan)
    if settings.calibration != "model":
        variables["signs"] = ((SIGN_COUNT,), np.float64, np.nan)
    variables.update(dict.fromkeys(COUNTS, ((), np.int64, 0)))
    return variables


def check_memory(family: Family, settings: Settings) -> None:
    """Raise before anything is computed if the results of all members do not fit into memory."""
    sizes = [
        np.dtype(dtype).itemsize * int(np.prod(shape, dtype=int))
        for shape, dtype, _ in layout(family, settings).values()
    ]
    needed = float(family.count) * (sum(sizes) + 8)
    if needed < _LITTLE:
        return
    free = free_memory()
    if needed > free:
        cov = ", with covariances" if settings.covariance else ""
        raise MemoryError(
            f"the results of {family.count} members at {family.times} save points{cov} take "
            f"{in_words(needed)}, and {in_words(free)} of memory are free. Pass store='sweep.zarr' "
            "to keep them on disk, or reduce=probode.reductions.Mean() (or others) to keep "
            "statistics only; fewer save points take less."
        )


class Collected(Mapping[str, np.ndarray]):
    """In memory: arrays with the members, in C order of the dimensions, in front."""

    _waiting = np.zeros(0, bool)  # of pickles of older versions: nothing

    def __init__(self, family: Family, settings: Settings) -> None:
        self._count, self._layout = family.count, layout(family, settings)
        self._arrays: dict[str, np.ndarray] = {}
        self._waiting = np.ones(family.count, bool)

    def write(self, chunk: Chunk, results: LaneResults) -> None:
        """Keep the results of a chunk: as they are, if it is all there is."""
        which = slice(*chunk)
        self._waiting[which] = False
        if chunk == (0, self._count):
            names = ("status", *self._layout)
            self._arrays = {name: getattr(results, name) for name in names}
            return
        for name, array in self._room().items():
            array[which] = getattr(results, name)

    def _room(self) -> dict[str, np.ndarray]:
        """Arrays for all members; what no chunk has come for is left as it is."""
        if not self._arrays:
            self._arrays = {
                name: np.empty((self._count, *shape), dtype)
                for name, (shape, dtype, _) in self._layout.items()
            }
            self._arrays["status"] = np.empty(self._count, int)
        return self._arrays

    def _written(self) -> dict[str, np.ndarray]:
        arrays = self._room()
        if self._waiting.any():
            for name, (_, _, blank) in self._layout.items():
                arrays[name][self._waiting] = blank
            arrays["status"][self._waiting] = Status.INTERRUPTED.value
            self._waiting[:] = False
        return arrays

    def __getitem__(self, name: str) -> np.ndarray:
        return self._written()[name]

    def __iter__(self) -> Any:
        return iter(self._written())

    def __len__(self) -> int:
        return len(self._written())
