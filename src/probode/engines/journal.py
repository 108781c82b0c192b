"""A solve on disk: rows of its steps, and where it goes on from, so that a kill loses little.

A call of a user's may run several solves, one after the other: piece by piece between jumps, again
where something was missed, with the next method. Each is a *run*: a table with a row for each step,
and the *carry* after the last of them, from which the same steps follow as if nothing had happened
(:data:`probode.engines.protocol.Fill`). Done again, the same call finds its runs in their order:
what is there is read, the rest is computed.

Only the steps are kept. What is made of them (smoothing, error bars, output) is made again.
"""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from probode.base.digest import differences
from probode.base.durable import Damaged, Lock, Table, earlier, read, write
from probode.base.said import logger
from probode.engines.protocol import Carry, Engine, Given, Steps
from probode.filter.loop import Rows

FORMAT = "probode checkpoint"
VERSION = 1
"""Raised when an old reader would misunderstand the files."""
SHARE = 20
"""Saving takes at most this part of the time: the next one waits so many times as long."""
_FIELDS = ("t", "h", "scale", "mean", "factor", "drift")
"""Of a row, in the order in which they lie in a table (which is that of the kernels)."""


@dataclass
class Part:
    """One run, as it is stored."""

    about: dict[str, Any]
    arrays: dict[str, np.ndarray]
    """The carry, leaf by leaf."""
    table: Table


class Store(Protocol):
    """Where runs are kept."""

    def read(self) -> list[Part]:
        """What is there; raises :class:`Damaged` if none of it can be used."""

    def table(self, number: int, width: int) -> Table:
        """An empty one for a run."""

    def write(self, parts: list[Part], changed: list[int]) -> None:
        """Make the runs that have changed durable."""

    def release(self) -> None:
        """The end."""

    folder: Path | None = None
    """Where large arrays may be put; ``None``: rows stay in memory."""


class Folder:
    """Rows are appended to a file for each run: memory does not grow with them."""

    folder: Path | None

    def __init__(self, path: Path) -> None:
        strangers = path.is_dir() and any(not _is_ours(one.name) for one in path.iterdir())
        if strangers or (path.exists() and not path.is_dir()):
            raise FileExistsError(f"checkpoint {str(path)!r} exists, and is not a checkpoint.")
        path.mkdir(parents=True, exist_ok=True)
        self.folder = path
        self._path, self._lock = path, Lock(path / "lock", f"checkpoint {str(path)!r}")

    def _state(self, number: int) -> Path:
        return self._path / f"run-{number:04d}.npz"

    def _rows(self, number: int) -> Path:
        return self._path / f"rows-{number:04d}.f64"

    def read(self) -> list[Part]:
        parts: list[Part] = []
        while True:
            found = _newest(self._state(len(parts)), self._part)
            if found is None:
                return parts
            parts.append(found)

    def _part(self, path: Path, about: dict[str, Any], arrays: dict[str, np.ndarray]) -> Part:
        number = int(path.name[4:8])
        width, count, check = about["table"]
        return Part(about, arrays, Table.stored(self._rows(number), width, count, check))

    def table(self, number: int, width: int) -> Table:
        return Table(width, self._rows(number))

    def write(self, parts: list[Part], changed: list[int]) -> None:
        for number in changed:
            part = parts[number]
            part.table.sync()
            part.about["table"] = [part.table.width, part.table.count, part.table.check]
            write(self._state(number), {**_head(), **part.about}, part.arrays)

    def release(self) -> None:
        self._lock.release()


def _is_ours(name: str) -> bool:
    return name == "lock" or name.startswith(("run-", "rows-"))


class OneFile:
    """All in one file, which is written anew each time: for runs that fit into memory."""

    folder: Path | None = None

    def __init__(self, path: Path) -> None:
        if path.is_dir():
            raise FileExistsError(f"checkpoint {str(path)!r} is a folder: leave .npz away.")
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        self._lock = Lock(path.with_name(f"{path.name}.lock"), f"checkpoint {str(path)!r}")

    def read(self) -> list[Part]:
        return _newest(self._path, self._parts) or []

    @staticmethod
    def _parts(path: Path, about: dict[str, Any], arrays: dict[str, np.ndarray]) -> list[Part]:
        parts = []
        for number, each in enumerate(about["runs"]):
            mine = f"{number}/"
            own = {k.removeprefix(mine): v for k, v in arrays.items() if k.startswith(mine)}
            parts.append(Part(each, own, Table.of(own.pop("rows"))))
        return parts

    def table(self, number: int, width: int) -> Table:
        return Table(width)

    def write(self, parts: list[Part], changed: list[int]) -> None:
        arrays: dict[str, np.ndarray] = {}
        for number, part in enumerate(parts):
            arrays[f"{number}/rows"] = part.table.rows()
            arrays.update({f"{number}/{name}": x for name, x in part.arrays.items()})
        write(self._path, {**_head(), "runs": [part.about for part in parts]}, arrays)

    def release(self) -> None:
        self._lock.release()


def _head() -> dict[str, Any]:
    return {"format": FORMAT, "version": VERSION}


