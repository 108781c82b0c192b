"""BLAS on one thread: splitting small matrices among threads costs more than it gains."""

import importlib
import sys
import threading
from contextlib import AbstractContextManager
from functools import lru_cache
from typing import Any

from threadpoolctl import ThreadpoolController

_OF_SCIPY = "scipy.linalg.cython_lapack"


@lru_cache(maxsize=2)
def _libraries(with_scipy: bool) -> ThreadpoolController:
    """All that are loaded: a controller does not know what is loaded after it."""
    return ThreadpoolController()


class _OneThread:
    """A limit that several threads may ask for: the first sets it, the last takes it back."""

    def __init__(self) -> None:
        self._turn = threading.Lock()
        self._users = 0
        self._limits: list[Any] = []

    def __enter__(self) -> None:
        with self._turn:
            if self._users == 0:
                self._limit()
            self._users += 1

    def __exit__(self, *_: Any) -> None:
        with self._turn:
            self._users -= 1
            while self._users == 0 and self._limits:
                self._limits.pop().restore_original_limits()

    def loaded(self) -> None:
        """A library has been loaded: the limit holds for it, too."""
        with self._turn:
            if self._users:
                self._limit()

    def _limit(self) -> None:
        libraries = _libraries(_OF_SCIPY in sys.modules)
        self._limits.append(libraries.limit(limits=1, user_api="blas"))


_ONE_THREAD = _OneThread()


def one_blas_thread() -> AbstractContextManager[None]:
    """Keep BLAS on one thread."""
    return _ONE_THREAD


def load_lapack() -> None:
    """Load what JAX takes its LAPACK from. JAX would, but later, and without the limit.

    Importing it takes a tenth of a second, which solves by the kernels do without.
    """
    if _OF_SCIPY not in sys.modules:
        importlib.import_module(_OF_SCIPY)
        _ONE_THREAD.loaded()
