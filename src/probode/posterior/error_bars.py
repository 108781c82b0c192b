"""The error bars of a posterior: the estimate of its error, what is made of it, the verdict."""

import dataclasses
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jaxtyping import Array

from probode.base.blas import one_blas_thread
from probode.base.limits import Limits
from probode.base.precision import double_precision, is_traced, on_host
from probode.base.status import Status
from probode.global_error.between import (
    NOTHING_TO_LOOK_FOR,
    Nodes,
    look_between,
    may_depend_on_time,
)
from probode.global_error.calibrate import as_system, calibrate_nodes
from probode.global_error.diagnosis import Diagnosis, Looked, judge
from probode.global_error.result import Calibration
from probode.posterior.again import PART, Compared, compared, lost_repeat
from probode.posterior.conditioned import NOT_AGAIN
from probode.posterior.paths import NodePath, SavedPath
from probode.programs.kinks import kinked

if TYPE_CHECKING:
    from probode.posterior.posterior import Posterior

NOT_DONE = {
    "smoothing": "There was no time for smoothing: means and error bars are the filter's.",
    "output": "There was no time to go back to all times asked for: the earlier ones are missing.",
    "events": "There was no time to look at all events: some are missing.",
    "calibration": "There was no time to calibrate all of it: see diagnose().",
}
"""What there was no time for, in words."""


