"""Compiling the library's own functions: lazily, and quickly."""

import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache, wraps
from pathlib import Path
from threading import RLock
from typing import Any

import jax

from probode.base.jax_inside import FAST_COMPILATION, cache_folder, keep_compiled, known_options
from probode.base.on_disk import KeptProgram, user_cache

TURN_ON_CPU = RLock()
"""Held while the CPU runs a program that may have batches of LAPACK calls: one at a time.

Such a batch occupies a thread of XLA's pool and waits for others of the same pool to do its parts
(jaxlib 0.10): executions from several threads of the user's would wait for one another for ever.
"""


def turn(alone: bool) -> AbstractContextManager[Any]:
    """What to hold while a program is run on the default device, ``alone`` or with others."""
    return TURN_ON_CPU if alone and compiler_options() is not None else nullcontext()


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
                return jitted()(*args)
            with turn(alone):
                return jax.block_until_ready(jitted()(*args))

        return call

    return decorate
