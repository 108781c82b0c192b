"""Compiling the library's own functions: lazily, and quickly."""

import os
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache, wraps
from pathlib import Path
from threading import RLock
from typing import Any

import jax

from probode.base.blas import load_lapack
from probode.base.jax_inside import FAST_COMPILATION, cache_folder, keep_compiled, known_options
from probode.base.on_disk import KeptProgram, user_cache

TURN_ON_CPU = RLock()
"""Held while the CPU runs a program that may have batches of LAPACK calls: one at a time.

Such a batch occupies a thread of XLA's pool and waits for others of the same pool to do its parts
(jaxlib 0.10): executions from several threads of the user's would wait for one another for ever.
"""


class _Threads:
    """Of XLA: a forked child has none of them, and would wait for them for ever.

    Programs that XLA runs where they are called are done when the call returns; the others never.
    """

    def __init__(self) -> None:
        self._used = self._lost = False
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._forked)

    def _forked(self) -> None:
        self._lost = self._used

    def awaited(self, outcome: Any) -> Any:
        """What a program gives; raises where it would not come."""
        self._used = True
        if self._lost:
            arrays: list[Any] = [x for x in jax.tree.leaves(outcome) if isinstance(x, jax.Array)]
            until = time.monotonic() + _PATIENCE
            while not all(x.is_ready() for x in arrays if not isinstance(x, jax.core.Tracer)):
                if time.monotonic() > until:
                    raise RuntimeError(
                        "this process was forked from one in which JAX had run already, whose "
                        "threads it does not have: start processes by 'spawn' or 'forkserver' "
                        "(multiprocessing.get_context), or fork before the first solve."
                    )
                time.sleep(0.01)
        return outcome


_PATIENCE = 2.0
_threads = _Threads()


def turn(alone: bool) -> AbstractContextManager[Any]:
    """What to hold while a program is run on the default device, ``alone`` or with others."""
    if not alone or compiler_options() is None:
        return nullcontext()
    load_lapack()
    return TURN_ON_CPU


@lru_cache(maxsize=1)
def compiler_options() -> dict[str, Any] | None:
    """Options for what is compiled on the CPU."""
    return known_options(FAST_COMPILATION) if jax.default_backend() == "cpu" else None


def use_compilation_cache(folder: str | os.PathLike[str] | None = None) -> Path | None:
    """Keep all compiled programs on disk, so that another process need not compile them again.

    The library's own programs are kept in any case (``PROBODE_CACHE=0`` in the environment switches
    that off). This is for those of yours that the library is a part of, such as a ``jax.jit`` or a
    gradient around :func:`solve`. It sets JAX's own cache for the whole process, so it is not done
    unasked; a cache that was chosen before stays. The command line uses it.

    Parameters
    ----------
    folder
        Where to keep the programs; by default a folder of the user's cache.

    Returns
    -------
    Path or None
        The folder; ``None`` if it cannot be written to, and nothing is kept.

    Examples
    --------
    >>> import probode
    >>> probode.use_compilation_cache("my-programs")  # doctest: +SKIP
    PosixPath('my-programs')
    """
    chosen = cache_folder()
    if chosen is not None:
        return Path(chosen)
    if folder is None:
        folder = user_cache() / f"jax-{jax.__version__}"
    folder = Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return None
    return folder if keep_compiled(str(folder)) else None


def compiled(
    *static: int, alone: bool = True
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorate a function to be compiled when it is first called.

    ``static`` lists the positions of arguments that are part of the program. Importing the library
    must not start a JAX backend, hence the delay. A program without batches of LAPACK calls need
    not run ``alone``.
    """

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @lru_cache(maxsize=1)
        def jitted() -> Callable[..., Any]:
            return KeptProgram.of(function, compiler_options(), *static)

        @wraps(function)
        def call(*args: Any) -> Any:
            if not alone:
                return _threads.awaited(jitted()(*args))
            with turn(alone):
                return jax.block_until_ready(_threads.awaited(jitted()(*args)))

        return call

    return decorate
