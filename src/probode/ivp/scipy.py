"""The solvers as ``scipy.integrate.OdeSolver`` classes.

``scipy.integrate.solve_ivp(fun, t_span, y0, method=probode.scipy.EK1)`` works as with any other
method; SciPy drives the steps one by one. ``probode.solve_ivp`` is faster and returns error bars.
"""

import warnings
from typing import Any

import numpy as np
from scipy.integrate import DenseOutput, OdeSolver

from probode.base.blas import one_blas_thread
from probode.base.precision import double_precision
from probode.base.status import Status
from probode.engines.fallback import logger
from probode.engines.in_python import HostField, begin_on_host, pieces_for, steps
from probode.engines.protocol import Inputs
from probode.filter import solvers
from probode.filter.control import PIControl
from probode.filter.loop import Rows
from probode.filter.smooth import Marginals
from probode.filter.step import Method
from probode.ivp.options import read_tolerances
from probode.ivp.result import Embedding
from probode.posterior.paths import NodePath
from probode.programs.arithmetic import Guard
from probode.programs.finite_differences import finite_difference_jacobian
from probode.programs.jacobian_check import WatchedJacobian, WrongJacobianError

_MANY = 2**30


class _FilterSolver(OdeSolver):
    """A Gaussian ODE filter behind SciPy's stepping interface.

    Parameters
    ----------
    fun, t0, y0, t_bound, vectorized
        As for every ``OdeSolver``.
    max_step, rtol, atol, first_step, jac, jac_sparsity
        As for SciPy's implicit methods; without ``jac``, finite differences.
    order, diffusion
        Order of the prior and diffusion model, see :class:`probode.EK1`.
    particular
        What else the solver of :mod:`probode` takes, such as ``evaluations`` of EK0 or
        ``initialization`` (``"runge-kutta"`` or ``"diffuse"``).
    """

    solver: type[solvers.Solver]

    def __init__(
        self,
        fun: Any,
        t0: float,
        y0: Any,
        t_bound: float,
        max_step: float = np.inf,
        rtol: Any = 1e-3,
        atol: Any = 1e-6,
        jac: Any = None,
        jac_sparsity: Any = None,
        vectorized: bool = False,
        first_step: float | None = None,
        order: int = 5,
        diffusion: Any = "dynamic",
        **particular: Any,
    ) -> None:
        super().__init__(fun, t0, y0, t_bound, vectorized, support_complex=True)
        self.y: Any
        self._embedding = Embedding(self.n, np.iscomplexobj(self.y))
        if max_step <= 0:
            raise ValueError(f"`max_step` must be positive, got {max_step!r}.")
        if first_step is not None and not 0 < first_step <= abs(t_bound - t0):
            raise ValueError(f"`first_step` must lie in (0, |t_bound - t0|], got {first_step!r}.")
        rtol, atol = read_tolerances(rtol, atol, self._embedding)
        y = self._embedding.flatten(self.y)
        self._guard = Guard(fun, t0, y)
        self._function = self._guard.over(self._evaluate)
        self._field = HostField(self._function, None)
        if self.n == 0 or t0 == t_bound:
            return
        chosen = self.solver(order, diffusion, **particular)
        with double_precision(), one_blas_thread():
            self._method: Method = chosen.method(y.size)
            if self._method.jacobian != "none":
                self._field = HostField(self._function, self._jacobian(jac, jac_sparsity))
            control: Any = PIControl(rtol, atol, first_step=first_step, max_step=max_step)
            control = control.flat(y.shape)
            start, bound = float(t0), float(t_bound)
            begun = begin_on_host(
                Inputs(self._method, chosen.initialization, self._field, control, start, bound, y)
            )
            if begun.note is not None and "initialization" in particular:
                logger.warning("%s.", begun.note)
            self._pieces, self._settings = pieces_for(self._method, control, bound)
            self._request = self._pieces.begin(self._settings, start, begun.start, begun.h)

    def _evaluate(self, t: float, y: np.ndarray) -> np.ndarray:
        return self._embedding.flatten(np.asarray(self.fun(t, self._embedding.values(y))))

    def _jacobian(self, jac: Any, sparsity: Any) -> Any:
        """The user's ``jac`` until it turns out wrong; without one, differences."""
        differences = finite_difference_jacobian(self._function, None, sparsity)

        def given(t: float, y: np.ndarray) -> np.ndarray:
            matrix = jac(t, self._embedding.values(y)) if callable(jac) else jac
            matrix = np.asarray(matrix.toarray() if hasattr(matrix, "toarray") else matrix)
            return self._embedding.jacobian(matrix).astype(float)

        guarded = self._guard.over(given, 2 * (self._embedding.flatten(self.y).size,))
        known = None if jac is None else WatchedJacobian(self._function, guarded)

        def matrix(t: float, y: np.ndarray, f: np.ndarray) -> np.ndarray:
            nonlocal known
            self.njev += 1
            if known is not None:
                try:
                    found: np.ndarray = known(t, y)
                    return found
                except WrongJacobianError as error:
                    warnings.warn(
                        f"{error}: finite differences of `fun` are used instead.", stacklevel=2
                    )
                    known = None
            return differences(t, y, f)

        return matrix

    def _step_impl(self) -> tuple[bool, str | None]:
        with double_precision(), one_blas_thread():
            request, kept = steps(
                self._pieces, self._settings, self._field, self._request, _MANY, 1
            )
            self._request = request
            if len(kept) < 2:
                message = Status(int(request.numbers[1])).message
                return False, " ".join([message, *(f"On the way {n}." for n in self._guard.notes)])
            self._rows = self._pieces.unpack_rows(np.asarray(kept))
            self.t = float(self._rows.t[-1])
            mean = np.asarray(self._rows.mean[-1, 0])
        self.y = self._embedding.values(mean)
        return True, None

    def _dense_output_impl(self) -> DenseOutput:
        return _FilterDenseOutput(self._method, self._rows, self._embedding)


class _FilterDenseOutput(DenseOutput):
    """The posterior mean within one step, given its two ends."""

    def __init__(self, method: Method, rows: Rows, embedding: Embedding) -> None:
        super().__init__(float(rows.t[0]), float(rows.t[1]))
        t, h, scale, mean, factor = (
            np.asarray(x) for x in (rows.t, rows.h, rows.scale, rows.mean, rows.factor)
        )
        host_rows: Any = Rows(t, h, scale, mean, factor)  # type: ignore[arg-type]
        ends: Any = Marginals(mean, factor)  # type: ignore[arg-type]
        self._path, self._method, self._embedding = NodePath.of(host_rows, ends), method, embedding

    def _call_impl(self, t: np.ndarray) -> np.ndarray:
        mean, _ = self._path.evaluate(self._method, t, 0)
        return self._embedding.values(np.asarray(mean)).T


class EK0(_FilterSolver):
    """Zeroth-order Gaussian ODE filter: explicit, no Jacobian. See :class:`probode.EK0`."""

    solver = solvers.EK0


class EK1(_FilterSolver):
    """First-order Gaussian ODE filter: A-stable. See :class:`probode.EK1`."""

    solver = solvers.EK1


class DiagonalEK1(_FilterSolver):
    """First-order filter with the Jacobian's diagonal. See :class:`probode.DiagonalEK1`."""

    solver = solvers.DiagonalEK1
