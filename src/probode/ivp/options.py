"""Options of ``solve_ivp``: names, defaults, and what SciPy makes of tolerances."""

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from probode.engines.monitor import Progress
from probode.ivp.result import Embedding

_SMALLEST_RTOL = 100 * float(np.finfo(float).eps)


class Options(NamedTuple):
    """Options of :func:`solve_ivp`, with their defaults."""

    rtol: Any = 1e-3
    atol: Any = 1e-6
    first_step: Any = None
    min_step: Any = 0.0
    max_step: Any = np.inf
    max_num_steps: int | None = None
    jac: Any = None
    jac_sparsity: Any = None
    lband: int | None = None
    uband: int | None = None
    order: int | str = 5
    diffusion: Any = "dynamic"
    evaluations: int | None = None
    smooth: bool = True
    grid: Any = None
    control: Any = "PI"
    initialization: Any = None
    calibration: str = "defect"
    global_rtol: Any = None
    global_atol: Any = None
    global_at: str = "interval"
    progress: bool = False
    time_limit: float | None = None
    max_memory: float | str | None = None
    callback: Callable[[Progress], Any] | None = None
    second_order: bool = False
    invariants: Any = None
    bounds: Any = None
    mass_matrix: Any = None
    breakpoints: Any = None
    jumps: Any = None
    doses: Any = None
    checkpoint: Any = None
    until: Any = None

    @classmethod
    def read(cls, options: dict[str, Any]) -> "Options":
        """Check the names; what SciPy would ignore with a warning is ignored with a warning."""
        unknown = [name for name in options if name not in cls._fields]
        if unknown:
            warnings.warn(
                "The following arguments have no effect for a chosen solver: "
                f"{', '.join(f'`{name}`' for name in unknown)}. Known are: "
                f"{', '.join(cls._fields)}.",
                stacklevel=3,
            )
        return cls(**{name: value for name, value in options.items() if name in cls._fields})


def read_tolerances(rtol: Any, atol: Any, embedding: Embedding) -> tuple[Any, Any]:
    """Tolerances as SciPy reads them: tiny relative ones are raised with a warning."""
    n, size = embedding.n, embedding.size
    rtol, atol = np.asarray(rtol, float), np.asarray(atol, float)
    if np.any(rtol < _SMALLEST_RTOL):
        warnings.warn(
            f"At least one element of `rtol` is too small. Setting it to {_SMALLEST_RTOL:.1e}.",
            stacklevel=5,
        )
        rtol = np.maximum(rtol, _SMALLEST_RTOL)
    for name, value in (("rtol", rtol), ("atol", atol)):
        if value.ndim > 0 and value.shape not in ((size,), (n,)):
            expected = f"({size},)" if n == size else f"({size},), or ({n},) for each derivative"
            raise ValueError(f"`{name}` has wrong shape: expected {expected}, got {value.shape}.")
    if np.any(atol < 0) or np.any(np.isnan(atol)):
        raise ValueError(f"`atol` must be positive, got {atol}.")
    atol = np.maximum(atol, np.finfo(float).tiny ** 0.5)
    if rtol.ndim == atol.ndim == 0:
        return float(rtol), float(atol)
    return embedding.repeated(rtol), embedding.repeated(atol)
