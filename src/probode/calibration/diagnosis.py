"""When not to trust an error estimate, and how to say so.

Five numbers are taken from a transport; each has a limit above which it is a warning:

- ``convergence``: corrections that the iteration left unsettled, beside the changes they correct.
  Large where the error is no small perturbation: a layer it has moved, a chaotic attractor.
- ``resolution``: part of the integrated defect that the highest stage of the quadrature carries.
  Large where the defect varies too fast for the stages.
- ``rounding``: what the rounding of the values themselves adds up to, beside the error.
- ``size``: the error beside the range of the solution.
- ``layer``: the time by which the error moves the solution, beside the length of a step, where the
  solution is steepest.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Array

from probode.calibration.transport import Transported

SIGNS = ("convergence", "resolution", "rounding", "size", "layer")
LIMITS = {"convergence": 0.1, "resolution": 0.5, "rounding": 0.2, "size": 0.1, "layer": 1.0}
_WORDS = {
    "convergence": "the error iteration does not converge: the error is not a small perturbation",
    "resolution": "the defect varies too fast between the nodes to be integrated",
    "rounding": "the error is near rounding level, where no estimate is exact",
    "size": "the error is as large as the solution's own variation",
    "layer": "the error moves a steep layer by more than the steps that resolve it",
    "lost": "the estimate was lost on the way (not finite): from there on the scale is the model's",
}
_EPSILON = float(np.finfo(float).eps)


def signs_of(xp: Any, t: Array, means: Array, error: Array, moved: Transported) -> Array:
    """The numbers to judge by, in the order of :data:`SIGNS`; ``means`` are ``(N, >=2, d)``."""
    y, slope = means[:, 0], means[:, 1]
    if y.shape[0] < 2:
        return xp.zeros(len(SIGNS))
    largest = xp.max(xp.abs(error), axis=0)
    safe = xp.where(largest > 0.0, largest, 1.0)
    n = y.shape[0] - 1

    def rms(x: Any) -> Any:
        return xp.sqrt(xp.mean((x / safe) ** 2))

    tiny = 1e-300
    convergence = rms(moved.second) / (rms(moved.first) + tiny)
    resolution = rms(moved.unresolved) / (rms(moved.first) + tiny)
    rounding = xp.max(
        xp.where(
            largest > 0.0,
            _EPSILON * np.sqrt(n) * xp.sqrt(xp.mean(y**2, axis=0)) / _rms(xp, error, tiny),
            0.0,
        )
    )
    extent = xp.max(y, axis=0) - xp.min(y, axis=0)
    size = xp.max(xp.where(extent > 0.0, largest / xp.where(extent > 0.0, extent, 1.0), 0.0))
    h = xp.abs(t[1:] - t[:-1])[:, None]
    steep = xp.max(xp.abs(slope), axis=0)
    shift = xp.abs(error[1:]) / xp.where(steep > 0.0, steep, 1.0)
    at_layer = xp.abs(slope[1:]) >= 0.5 * steep
    layer = xp.max(xp.where(at_layer & (steep > 0.0), shift / xp.where(h > 0.0, h, 1.0), 0.0))
    return xp.stack([convergence, resolution, rounding, size, layer])


def _rms(xp: Any, x: Any, tiny: float) -> Any:
    return xp.sqrt(xp.mean(x**2, axis=0)) + tiny


@dataclass(frozen=True)
class Diagnosis:
    """A verdict on an error estimate; prints as a few lines."""

    flags: tuple[str, ...]
    """Names of what speaks against the estimate; empty if nothing does."""
    numbers: dict[str, float]
    """The measurements behind the flags; see :data:`LIMITS`."""
    largest_error: float
    """Largest estimated error, relative to the range of its component."""
    mode: str

    @property
    def trusted(self) -> bool:
        """Whether nothing speaks against the estimate."""
        return not self.flags

    def __str__(self) -> str:
        if self.mode == "model":
            return "not calibrated: the standard deviations are the model's"
        head = "error bars can be trusted" if self.trusted else "error bars must not be trusted"
        lines = [f"{head} (largest error {self.largest_error:.1e} of the solution's range)"]
        lines += [f"- {_WORDS[flag]}" for flag in self.flags]
        return "\n".join(lines)

    __repr__ = __str__


def judge(signs: np.ndarray, lost: bool, mode: str) -> Diagnosis:
    """A verdict from the numbers."""
    numbers = dict(zip(SIGNS, (float(x) for x in signs), strict=True))
    flags = [name for name, limit in LIMITS.items() if not numbers[name] <= limit]
    if lost:
        flags.append("lost")
    return Diagnosis(tuple(flags), numbers, numbers["size"], mode)
