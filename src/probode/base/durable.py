"""Files that a kill at any moment leaves whole: written beside, synced, and put in place at once.

Files are NumPy's ``.npz`` with a text in JSON, read as data: nothing in them is executed. Of each
there are two generations: one that turns out damaged does not take the earlier one with it.
"""

import importlib
import json
import os
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np

fcntl: Any
try:
    fcntl = importlib.import_module("fcntl")
except ImportError:  # not there on Windows: two processes are then not kept apart
    fcntl = None

_ABOUT = "about"
_DAMAGES = (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile, zlib.error)


class Damaged(ValueError):
    """A file that is not what was written."""


def earlier(path: Path) -> Path:
    """The generation before."""
    return path.with_name(f"{path.stem}.before{path.suffix}")


def write(path: Path, about: dict[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
    """Put a file in its place; the one that was there becomes the earlier generation.

    A kill leaves the old file, or the new one, or (between two renames) the old one as the earlier
    generation.
    """
    draft = path.with_name(f"{path.name}.part")
    with open(draft, "wb") as file:
        np.savez(file, allow_pickle=False, **{_ABOUT: np.array(json.dumps(about))}, **arrays)
        file.flush()
        os.fsync(file.fileno())
    if path.exists():
        os.replace(path, earlier(path))
    os.replace(draft, path)
    sync_folder(path.parent)


def read(path: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """What :func:`write` wrote, checked; raises :class:`Damaged`."""
    try:
        with np.load(path, allow_pickle=False) as members:
            arrays = {name: members[name] for name in members.files}
        about = json.loads(str(arrays.pop(_ABOUT)))
        if not isinstance(about, dict):
            raise ValueError("no description")
    except FileNotFoundError:
        raise
    except _DAMAGES as error:
        raise Damaged(f"{path}: {error}") from error
    return about, arrays


def sync_folder(path: Path) -> None:
    """Make what was renamed in a folder durable (where the system can)."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(descriptor)
    except OSError:
        pass
    finally:
        os.close(descriptor)


class Table:
    """Rows of numbers that are appended: in a file of their own, or in memory (no ``path``)."""

    def __init__(self, width: int, path: Path | None = None) -> None:
        self.width, self.count, self.check = width, 0, 0
        self._path, self._parts = path, list[np.ndarray]()
        self._file: IO[bytes] | None = None

    @staticmethod
    def of(rows: np.ndarray) -> "Table":
        """In memory, with these rows."""
        table = Table(rows.shape[1])
        table.append(rows)
        return table

    @staticmethod
    def stored(path: Path, width: int, count: int, check: int) -> "Table":
        """The first ``count`` rows of a file, if they are as they were; raises :class:`Damaged`."""
        table = Table(width, path)
        size = 8 * width * count
        try:
            found = 0
            with open(path, "rb") as file:
                while table.count < count:
                    block = file.read(min(_BLOCK, size - found))
                    if not block:
                        raise Damaged(f"{path} ends after {found} of {size} bytes")
                    found += len(block)
                    table.check = zlib.crc32(block, table.check)
                    table.count = found // (8 * width)
        except OSError as error:
            raise Damaged(f"{path}: {error}") from error
        if table.check != check:
            raise Damaged(f"{path} does not have the content that was written")
        return table

    def append(self, rows: np.ndarray) -> None:
        """More rows, at the end."""
        rows = np.ascontiguousarray(rows, dtype=float)
        if self._path is None:
            self._parts.append(rows)
            self.count += len(rows)
            return
        if self._file is None:
            # What lies beyond the rows that count was written in vain, right before a kill.
            self._file = open(self._path, "r+b" if self._path.exists() else "w+b")  # noqa: SIM115
            self._file.truncate(8 * self.width * self.count)
            self._file.seek(0, os.SEEK_END)
        content = rows.tobytes()
        self._file.write(content)
        self.check, self.count = zlib.crc32(content, self.check), self.count + len(rows)

    def sync(self) -> None:
        """Make all rows durable."""
        if self._file is not None:
            self._file.flush()
            os.fsync(self._file.fileno())

    def close(self) -> None:
        """Write what is left; rows can still be read."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def rows(self) -> np.ndarray:
        """All of them: in one piece of memory, or as a view of the file."""
        if self._path is not None and self.count:
            if self._file is not None:
                self._file.flush()
            return np.asarray(np.memmap(self._path, float, "r", shape=(self.count, self.width)))
        if len(self._parts) != 1:
            self._parts = [np.concatenate([np.empty((0, self.width)), *self._parts])]
        return self._parts[0]


_BLOCK = 2**24


class Lock:
    """One process at a time: a file beside, which is gone when nobody has it."""

    def __init__(self, path: Path, name: str) -> None:
        self._path = path
        self._file: IO[bytes] | None = None
        if fcntl is None:
            return
        while True:
            file = open(path, "wb")  # noqa: SIM115
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.fstat(file.fileno()).st_ino == os.stat(path).st_ino:
                    self._file = file
                    return
            except BlockingIOError:
                file.close()
                raise ValueError(
                    f"{name} is being written by another solve: wait for its end, or choose "
                    "another place."
                ) from None
            except FileNotFoundError:  # whoever had it has removed it just now
                pass
            file.close()

    def release(self) -> None:
        """Let others have it."""
        if self._file is not None:
            self._path.unlink(missing_ok=True)
            self._file.close()
            self._file = None
