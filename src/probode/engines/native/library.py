"""The compiled library: whether it is there, and how it is called."""

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from pathlib import Path
from threading import Lock

import jax
import numpy as np

from probode.base.said import logger

LIBRARY = "_kernels.so"

FUNCTIONS = (
    *("open", "advance", "run", "smooth", "transport", "interpolate", "evaluate", "evaluate_all"),
    *("use", "in_use", "xla_open", "xla_advance", "xla_run", "xla_solve", "xla_times"),
    *(
        "xla_gaussian",
        "solve_members",
        "solve_abreast",
        "factorise_band",
        "solve_band",
        "xla_wanted",
        "two_pole",
        "evaluation",
    ),
    *("machine_copy", "machine_free", "machine_advance", "machine_carry", "machine_weigh"),
    *("machine_plan", "machine_finish", "machine_band", "machine_took_jacobian"),
    *("machine_sparse_factors", "machine_full_factors", "machine_singular", "machine_scalars"),
    *("machine_vector", "machine_fronts", "plan_fronts", "free_plan", "factorise_fronts"),
    *("solve_factors", "free_factors"),
)
"""What the library has, each name with ``probode_`` before it."""

INSTRUCTION_SETS = ("avx512", "avx2", "baseline")

_switched_off = ContextVar("switched_off", default=os.environ.get("PROBODE_NATIVE", "") == "0")


@contextmanager
def disabled() -> Iterator[None]:
    """Run everything inside, in this thread, without native kernels."""
    before = _switched_off.set(True)
    try:
        yield
    finally:
        _switched_off.reset(before)


def load() -> ctypes.CDLL | None:
    """The library, made known to XLA; ``None`` if it was not built, or not from these sources.

    One that is there and cannot be used is spoken of once. The environment variable
    ``PROBODE_KERNELS`` names another file, such as one with checks (``make sanitize``).
    """
    with _TURN:  # one thread registers it, the others wait until it can be used
        return _load()


_TURN = Lock()


@lru_cache(maxsize=1)
def _load() -> ctypes.CDLL | None:
    path = Path(os.environ.get("PROBODE_KERNELS") or Path(__file__).with_name(LIBRARY))
    if not path.exists():
        return None
    try:
        library = ctypes.CDLL(str(path))
        missing = [name for name in FUNCTIONS if not hasattr(library, f"probode_{name}")]
        if missing:
            raise RuntimeError(f"built from older sources, without {', '.join(missing)}")
        for name in FUNCTIONS:
            if name.startswith("xla_"):
                capsule = jax.ffi.pycapsule(getattr(library, f"probode_{name}"))
                jax.ffi.register_ffi_target(f"probode_{name}", capsule, platform="cpu")
    except Exception as error:  # of another making than this JAX, or this machine, takes
        logger.warning(
            "the compiled kernels %s cannot be used (%s): everything runs in JAX, at a fraction of "
            "the speed. Build them anew with `pip install -e .` (or `make install`), or delete the "
            "file to do without.",
            *(path, error),
        )
        return None
    for name in ("open", "advance", "use", "machine_advance", "machine_fronts"):
        getattr(library, f"probode_{name}").restype = ctypes.c_int
    for name in ("two_pole", "evaluation", "machine_copy", "plan_fronts", "factorise_fronts"):
        getattr(library, f"probode_{name}").restype = ctypes.c_void_p
    library.probode_in_use.restype = ctypes.c_char_p
    library.probode_factorise_band.restype = ctypes.c_long
    wanted = os.environ.get("PROBODE_ISA", "")
    if wanted and not library.probode_use(wanted.encode()):
        raise ValueError(
            f"PROBODE_ISA={wanted}: no kernels for it, or not on this processor. It is one of "
            f"{', '.join(INSTRUCTION_SETS)}; without it the best one is taken, here "
            f"{library.probode_in_use().decode()}."
        )
    return library


def instruction_set() -> str | None:
    """The instruction set for which the kernels in use were compiled; ``None``: no kernels.

    The environment variable ``PROBODE_ISA`` asks for another one than the best.
    """
    library = load() if available() else None
    return None if library is None else library.probode_in_use().decode()


def address(array: np.ndarray) -> ctypes.c_void_p:
    """Where an array lies, as the library's functions take it; it keeps the array alive.

    Other threads run during a call: an array that only a cache refers to may be dropped by them.
    """
    pointer = ctypes.c_void_p(array.ctypes.data)
    pointer.array = array  # type: ignore[attr-defined]
    return pointer


def available() -> bool:
    """Whether native kernels can be used in this process."""
    return not _switched_off.get() and jax.default_backend() == "cpu" and load() is not None
