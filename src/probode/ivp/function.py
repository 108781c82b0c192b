"""The user's function as the solvers see it: traced where possible, else called from Python.

A trace is remembered under what the function reads (``identity``). Once the same code has come with
other numbers, these become inputs of a second trace, which serves all numbers to come: a fit whose
residual defines the function again over its parameters compiles twice, not every time.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from probode.base.said import code_of, first_time, logger, name_of
from probode.engines.in_python import HostField
from probode.filter.solvers import Solver
from probode.global_error.in_python import HostProblem
from probode.ivp.jacobian import UserJacobian
from probode.ivp.options import Options
from probode.ivp.result import Embedding
from probode.model.invariant import Bounds
from probode.model.mass_matrix import MassMatrix
from probode.programs.arithmetic import Guard
from probode.programs.branches import may_switch
from probode.programs.field import Field, trace_field
from probode.programs.finite_differences import finite_difference_jacobian
from probode.programs.lifting import Shared
from probode.programs.memory import KNOWN, Key, key_for
from probode.programs.switches import NONE, Switches
from probode.programs.tracing import Numbers, Reason, as_jax, traceable_or_why
from probode.programs.tracing.evaluate import Evaluator
from probode.programs.tracing.verify import TOLERANCE, equals

_CHECKS = 8
"""Steps at which a function that may have changed is compared with its trace."""


def _say_untraceable(fun: Callable[..., Any], reason: Reason) -> None:
    if first_time("untraceable", code_of(fun)):
        logger.warning(
            "%s cannot be traced (%s). It is called from Python in every step, at a fraction of "
            "the speed.",
            name_of(fun),
            reason,
        )


class Traced(NamedTuple):
    """A vector field that compiles, and the way it was traced.

    ``checks`` is the number of steps at which the function is called again after a solve, to be
    compared with the trace.
    """

    field: Field
    path: str
    checks: int
    numbers: Numbers
    wrong_jac: str | None = None
    """Description of a wrong entry of the user's ``jac``, if there is one."""