class ErrorBars:
    """What a posterior knows of its error."""

    def calibrate(self: Any, mode: str = "defect") -> "Posterior":
        """The same posterior with standard deviations of the size of the global error.

        The posterior mean is a function whose residual between the nodes is known, so its error
        obeys an ODE that is solved on the solver's own steps (see :mod:`probode.global_error`). The
        result is a signed estimate, :meth:`global_error`; covariances and samples are rescaled by
        it: ``Σ -> D Σ D``, ``x -> m + D (x - m)``. Means do not change.

        It is an a-posteriori estimate used as a scale: that its size is right is no proof that
        errors are Gaussian. :meth:`diagnose` says where it fails.

        Parameters
        ----------
        mode
            ``"defect"`` (8 evaluations of ``f`` and a Jacobian a step for EK1, 6 of ``f`` for EK0,
            more in long solves) or ``"defect-fast"`` (3 of ``f``, or more where it must correct),
            which is off by 1 to 2 % in the median instead of 0.03 %.
        """
        if not isinstance(self.path, NodePath):
            raise ValueError(
                "this posterior has not kept its steps (save_at, or t_eval of a large problem): "
                "pass calibration='defect' to solve, which then calibrates on the way."
            )
        if is_traced(self) or not on_host(self.t):
            raise ValueError(
                "calibrate() is for a finished solve: inside jit or vmap, pass "
                "calibration='defect' to solve."
            )
        if self.given is not None:
            raise ValueError(NOT_AGAIN)
        if not self.solver.smooths:
            raise ValueError(
                f"{self.solver.name} carries its error estimate along with the steps: pass "
                "calibration='defect' to solve (default of solve_ivp)."
            )
        if self.problem.field is None:
            raise ValueError(
                f"this posterior does not know its vector field any more ({self.problem.lost}): "
                "calibrate before that, or pass calibration='defect' to solve."
            )
        plain = self if self.calibration is None else dataclasses.replace(self, calibration=None)
        with double_precision(), one_blas_thread():
            return plain.calibrated_within(self.problem.field, mode, Limits())

    def calibrated_within(self: Any, field: Any, mode: str, limits: Limits) -> "Posterior":
        """The same as far as time allows: where the estimate ends, bands are as where it is lost.

        Without any time it stays as it is. ``missing`` says so, and the status.
        """
        assert isinstance(self.path, NodePath)
        if limits.expired():
            return self.without("calibration")
        std = self.state().std.reshape(len(self.t), -1)
        smoothed = self.path.smoothed is not None
        made, whole = calibrate_nodes(
            *(self.method, field, self.t, self.path.means, std),
            smoothed=smoothed,
            mode=mode,
            limits=limits,
            begins=self._error_at_start(),
        )
        calibrated = self.with_calibration(made)
        if not whole:
            return calibrated.without("calibration")
        # Steps that are only tried out, to learn how long the rest takes, need no look.
        if self.problem.field is None or self.status == Status.RUNNING:
            return calibrated
        return calibrated._with_a_look_between(limits)

    def _error_at_start(self: Any) -> np.ndarray | None:
        """The error of the first mean, if it is not exact.

        Of a start that is uncertain, the steps that follow say something: smoothing moves it.
        """
        if self.begins is None:
            return None
        assert isinstance(self.path, NodePath)
        moved = np.asarray(self.path.means[0]) - np.asarray(self.path.rows.mean[0])
        return self.begins + moved[: self.method.equation.order].reshape(-1)

    def without(self: Any, what: str) -> "Posterior":
        """A posterior whose time ran out before ``what`` was done."""
        code: Any = self.status_code
        if bool(self.success):
            code = np.asarray(Status.TIME_LIMIT.value)
        missing = tuple(name for name in NOT_DONE if name in (*self.missing, what))
        return replace(self, status_code=code, missing=missing)

    def _with_a_look_between(self: Any, limits: Limits) -> "Posterior":
        """Evaluate the vector field between the steps, for changes that the steps missed.

        A function that Python runs is evaluated as often as time allows.
        """
        made, problem, t = self.calibration, self.problem, np.asarray(self.t)
        assert made is not None and isinstance(self.path, NodePath)
        if len(t) < 2:
            return self
        if not may_depend_on_time(problem.field):
            return replace(self, problem=problem.seen(NOTHING_TO_LOOK_FOR)).with_looked()
        equation = self.method.equation
        means = equation.stacked(np.asarray(self.path.means))
        rtol, atol = (0.0, 0.0) if self.tolerances is None else self.tolerances
        tolerance = atol + rtol * np.abs(means[:, 0])
        extra = np.zeros(0) if problem.switches is None else problem.switches.tables
        nodes = Nodes(t, means, np.abs(np.asarray(made.error)), tolerance)
        asked = int(self.stats.f_evaluations) + int(made.f_evaluations)
        finely = problem.switches is not None and problem.switches.finely
        look = look_between(
            as_system(equation, problem.field), made.contact, nodes, extra, asked, finely, limits
        )
        if look is None:
            return self
        return replace(self, problem=problem.seen(look)).with_looked(*look.numbers)

    def with_looked(self: Any, *numbers: float) -> "Posterior":
        """With what is known of the times between the steps: see :class:`Looked`, after ``stops``.

        Numbers of the calibration, unlike the problem: files and functions on pytrees keep them.
        """
        switches, made = self.problem.switches, self._calibrated("with_looked")
        depends, stops = (True, 0) if switches is None else switches.numbers
        if made.looked is None:
            kinks = -1.0 if kinked(self.problem.field) else 0.0
        else:
            kinks = Looked(*np.asarray(made.looked).tolist()).kinks
        unresolved = switches is not None and switches.unresolved
        known = Looked(depends, stops, *numbers)._replace(unresolved=unresolved, kinks=kinks)
        looked: Any = np.array(known, float)
        return replace(self, calibration=replace(made, looked=looked))

    def with_calibration(self: Any, made: Calibration) -> "Posterior":
        """The posterior with a calibration, whose cost is noted."""
        stats = dataclasses.replace(
            self.stats,
            calibration_f_evaluations=made.f_evaluations,
            calibration_jacobian_evaluations=made.jacobian_evaluations,
        )
        return dataclasses.replace(self, calibration=made, stats=stats)

    def global_error(self: Any, t: Any = None, k: int = 0) -> Array:
        """Signed estimate of ``mean - solution``, at the times ``posterior.t`` or at any other.

        Of the ``k``-th derivative, below the order of the equation (velocities of
        :class:`SecondOrder` have ``k=1``).
        """
        made = self._calibrated("global_error", k)
        if t is None:
            return made.error.reshape((*made.error.shape[:-1], *self.shape))
        mean = self.derivative(t, k).mean
        return mean - self.corrected(t, k).reshape(mean.shape)

    def corrected(self: Any, t: Any = None, k: int = 0) -> Array:
        """The mean with the estimated error taken off: a companion solution of higher order.

        Usually far more accurate than the mean, but without an error estimate of its own: where
        :meth:`diagnose` warns, it may be worse. ``k`` as in :meth:`global_error`.
        """
        made = self._calibrated("corrected", k)
        if t is None:
            return self.derivative(k=k).mean - self.global_error(k=k)
        if not isinstance(self.path, NodePath):
            raise ValueError("with save_at the error is known at posterior.t only: leave t out.")
        if made.stages is None:  # known at the nodes alone
            mean = self.derivative(t, k).mean
            return mean - made.error_at(self.t, t).reshape(mean.shape)
        with double_precision():
            values = made.corrected_at(self.t, self.path.means[..., k:, :], t)
        return values.reshape((*values.shape[:-1], *self.shape))

    def diagnose(self: Any, again: bool = False) -> Diagnosis:
        """Whether to trust the error estimate, and what speaks against it, if anything.

        Parameters
        ----------
        again
            Solve the same problem again at a tenth of the tolerance, and compare at the times
            ``posterior.t``. What the estimate itself cannot notice, such as a layer that was passed
            in a few steps, is then a flag ``"again"``: the solutions differ by more than the error
            bars, with a mean square of more than 3 in their units (``numbers["again"]``).
            ``"stopped"``: the second did not get as far. Function and arguments must be what they
            were; posteriors that were loaded from a file, or made inside ``jit``, do not know them,
            and where steps were given there is no tolerance.

        Examples
        --------
        >>> import probode
        >>> posterior = probode.solve_ivp(lambda t, y: -y, (0, 5), [1.0]).posterior
        >>> posterior.diagnose(again=True).trusted
        True
        """
        if self._before is not None:
            return self._before.diagnose(again)
        found = self._diagnosed()
        return self._solved_again().onto(found) if again else found

    def _solved_again(self: Any) -> Compared:
        """Compared with a solve at a tenth of the tolerance."""
        first = one_solve(self, "diagnose(again=True)")
        if first.tolerances is None:
            raise ValueError(
                "diagnose(again=True) solves at a tenth of the tolerance, and here the steps were "
                "given: solve with a finer grid, and compare."
            )
        if first.problem.repeat is None:
            raise ValueError(lost_repeat(first.problem.lost))
        if len(first.t) == 0:
            return Compared(0.0, 0)
        second = first.problem.repeat(first, PART)
        return Compared(0.0, 0) if second is first else compared(first, second)

    def _diagnosed(self: Any) -> Diagnosis:
        """What this solve alone has to say."""
        if self.calibration is None:
            flags = ("unfinished",) if "calibration" in self.missing else ()
            return Diagnosis(flags, {}, float("nan"), "model")
        made = one_solve(self, "diagnose").calibration
        assert made is not None
        lost = not bool(np.all(np.isfinite(made.error)))
        steps = int(np.max(self.stats.accepted))
        if isinstance(self.path, NodePath):  # those that were kept
            steps = min(steps, len(self.t) - 1)
        looked = None if made.looked is None else Looked(*np.asarray(made.looked).tolist())
        found = judge(np.asarray(made.signs), lost, made.mode, looked, steps, made.kind)
        if int(np.max(self.status_code)) == Status.STEP_TOO_SMALL:
            found = dataclasses.replace(found, flags=(*found.flags, "stuck"))
        if "calibration" in self.missing:
            others = tuple(flag for flag in found.flags if flag != "lost")
            found = dataclasses.replace(found, flags=(*others, "unfinished"))
        return dataclasses.replace(found, notes=(*self.problem.notes, *found.notes))

    def _calibrated(self: Any, what: str, k: int | None = None) -> Calibration:
        if self.given is not None:
            raise ValueError(NOT_AGAIN)
        if self.calibration is None:
            raise ValueError(f"{what} needs a calibrated posterior: call calibrate() first.")
        if k is None:
            return self.calibration
        if not 0 <= k < self.method.equation.order:
            raise ValueError(
                f"errors are estimated for derivatives 0 to {self.method.equation.order - 1}, "
                f"which a start gives, got k = {k}."
            )
        made = self._estimates(k)
        assert made is not None
        return made

    def _estimates(self: Any, k: int) -> Calibration | None:
        """The calibration of derivative ``k``; beyond those that have one, that of the last."""
        order = self.method.equation.order
        if self.calibration is None or order == 1:
            return self.calibration
        return self.calibration.part(min(k, order - 1), self.method.structure.d)


def one_solve(posterior: "Posterior", what: str) -> "Posterior":
    """The posterior with NumPy arrays; raise if it is not that of one finished solve."""
    if is_traced(posterior):
        raise TypeError(
            f"{what} needs a finished solve, got one inside a trace (jit, vmap, grad): return the "
            "posterior from the traced function, and use what comes back."
        )
    batch = np.shape(posterior.status_code)
    if batch:
        raise TypeError(
            f"{what} is for one solve, got a batch of shape {batch}: take one member with "
            "jax.tree.map(lambda x: x[i], posterior)."
        )
    problem = posterior.problem
    posterior = replace(jax.tree.map(np.asarray, posterior), problem=problem)
    path = posterior.path
    if isinstance(path, SavedPath):
        # A trace has room for all of save_at, reached or not.
        count = int(path.saving.count)
        posterior = replace(posterior, path=path.reached(count))
    return posterior