def _newest(path: Path, made: Any) -> Any:
    """Of the two generations the newest that is whole; ``None``: there is none."""
    damages: list[str] = []
    for one in (path, earlier(path)):
        try:
            about, arrays = read(one)
            if about.get("format") != FORMAT:
                raise Damaged(f"{one} is not a checkpoint of a solve")
            if about["version"] != VERSION:
                raise ValueError(
                    f"{one} is in format {about['version']}, this version of probode reads "
                    f"{VERSION}: go on with the version that has begun it."
                )
            found = made(path, about, arrays)
        except FileNotFoundError:
            continue
        except (KeyError, TypeError, IndexError) as error:
            damages.append(f"{one}: {error!r}")
            continue
        except Damaged as error:
            damages.append(str(error))
            continue
        if damages:
            logger.warning("the checkpoint is damaged (%s): an earlier state is used.", damages[0])
        return found
    if damages:
        raise Damaged(
            f"the checkpoint is damaged and cannot be gone on from: {'; '.join(damages)}. It was "
            "left as it is; move it away to begin anew."
        )
    return None


class Journal:
    """All runs of one call."""

    def __init__(self, store: Store, name: str, every: float) -> None:
        self.store, self._name, self._every = store, name, every
        self._parts = store.read()
        self._begun, self._changed = 0, set[int]()
        self._last, self._cost = time.perf_counter(), 0.0

    def begin(self, identity: dict[str, str], engine: Engine, given: Given) -> "Run":
        """The next run: as it is stored, or a new one."""
        number, self._begun = self._begun, self._begun + 1
        if number == len(self._parts):
            return Run(self, number, None, identity)
        part = self._parts[number]
        found = differences(part.about["identity"], identity)
        if found:
            which = "" if number == 0 else f" (in part {number + 1} of it)"
            raise ValueError(
                f"checkpoint {self._name!r} belongs to another solve: it differs from this one"
                f"{which} in: {'; '.join(found)}. It was left as it is: go on with what it was "
                "begun with, or choose another place."
            )
        given.learn(part.about["learned"])
        return Run(self, number, part, identity)

    def note(self, number: int, part: Part) -> None:
        """A run has gone on; saves it, if it is time to."""
        if number == len(self._parts):
            self._parts.append(part)
        self._changed.add(number)
        waited = time.perf_counter() - self._last
        if waited >= max(self._every, SHARE * self._cost):
            self.save()

    def save(self) -> None:
        """All that has changed."""
        if self._changed:
            before = time.perf_counter()
            self.store.write(self._parts, sorted(self._changed))
            self._changed.clear()
            self._last = time.perf_counter()
            self._cost = self._last - before

    def table(self, number: int, width: int) -> Table:
        """For the rows of a new run."""
        return self.store.table(number, width)

    def close(self) -> None:
        """Save, and let others have the files."""
        try:
            self.save()
        finally:
            for part in self._parts:
                part.table.close()
            self.store.release()


class Run:
    """The steps of one solve, on their way to the journal."""

    def __init__(
        self, journal: Journal, number: int, part: Part | None, identity: dict[str, str]
    ) -> None:
        self._journal, self._number, self._identity = journal, number, identity
        self._part = part

    @property
    def begun(self) -> bool:
        """Whether there is any row."""
        return self._part is not None

    @property
    def steps(self) -> int:
        """Those that are kept."""
        return 0 if self._part is None else max(self._part.table.count - 1, 0)

    def carry(self, steps: Steps) -> Carry:
        """The solve after them."""
        assert self._part is not None
        return steps.thawed([self._part.arrays[str(i)] for i in range(len(self._part.arrays))])

    def add(self, steps: Steps, given: Given, following: Carry, rows: Rows) -> None:
        """A chunk of steps, and the solve after it; row 0 repeats the last before it."""
        leaves = [np.asarray(getattr(rows, name)) for name in _FIELDS if _has(rows, name)]
        if self._part is None:
            shapes = {name: leaf.shape[1:] for name, leaf in zip(_FIELDS, leaves, strict=False)}
            width = sum(int(np.prod(shape)) for shape in shapes.values())
            about = {"identity": self._identity, "shapes": shapes}
            self._part = Part(about, {}, self._journal.table(self._number, width))
        else:
            leaves = [leaf[1:] for leaf in leaves]
        if len(leaves[0]):  # else all attempts were rejected
            flat = [leaf.reshape(len(leaf), -1) for leaf in leaves]
            self._part.table.append(np.concatenate(flat, axis=1))
        self._part.arrays = {str(i): np.array(x) for i, x in enumerate(steps.frozen(following))}
        self._part.about["learned"] = given.learned()
        self._journal.note(self._number, self._part)

    def rows(self, begin: int = 0, end: int | None = None) -> Rows:
        """All rows that are kept, or some of them."""
        assert self._part is not None
        table, at, found = self._part.table.rows()[begin:end], 0, {}
        for name, shape in self._part.about["shapes"].items():
            size = int(np.prod(shape))
            found[name] = table[:, at : at + size].reshape(len(table), *shape)
            at += size
        return Rows(**found)  # type: ignore[arg-type]


def _has(rows: Rows, name: str) -> bool:
    return getattr(rows, name) is not None
