"""Compiling the library's own functions: lazily, and quickly."""

import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache, wraps
from pathlib import Path
from threading import RLock
from typing import Any

import jax

_FAST_COMPILATION = {
    "xla_cpu_use_fusion_emitters": False,
    "xla_cpu_parallel_codegen_split_count": 2,
}
"""Halves compile times on the CPU; run times of the small kernels met here stay the same."""

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
    return known_options(_FAST_COMPILATION) if jax.default_backend() == "cpu" else None


def known_options(options: dict[str, Any]) -> dict[str, Any]:
    """Those of the options that this version of the compiler knows."""

    def are_known(some: dict[str, Any]) -> bool:
        try:
            jax.jit(lambda x: x, compiler_options=some).lower(0.0).compile()
        except Exception:  # an unknown option is reported in different ways
            return False
        return True

    if are_known(options):
        return options
    return {name: value for name, value in options.items() if are_known({name: value})}


def use_compilation_cache(folder: str | os.PathLike[str] | None = None) -> Path | None:
    """Keep compiled programs on disk, so that another process need not compile them again.

    This sets JAX's own cache for the whole process (it cannot be set for one library), so it is
    not done unasked; a cache that was chosen before stays. The command line uses it.

    Parameters
    ----------
    folder
        Where to keep the programs; by default a folder of the user's cache.

    Returns
    -------
    Path or None
        The folder; ``None`` if it cannot be written to, and nothing is kept.
    """
    chosen: str | None = jax.config.values["jax_compilation_cache_dir"]
    if chosen is not None:
        return Path(chosen)
    if folder is None:
        base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        folder = Path(base) / "probode" / f"jax-{jax.__version__}"
    folder = Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return None
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.05)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    return folder


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
            return jax.jit(function, static_argnums=static, compiler_options=compiler_options())

        @wraps(function)
        def call(*args: Any) -> Any:
            if not alone:
                return jitted()(*args)
            with turn(alone):
                return jax.block_until_ready(jitted()(*args))

        return call

    return decorate
