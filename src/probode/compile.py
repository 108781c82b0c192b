"""Compiling the library's own functions: lazily, and quickly."""

from collections.abc import Callable
from functools import lru_cache, wraps
from typing import Any

import jax

_FAST_COMPILATION = {
    "xla_cpu_use_fusion_emitters": False,
    "xla_cpu_parallel_codegen_split_count": 2,
}
"""Halves compile times on the CPU; run times of the small kernels met here stay the same."""


@lru_cache(maxsize=1)
def _compiler_options() -> dict[str, Any] | None:
    """Options that this version of the compiler knows."""
    if jax.default_backend() != "cpu":
        return None
    try:
        jax.jit(lambda x: x, compiler_options=_FAST_COMPILATION).lower(0.0).compile()
    except Exception:  # an unknown option is reported in different ways
        return None
    return _FAST_COMPILATION


def compiled(*static: int) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorate a function to be compiled when it is first called.

    ``static`` lists the positions of arguments that are part of the program. Importing the library
    must not start a JAX backend, hence the delay.
    """

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @lru_cache(maxsize=1)
        def jitted() -> Callable[..., Any]:
            return jax.jit(function, static_argnums=static, compiler_options=_compiler_options())

        @wraps(function)
        def call(*args: Any) -> Any:
            return jitted()(*args)

        return call

    return decorate
