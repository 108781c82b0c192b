"""The user's function as the solvers see it: traced where possible, else called from Python."""

import logging
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from probode import events
from probode.calibration.host import HostProblem
from probode.finite_differences import finite_difference_jacobian
from probode.host import HostField
from probode.identity import Memory, key_of, key_of_arguments
from probode.ivp_options import Options
from probode.ivp_result import Embedding
from probode.problem import Field, bind
from probode.solvers import Solver
from probode.tracing import make_traceable

logger = logging.getLogger("probode")

_KNOWN_FUNCTIONS = Memory(256)
"""Functions that were traced before, or found to be untraceable."""


class Traced(NamedTuple):
    """A vector field that compiles, and the way it was traced."""

    field: Field
    path: str


class UserFunction(NamedTuple):
    """``fun(t, y, *args)`` and everything that came with it."""

    fun: Callable[..., Any]
    args: tuple[Any, ...]
    vectorized: bool
    options: Options
    solver: Solver
    embedding: Embedding

    def traced(self, t0: float, t1: float, y0: np.ndarray) -> Traced | None:
        """Compiled through JAX, or ``None`` where only Python can evaluate the function.

        A function that was seen before, with the same code and the same values in reach, is
        neither traced nor compared with the original again.
        """
        leaves, tree = jax.tree.flatten(self.args)
        found = _KNOWN_FUNCTIONS.get(
            lambda: (
                key_of(self.fun),
                key_of(self.options.jac),
                key_of_arguments(leaves),
                tree,
                y0.shape,
                self.vectorized,
                self.embedding,
                self.solver.jacobian,
            ),
            lambda: self._trace(t0, t1, y0),
            lambda found: found is None or found.field.may_be_kept(),
        )
        return found and found._replace(field=found.field.with_arguments(self.args))

    def _trace(self, t0: float, t1: float, y0: np.ndarray) -> Traced | None:
        traceable = make_traceable(self._single(), (t0, t1), y0, self.args)
        if traceable is None:
            logger.warning(
                "%s cannot be traced: the solver is driven from Python, at a fraction of the "
                "speed. Replace branches on values (if, max, min, float) by numpy.where, "
                "numpy.maximum and the like.",
                getattr(self.fun, "__name__", "the function"),
            )
            return None
        return Traced(self._field(traceable.function, t0, y0), traceable.path)

    def on_host(self, n: int) -> HostField:
        """Called from Python, with the user's Jacobian or finite differences."""
        single, arguments = self._single(), self.args

        def function(t: float, y: np.ndarray) -> np.ndarray:
            value = np.asarray(single(t, y.copy(), *arguments), float)
            if value.shape != (n,):
                raise ValueError(
                    f"fun must return {n} values, the length of y0, got {value.shape}."
                )
            return value

        return HostField(function, self._host_jacobian(function))

    def _single(self) -> Callable[..., Any]:
        """``fun`` for one state in real form."""
        fun, vectorized, embedding = self.fun, self.vectorized, self.embedding
        n = embedding.n
        if not vectorized and not embedding.is_complex:
            return fun

        def single(t: Any, y: Any, *args: Any) -> Any:
            state = y[:n] + 1j * y[n:] if embedding.is_complex else y
            value = fun(t, state[:, None], *args) if vectorized else fun(t, state, *args)
            if vectorized:
                value = np.reshape(value, (n,))
            if embedding.is_complex:
                value = np.asarray(value)
                return np.concatenate([np.real(value), np.imag(value)])
            return value

        return single

    def _field(self, function: Callable[..., Any], t0: float, y0: np.ndarray) -> Field:
        """The traced problem; the user's Jacobian where it can be traced, else the exact one."""
        diagonal = self.solver.jacobian == "diagonal"
        start = (jnp.asarray(t0), jnp.asarray(y0))
        jac = self.options.jac
        if jac is not None and self.solver.jacobian != "none" and not self.embedding.is_complex:
            if not callable(jac):
                jac = np.asarray(jac.toarray() if hasattr(jac, "toarray") else jac, float)
            try:
                return bind(function, *start, self.args, jac, diagonal=diagonal)
            except Exception:  # NumPy or sparse code: automatic differentiation gives the same
                logger.debug("jac cannot be traced: automatic differentiation is used instead.")
        return bind(function, *start, self.args, None, diagonal=diagonal)

    def _host_jacobian(
        self, function: Callable[[float, np.ndarray], np.ndarray]
    ) -> Callable[[float, np.ndarray, np.ndarray], np.ndarray] | None:
        """The user's Jacobian, or finite differences with SciPy's sparsity and band options."""
        options, embedding, arguments = self.options, self.embedding, self.args
        if self.solver.jacobian == "none":
            return None
        jac = options.jac

        def dense(matrix: Any) -> np.ndarray:
            return np.asarray(matrix.toarray() if hasattr(matrix, "toarray") else matrix)

        if callable(jac):
            return lambda t, y, f: embedding.jacobian(
                dense(jac(t, embedding.values(y), *arguments))
            ).astype(float)
        if jac is not None:
            constant = embedding.jacobian(dense(jac)).astype(float)
            return lambda t, y, f: constant
        columns = None
        if self.vectorized and not embedding.is_complex:
            columns = lambda t, states: np.asarray(  # noqa: E731
                self.fun(t, states, *arguments), float
            )
        return finite_difference_jacobian(
            function, columns, options.jac_sparsity, options.lband, options.uband
        )


def host_problem(user: UserFunction, n: int) -> HostProblem:
    """A function of ``n`` components for the error transport, called from Python."""
    return HostProblem(*user.on_host(n))


def on_real_form(event: events.Event, embedding: Embedding) -> events.Event:
    """An event on the real form of the state."""
    if not embedding.is_complex:
        return event
    function = event.function
    return event._replace(function=lambda t, y: function(t, embedding.values(y)))