class UserFunction(NamedTuple):
    """``fun(t, y, *args)`` and everything that came with it.

    Of an equation of order ``k`` it is ``fun(t, y, ..., y^(k-1), *args)``; what is made of it here
    takes all of these as one state ``u``, in real form.
    """

    fun: Callable[..., Any]
    args: tuple[Any, ...]
    vectorized: bool
    options: Options
    solver: Solver
    embedding: Embedding
    mass: Any = None
    """``M`` of ``M y' = fun(t, y)``; what is made of it here takes ``(y, y')``: ``M y' - fun``."""
    implicit: bool = False
    """Whether what is made of it is a residual of ``(y, y')``: with ``mass``, or as it is."""

    def traced(self, t0: float, t1: float, y0: np.ndarray) -> Traced | None:
        """Compiled through JAX, or ``None`` where only Python can evaluate the function.

        A function that was seen before, with the same code and the same values in reach, is
        neither traced nor compared with the original again.
        """
        key = key_for(
            "solve_ivp",
            (self.fun, self.options.jac, None if self.mass is None else _value_of(self.mass)),
            self.args,
            *(y0.shape, self.vectorized, self.embedding, self.solver.jacobian),
            *(self.options.lband, self.options.uband, self._box_key()),
        )
        found: Traced | None = KNOWN.get(
            key and key.exact,
            lambda: self._trace_or_share(key, t0, t1, y0),
            lambda found: found is None or (not found.numbers.values and found.field.may_be_kept()),
        )
        return found and found._replace(
            field=found.field.with_arguments(found.numbers.after(self.args))
        )

    def _trace_or_share(
        self, key: Key | None, t0: float, t1: float, y0: np.ndarray
    ) -> Traced | None:
        """Another function of the same code with the numbers of this one, or a new trace."""
        if key is None:
            return self._trace(t0, t1, y0, certain=False)
        shared: Shared = KNOWN.get(key.kind, lambda: Shared(key.signature))
        found = shared.get(key.signature, lambda numbers: self._trace(t0, t1, y0, numbers))
        return found or self._trace(t0, t1, y0)

    def _trace(
        self,
        t0: float,
        t1: float,
        y0: np.ndarray,
        numbers: Numbers | None = None,
        *,
        certain: bool = True,
    ) -> Traced | None:
        lifted, single = numbers or Numbers({}), self._single()
        found = traceable_or_why(single, (t0, t1), y0, self.args, numbers=lifted)
        jacobian, wrong = self._jacobian(), None
        if jacobian is not None and numbers is None:
            wrong = jacobian.check(single, self.args, (t0, t1), y0)
        if isinstance(found, Reason):
            if numbers is None:
                _say_untraceable(self.fun, found)
            return None
        checks = 0 if found.is_of_jax else _CHECKS if not certain else int(found.is_cheap)
        checks = checks and (_CHECKS if self.implicit else checks)
        field = self._field(self._inside(found.function), t0, y0, lifted)
        return Traced(field, found.path, checks, lifted, wrong)

    def still_holds(self, traced: Traced, t: np.ndarray, mean: np.ndarray) -> bool:
        """Whether Python gives the values of the trace at steps of a solve.

        ``mean`` has the state and its derivatives; at the start the first of these is the value.
        """
        if traced.checks == 0:
            return True
        field = traced.field
        order, d = field.reads, self.embedding.d
        states = mean[:, 0] if order == 1 else mean[:, :order].reshape(len(mean), -1)
        guard = Guard(self.fun, float(t[0]), np.asarray(states[0]))
        single = guard.over(self._inside(self._single()), (d,))

        def value(i: int) -> np.ndarray:
            y = np.array(states[i])
            if self.mass is None:
                return np.asarray(single(float(t[i]), y, *self.args), float).reshape(-1)
            y, slope = np.split(y, 2)
            found = np.asarray(single(float(t[i]), y, *self.args), float).reshape(-1)
            matrix = self.mass(float(t[i]), y, *self.args) if callable(self.mass) else self.mass
            matrix = np.asarray(matrix, float)
            return (matrix * slope if matrix.ndim == 1 else matrix @ slope) - found

        with np.errstate(all="ignore"):
            if traced.checks == 1:
                found = value(0)
                if (np.abs(found - mean[0, order]) <= TOLERANCE * np.abs(found)).all():
                    return True
            program = Evaluator(field.program.closed(field.constants))
            some = np.unique(np.linspace(0, len(t) - 1, traced.checks).astype(int))
            holds = all(
                equals(program, value(i), np.float64(t[i]), np.asarray(states[i]), *field.args)
                for i in some
            )
        if not holds:
            logger.warning(
                "%s gives other values now than when it was traced: it reads something that has "
                "changed since. The solver is driven from Python, at a fraction of the speed.",
                name_of(self.fun),
            )
        return holds

    def on_host(self, guard: Guard, n: int) -> HostField:
        """Called from Python, with the user's Jacobian or finite differences.

        ``n`` are the components of its values.
        """
        single, arguments = self._inside(self._single()), self.args

        def call(t: float, y: np.ndarray) -> np.ndarray:
            value = np.asarray(single(t, y.copy(), *arguments), float)
            if value.shape != (n,):
                if n == value.size == 1:  # a number, for one component
                    return value.reshape(1)
                raise ValueError(
                    f"`fun` must return an array of shape {(n,)} (that of `y0`), got {value.shape}."
                )
            return value

        function = guard.over(call, (n,))
        return HostField(function, self._host_jacobian(function, guard, n))

    def slope(self, t0: float, y0: np.ndarray) -> np.ndarray | None:
        """``u'`` at the start, of all that an initial value holds: ``(y', ..., f)``, if known."""
        if self.implicit:
            return None
        d = self.embedding.d
        highest = self.on_host(Guard(self.fun, t0, y0), d).function(t0, y0)
        return np.concatenate([y0[d:], highest])

    @property
    def switches(self) -> Switches:
        """Unknown ones: a function that only Python can evaluate does not tell when it switches."""
        return Switches(True, NONE, NONE, finely=may_switch(self.fun))

    def _inside(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """``function(t, y, *args)`` asked within the bounds only."""
        box: Bounds | None = self.options.bounds
        return function if box is None else box.around(function)

    def _box_key(self) -> Any:
        box: Bounds | None = self.options.bounds
        return None if box is None else np.stack([box.low, box.high]).tobytes()

    def _single(self) -> Callable[..., Any]:
        """``fun`` for one state in real form."""
        fun, vectorized, embedding = self.fun, self.vectorized, self.embedding
        n = embedding.n
        if not vectorized and not embedding.is_complex and embedding.order == 1:
            return fun

        def single(t: Any, y: Any, *args: Any) -> Any:
            parts = embedding.parts(y)
            value = fun(t, *(part[:, None] if vectorized else part for part in parts), *args)
            xp: Any = jnp if _is_of_jax(value) else np
            if vectorized or n == 1:
                value = xp.reshape(xp.asarray(value), (n,))
            if embedding.is_complex:
                value = xp.asarray(value)
                return xp.concatenate([xp.real(value), xp.imag(value)])
            return value

        return single

    def _field(
        self, function: Callable[..., Any], t0: float, y0: np.ndarray, numbers: Numbers
    ) -> Field:
        """Return the traced problem with the exact Jacobian, or with the user's if JAX has none."""
        order, mass = self.embedding.order, self.mass
        arguments = numbers.after(self.args)
        start: Any = np.asarray(y0 if order == 1 else y0.reshape(order, -1))
        function = _of_parts(function, order)
        if mass is not None:
            mass = as_jax(mass, numbers) if callable(mass) else mass
            order, start = 2, np.stack([start, np.zeros_like(start)])

        def traced(jac: Any) -> Field:
            of_both: Any = function
            if mass is not None:
                of_both, jac = MassMatrix(function, mass).traced(jac)
            t: Any = np.asarray(t0)
            diagonal = self.solver.jacobian == "diagonal" and mass is None
            return trace_field(
                of_both, t, start, arguments, jac, diagonal=diagonal, name="fun", reads=order
            )

        exact, jacobian = traced(None), self._jacobian()
        if jacobian is None or self.embedding.is_complex or exact.is_differentiable(t0):
            return exact
        jac = jacobian(t0, y0)
        if callable(jacobian.jac):
            known = jacobian._replace(jac=as_jax(jacobian.jac, numbers))
            jac = known.__call__ if mass is not None else _of_parts(known.__call__, order)
        try:
            return traced(jac)
        except Exception:  # NumPy or sparse code
            return exact

    def _jacobian(self) -> UserJacobian | None:
        """The user's Jacobian, where there is one and the solver uses it."""
        if self.options.jac is None or self.solver.jacobian in ("none", "sparse"):
            return None
        diagonal = self.solver.jacobian == "diagonal" and not self.embedding.is_complex
        jac = self.options.jac
        jac = self._inside(jac) if callable(jac) else jac
        return UserJacobian(jac, self.options, self.embedding, diagonal)

    def _host_jacobian(
        self, function: Callable[[float, np.ndarray], np.ndarray], guard: Guard, n: int
    ) -> Callable[[float, np.ndarray, np.ndarray], np.ndarray] | None:
        """The user's Jacobian, or finite differences with SciPy's sparsity and band options."""
        options, embedding, arguments = self.options, self.embedding, self.args
        if self.solver.jacobian in ("none", "sparse"):
            return None
        jacobian = self._jacobian()
        if jacobian is not None:
            if callable(jacobian.jac):
                matrix = guard.over(jacobian.on_real_form, (n, n * embedding.order))
                return lambda t, y, f: matrix(t, y, arguments)
            constant = jacobian.on_real_form(0.0, np.zeros(2 * embedding.size), arguments)
            return lambda t, y, f: constant
        columns: Any = None
        if self.vectorized and not embedding.is_complex and options.bounds is None:

            def columns(t: float, states: np.ndarray) -> np.ndarray:
                parts = np.split(states, embedding.order)
                try:
                    return np.asarray(self.fun(t, *parts, *arguments), float)
                except (ArithmeticError, ValueError):  # at one of them, perhaps
                    return np.stack([function(t, state) for state in states.T], axis=1)

        return finite_difference_jacobian(
            function, columns, options.jac_sparsity, options.lband, options.uband
        )


def _is_of_jax(value: Any) -> bool:
    """Whether a function returned an array of JAX, or a list that holds one."""
    if isinstance(value, list | tuple):
        return any(map(_is_of_jax, value))
    return isinstance(value, jax.Array)


def _of_parts(function: Callable[..., Any], order: int) -> Callable[..., Any]:
    """``function(t, u, *args)`` as one of ``t``, ``y, ..., y^(k-1)`` and ``args``."""
    if order == 1:
        return function

    def of_parts(t: Any, *rest: Any) -> Any:
        return function(t, jnp.concatenate(rest[:order]), *rest[order:])

    return of_parts


def _value_of(mass: Any) -> Any:
    """Something that a key tells apart by its numbers."""
    return mass if callable(mass) else lambda: mass


def host_problem(user: UserFunction, t0: float, y0: np.ndarray) -> HostProblem:
    """The function for the error transport, called from Python."""
    return HostProblem(*user.on_host(Guard(user.fun, t0, y0), user.embedding.d))
