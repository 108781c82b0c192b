"""Large arrays that need not stay in memory: in files, where a solve has a folder for them.

Such a file has no name: it is gone when nobody uses the array any longer, and after a kill.
"""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from math import prod
from pathlib import Path

import numpy as np

_LARGE = 2**25
"""Bytes from which on an array is put into a file."""
_folder: ContextVar[Path | None] = ContextVar("folder", default=None)


@contextmanager
def large_arrays_in(folder: Path | None) -> Iterator[None]:
    """Where large arrays are put that are made inside (``None``: in memory)."""
    token = _folder.set(folder)
    try:
        yield
    finally:
        _folder.reset(token)


def spacious(*shape: int) -> np.ndarray:
    """An array of numbers, with anything in it."""
    folder = _folder.get()
    if folder is None or 8 * prod(shape) < _LARGE:
        return np.empty(shape)
    with tempfile.TemporaryFile(dir=folder) as file:
        if hasattr(os, "posix_fallocate"):  # a full disk is seen now, not where a page is missing
            try:
                os.posix_fallocate(file.fileno(), 0, 8 * prod(shape))
            except OSError:
                return np.empty(shape)
        # As a plain array: a few functions of NumPy's take other ways with its own kind.
        return np.asarray(np.memmap(file, float, "w+", shape=shape))
