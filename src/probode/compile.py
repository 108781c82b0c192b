"""Compiling the library's own functions: lazily, and quickly."""

import os
from collections.abc import Callable
from functools import lru_cache, wraps
from pathlib import Path
from typing import Any

import jax

_FAST_COMPILATION = {
    "xla_cpu_use_fusion_emitters": False,
    "xla_cpu_parallel_codegen_split_count": 2,
}
"""Halves compile times on the CPU; run times of the small kernels met here stay the same."""


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


def compiled(*static: int) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorate a function to be compiled when it is first called.

    ``static`` lists the positions of arguments that are part of the program. Importing the library
    must not start a JAX backend, hence the delay.
    """

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @lru_cache(maxsize=1)
        def jitted() -> Callable[..., Any]:
            return jax.jit(function, static_argnums=static, compiler_options=compiler_options())

        @wraps(function)
        def call(*args: Any) -> Any:
            return jitted()(*args)

        return call

    return decorate
