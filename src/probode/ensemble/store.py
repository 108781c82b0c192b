"""Results on disk: a Zarr group that xarray opens, written chunk by chunk.

The members are flattened in C order along ``"member"``; the labels of the sweep dimensions are
coordinates along it. A chunk of members is one piece of each array. Its ``status`` is written last,
and until then reads ``Status.RUNNING``: what has a status is complete, whenever the writer died.

Pieces are compressed by LZ4 after a shuffle (the first bytes of all numbers, then the second ones,
...): of doubles that are no exact numbers only signs, exponents and leading digits repeat, and a
compressor that looks for more takes several times as long for larger files.
"""

import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from probode.base.digest import differences
from probode.base.status import Status
from probode.engines.lanes.records import LaneResults
from probode.ensemble.chunks import Chunk, chunks_of
from probode.ensemble.collected import layout
from probode.ensemble.inputs import MEMBER
from probode.ensemble.problem import Family
from probode.ensemble.settings import Settings
from probode.posterior.export import DATASET_NAMES, library, library_version

FORMAT = "probode ensemble"

_TIMES = "t"
"""Save points, where they differ between members: as in ``Ensemble.to_xarray``."""

_LARGEST_PIECE = 2**29
"""Bytes; compressors take less than 2**31."""


class Store(Mapping[str, Any]):
    """A Zarr group with the results of an ensemble; cheap to open in any process."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._group = library("zarr", "ensemble").open_group(str(path), mode="r+")
        self._about: dict[str, Any] = dict(self._group.attrs[FORMAT])
        ours = {stored: name for name, stored in DATASET_NAMES.items()}
        # Variable to its name in the file; older stores have the same name for both.
        self._stored = {ours.get(stored, stored): stored for stored in self._about["variables"]}

    def __reduce__(self) -> Any:
        return Store, (self.path.absolute(),)

    @property
    def chunk(self) -> int:
        """Members of a chunk."""
        return int(self._about["chunk"])

    def write(self, chunk: Chunk, results: LaneResults) -> None:
        """Write a chunk; one that was interrupted is left for another time."""
        if np.any(results.status == Status.INTERRUPTED.value):
            return
        for name in (*(name for name in self if name != "status"), "status"):
            self[name][slice(*chunk)] = getattr(results, name)

    def missing(self) -> list[Chunk]:
        """Chunks that have not been written."""
        status = np.asarray(self["status"][...])
        return [
            chunk
            for chunk in chunks_of(len(status), self.chunk)
            if np.any(status[slice(*chunk)] == Status.RUNNING.value)
        ]

    def check(self, fingerprint: dict[str, str]) -> None:
        """Raise if the stored results belong to other settings."""
        found = differences(self._about["fingerprint"], fingerprint)
        if found:
            raise ValueError(
                f"{self.path} holds an ensemble that differs from this one in: {'; '.join(found)}. "
                "Give the settings it was begun with, or another store."
            )

    def __getitem__(self, name: str) -> Any:
        return self._group[self._stored[name]]

    def __iter__(self) -> Iterator[str]:
        return iter(self._stored)

    def __len__(self) -> int:
        return len(self._stored)


def check_writable(path: str | os.PathLike[str]) -> None:
    """Raise before anything is computed if the store could not be written or is something else."""
    library("zarr", "ensemble")
    if not isinstance(path, str | os.PathLike):
        raise TypeError(f"store must be the path of a folder, got {path!r}.")
    place = Path(path)
    if place.exists() and not (place / "zarr.json").is_file():
        raise FileExistsError(f"store {str(place)!r} exists and is not a Zarr group.")
    folder = place if place.exists() else place.parent
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise type(error)(f"store {str(place)!r} cannot be written to: {error}") from error


def open_store(
    path: str | os.PathLike[str],
    resume: bool,
    family: Family,
    settings: Settings,
    fingerprint: dict[str, str],
    chunk: int,
) -> Store:
    """The store to write to: a new one, or one that was begun with the same settings."""
    if Path(path).exists():
        if not resume:
            raise FileExistsError(
                f"store {str(path)!r} exists: pass resume=True to go on with it, or another path. "
                "Nothing is overwritten."
            )
        try:
            store = Store(path)
        except KeyError:
            raise ValueError(f"{str(path)!r} holds no ensemble of probode.") from None
        store.check(fingerprint)
        return store
    # Made next to its place and moved there, so that a store is never half made.
    draft = Path(tempfile.mkdtemp(prefix=f"{Path(path).name}.", dir=Path(path).parent))
    try:
        _create(draft, family, settings, fingerprint, chunk)
        draft.chmod(0o777 & ~_umask())
        draft.rename(path)
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise
    return Store(path)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _create(
    path: Path, family: Family, settings: Settings, fingerprint: dict[str, str], chunk: int
) -> None:
    zarr = library("zarr", "ensemble")
    group, count = zarr.open_group(str(path), mode="w"), family.count
    variables = {
        DATASET_NAMES.get(name, name): form for name, form in layout(family, settings).items()
    }
    variables["status"] = ((), np.int64, Status.RUNNING.value)
    names = {1: (), 2: ("sign",), 3: ("time", "state"), 4: ("time", "state", "state2")}
    largest = max(8 * int(np.prod(shape, dtype=int)) for shape, _, _ in variables.values())
    chunk = max(1, min(chunk, _LARGEST_PIECE // largest))
    shuffled = zarr.codecs.BloscCodec(typesize=8, cname="lz4", clevel=5, shuffle="shuffle")
    for name, (shape, dtype, blank) in variables.items():
        group.create_array(
            name,
            shape=(count, *shape),
            chunks=(chunk, *shape),
            dtype=dtype,
            fill_value=blank,
            compressors="auto" if largest > _LARGEST_PIECE else shuffled,
            dimension_names=(MEMBER, *names[1 + len(shape)]),
        )
    if not family.save_at.dims:
        times = family.members(np.zeros(1, int)).times[0]
        group.create_array("time", data=np.array(times), dimension_names=("time",))
    else:
        own = group.create_array(
            _TIMES,
            shape=(count, family.times),
            chunks=(chunk, family.times),
            dtype=np.float64,
            compressors="auto" if largest > _LARGEST_PIECE else shuffled,
            dimension_names=(MEMBER, "time"),
        )
        for start, stop in chunks_of(count, chunk):
            own[start:stop] = family.members(slice(start, stop)).times
    index = family.axes.index(np.arange(count))
    numbers = {dim: x for dim, x in family.axes.coords.items() if x.dtype.kind in "biuf"}
    for dim, labels in numbers.items():
        values = np.asarray(labels)[index[dim]]
        group.create_array(dim, data=values, dimension_names=(MEMBER,))
    group.attrs["coordinates"] = " ".join(numbers)
    group.attrs[FORMAT] = {
        "version": library_version(),
        "chunk": chunk,
        "shape": list(family.shape),
        "sizes": family.axes.sizes,
        "labels": {  # those that are not numbers
            dim: [str(label) for label in labels]
            for dim, labels in family.axes.coords.items()
            if dim not in numbers
        },
        "variables": list(variables),
        "fingerprint": fingerprint,
    }
