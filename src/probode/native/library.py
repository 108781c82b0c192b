"""The compiled library: whether it is there, and what it can do."""

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

import jax
import numpy as np

from probode.control import ConstantStep, Control, GridSteps, PControl, PIControl
from probode.diffusion import DynamicDiffusion, FixedDiffusion
from probode.step import Method
from probode.structure import BlockDiagonal, Dense, Isotropic

LIBRARY = "_kernels.so"

_DENSE_LIMIT = 1500
"""Above this size of a dense state LAPACK's blocked decompositions are faster.

At 600 the kernels take a sixth of the time (update by covariances, whitened smoother), at 1200 a
half.
"""

_CONTROLS = (PControl, PIControl, ConstantStep, GridSteps)

_switched_off = os.environ.get("PROBODE_NATIVE", "") == "0"


@contextmanager
def disabled() -> Iterator[None]:
    """Run everything inside without native kernels."""
    global _switched_off
    before, _switched_off = _switched_off, True
    try:
        yield
    finally:
        _switched_off = before


@lru_cache(maxsize=1)
def load() -> ctypes.CDLL | None:
    """The library, made known to XLA; ``None`` if it was not built or does not fit this JAX."""
    path = Path(__file__).with_name(LIBRARY)
    if not path.exists():
        return None
    try:
        library = ctypes.CDLL(str(path))
        for name in ("open", "advance", "run", "solve"):
            capsule = jax.ffi.pycapsule(getattr(library, f"probode_xla_{name}"))
            jax.ffi.register_ffi_target(f"probode_xla_{name}", capsule, platform="cpu")
    except (OSError, AttributeError, RuntimeError):
        return None
    for name in ("probode_open", "probode_advance"):
        getattr(library, name).restype = ctypes.c_int
    return library


def address(array: np.ndarray) -> ctypes.c_void_p:
    """Where an array lies, as the library's functions take it."""
    return ctypes.c_void_p(array.ctypes.data)


def available() -> bool:
    """Whether native kernels can be used in this process."""
    return not _switched_off and jax.default_backend() == "cpu" and load() is not None


def supports(method: Method, control: Control) -> bool:
    """Whether there is a native kernel for this method and this step size control.

    Objects of a user's own class are run in JAX: the kernels know the library's own only.
    """
    structure, diffusion = method.structure, method.diffusion
    known = type(structure) in (Isotropic, BlockDiagonal, Dense) and (
        type(diffusion) is DynamicDiffusion
        or (type(diffusion) is FixedDiffusion and not diffusion.needs_innovation)
    )
    known = known and (method.evaluations == 1 or not isinstance(structure, Dense))
    small = structure.factor_shape[-1] <= _DENSE_LIMIT
    return known and small and type(control) in _CONTROLS and available()
