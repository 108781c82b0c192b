"""Which members' error bars to trust: the verdicts of :mod:`probode.global_error.diagnosis`."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from probode.base.status import Status
from probode.global_error.diagnosis import FAST, FAST_STEPS, LIMITS, SIGNS, WORDS

if TYPE_CHECKING:
    from probode.ensemble.result import Ensemble


@dataclass(frozen=True)
class EnsembleDiagnosis:
    """Verdicts on the error bars of all members; prints as a few lines."""

    flags: dict[str, np.ndarray]
    """By the name of what speaks against an estimate: of which members it does."""
    numbers: dict[str, np.ndarray]
    """The measurements behind the flags, of each member; see
    :data:`probode.global_error.diagnosis.LIMITS`."""
    mode: str

    @property
    def trusted(self) -> np.ndarray:
        """The members of which nothing speaks against the estimate (none, of the model's)."""
        if self.mode == "model":
            return np.zeros(self._shape, bool)
        return ~np.any(list(self.flags.values()), axis=0)

    @property
    def _shape(self) -> tuple[int, ...]:
        return next(iter(self.flags.values())).shape

    def __str__(self) -> str:
        if self.mode == "model":
            return "not calibrated: the standard deviations are the model's"
        trusted = self.trusted
        lines = [f"error bars of {trusted.sum()} of {trusted.size} members can be trusted"]
        lines += [
            f"- {flagged.sum()} {name}: {WORDS[name]}"
            for name, flagged in self.flags.items()
            if flagged.any()
        ]
        return "\n".join(lines)

    __repr__ = __str__


def diagnosis_of(ensemble: "Ensemble") -> EnsembleDiagnosis:
    """See :meth:`Ensemble.diagnose`."""
    mode = ensemble.settings.calibration
    stuck = ensemble.status == Status.STEP_TOO_SMALL.value
    if "signs" not in ensemble.data:  # the model's, or from a store of an older version
        return EnsembleDiagnosis({"stuck": stuck}, {}, "model")
    signs = np.asarray(ensemble.data["signs"][...]).reshape(*ensemble.shape, -1)
    numbers = {name: signs[..., i] for i, name in enumerate(SIGNS)}
    begun = ensemble.accepted > 0
    flags = {name: begun & ~(numbers[name] <= LIMITS[name]) for name in SIGNS}
    flags["lost"] = begun & (signs[..., -1] != 0.0)
    flags["long"] = (ensemble.accepted > FAST_STEPS) & (mode == FAST)
    flags["unchecked"] = ~begun
    flags["stuck"] = stuck
    return EnsembleDiagnosis(flags, numbers, mode)
