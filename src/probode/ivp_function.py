"""The user's function as the solvers see it: traced where possible, else called from Python."""

import logging
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from probode import events
from probode.finite_differences import finite_difference_jacobian
from probode.host import HostField
from probode.identity import Memory, key_of, key_of_arguments
from probode.ivp_jacobian import UserJacobian
from probode.ivp_options import Options
from probode.ivp_result import Embedding
from probode.problem import Field, bind
from probode.solvers import Solver
from probode.tracing import make_traceable

logger = logging.getLogger("probode")

_KNOWN_FUNCTIONS = Memory(256)
"""Functions that were traced before, or found to be untraceable."""


_SAID: deque[Any] = deque(maxlen=256)
"""Code of functions that the user was told about: closures made by one line are one function."""


def _say_untraceable(fun: Callable[..., Any]) -> None:
    code = getattr(fun, "__code__", type(fun))
    if code in _SAID:
        return
    _SAID.append(code)
    logger.warning(
        "%s cannot be traced: the solver is driven from Python, at a fraction of the speed. Write "
        "branches on values (if, max, min, float) as numpy.where, numpy.maximum and the like; of "
        "SciPy, special functions, linear algebra and interpolators of one variable are known.",
        getattr(fun, "__name__", "the function"),
    )


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
                (self.options.lband, self.options.uband),
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
        single = self._single()
        traceable = make_traceable(single, (t0, t1), y0, self.args)
        jacobian = self._jacobian()
        if jacobian is not None:
            jacobian.check(single, self.args, t0, y0)
        if traceable is None:
            _say_untraceable(self.fun)
            return None
        return Traced(self._field(traceable.function, t0, y0), traceable.path)

    def on_host(self, n: int) -> HostField:
        """Called from Python, with the user's Jacobian or finite differences."""
        single, arguments = self._single(), self.args

        def function(t: float, y: np.ndarray) -> np.ndarray:
            value = np.asarray(single(t, y.copy(), *arguments), float)
            if value.shape != (n,):
                if n == value.size == 1:  # a number, for one component
                    return value.reshape(1)
                raise ValueError(
                    f"`fun` must return an array of shape {(n,)} (that of `y0`), got {value.shape}."
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
            if vectorized or n == 1:
                value = np.reshape(value, (n,))
            if embedding.is_complex:
                value = np.asarray(value)
                return np.concatenate([np.real(value), np.imag(value)])
            return value

        return single

    def _field(self, function: Callable[..., Any], t0: float, y0: np.ndarray) -> Field:
        """The traced problem; the user's Jacobian where it can be traced, else the exact one."""
        start = (jnp.asarray(t0), jnp.asarray(y0))
        diagonal, jacobian = self.solver.jacobian == "diagonal", self._jacobian()
        if jacobian is not None and not self.embedding.is_complex:
            jac = jacobian.__call__ if callable(jacobian.jac) else jacobian(t0, y0)
            try:
                return bind(function, *start, self.args, jac, diagonal=diagonal, name="fun")
            except Exception:  # NumPy or sparse code: automatic differentiation gives the same
                logger.debug("jac cannot be traced: automatic differentiation is used instead.")
        return bind(function, *start, self.args, None, diagonal=diagonal, name="fun")

    def _jacobian(self) -> UserJacobian | None:
        """The user's Jacobian, where there is one and the solver uses it."""
        if self.options.jac is None or self.solver.jacobian == "none":
            return None
        diagonal = self.solver.jacobian == "diagonal" and not self.embedding.is_complex
        return UserJacobian(self.options.jac, self.options, self.embedding, diagonal)

    def _host_jacobian(
        self, function: Callable[[float, np.ndarray], np.ndarray]
    ) -> Callable[[float, np.ndarray, np.ndarray], np.ndarray] | None:
        """The user's Jacobian, or finite differences with SciPy's sparsity and band options."""
        options, embedding, arguments = self.options, self.embedding, self.args
        if self.solver.jacobian == "none":
            return None
        jacobian = self._jacobian()
        if jacobian is not None:
            if callable(jacobian.jac):
                return lambda t, y, f: jacobian.on_real_form(t, y, arguments)
            constant = jacobian.on_real_form(0.0, np.zeros(2 * embedding.n), arguments)
            return lambda t, y, f: constant
        columns = None
        if self.vectorized and not embedding.is_complex:
            columns = lambda t, states: np.asarray(  # noqa: E731
                self.fun(t, states, *arguments), float
            )
        return finite_difference_jacobian(
            function, columns, options.jac_sparsity, options.lband, options.uband
        )


def on_real_form(event: events.Event, embedding: Embedding) -> events.Event:
    """An event on the real form of the state."""
    if not embedding.is_complex:
        return event
    function = event.function
    return event._replace(function=lambda t, y: function(t, embedding.values(y)))
