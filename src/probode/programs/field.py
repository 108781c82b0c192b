"""The user's ODE as the solvers see it: a vector field on flat vectors, and its Jacobian."""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from probode.base.compile import compiled
from probode.base.jax_inside import Opaque, Unreadable
from probode.base.precision import inside_trace, is_traced
from probode.base.record import record, static
from probode.programs.jacobian_check import points_near
from probode.programs.memory import KNOWN, key_for
from probode.programs.program import (
    NEEDS_VALUES,
    Program,
    is_numeric,
    is_whole,
    numbers_of,
    of_data,
    trace,
    with_data,
)

DIAGONAL_LIMIT = 10_000
"""Above this dimension the diagonal of a Jacobian is not computed by d products."""

_PRODUCTS_AT_ONCE = 64

_LARGEST_KEPT = 100_000


@record
class Field:
    """``f(t, y)`` with values of length ``d``, with parameters and Jacobian bound.

    ``y`` is flat; it holds ``reads`` arrays of length ``d``: of an equation of higher order, the
    derivatives that its function takes.

    The programs are static (compared by what they compute), everything else is data.
    """

    program: Program = static()
    jacobian_program: Program | None = static()
    d: int = static()
    constants: tuple[Any, ...]
    jacobian_constants: tuple[Any, ...]
    args: list[Any]
    guarded: bool = static(default=False)
    """Whether entries of the Jacobian that are not finite are taken as zero."""
    reads: int = static(default=1)

    def __call__(self, t: Array, y: Float[Array, " d"]) -> Float[Array, " d"]:
        """Evaluate the vector field."""
        return self.program(self.constants, t, y, *self.args)

    def jacobian(self, t: Array, y: Array) -> tuple[Array, Float[Array, "d m"]]:
        """``f`` and ``∂f/∂y`` at ``(t, y)``."""
        if self.jacobian_program is not None:
            return self(t, y), self._finite(self.user_jacobian(t, y))

        def product(direction: Array) -> tuple[Array, Array]:
            return jax.jvp(lambda y: self(t, y), (y,), (direction,))

        value, jacobian = jax.vmap(product, out_axes=(None, 1))(jnp.eye(self.reads * self.d))
        return value, self._finite(jacobian)

    def jacobian_diagonal(self, t: Array, y: Array) -> tuple[Array, Float[Array, " m"]]:
        """``f`` and the diagonal of ``∂f/∂y``: exact, by one product for each component.

        Of a function of several derivatives, the diagonals of its Jacobians by each of them.
        """
        every = np.arange(self.reads * self.d)
        rows = every % self.d
        if self.jacobian_program is not None:
            jacobian = self.user_jacobian(t, y)
            jacobian = jacobian[rows, every] if jacobian.ndim == 2 else jacobian
            return self(t, y), self._finite(jacobian)

        def product(direction: Array) -> Array:
            return jax.jvp(lambda y: self(t, y), (y,), (direction,))[1]

        def entry(i: Array) -> Array:
            return product(jnp.zeros(len(every)).at[i].set(1.0))[i % self.d]

        if len(every) <= _PRODUCTS_AT_ONCE:  # all directions are constants: nothing to compile
            diagonal = jax.vmap(product)(jnp.asarray(np.eye(len(every)), y.dtype))[every, rows]
        else:
            diagonal = jax.lax.map(entry, jnp.asarray(every), batch_size=_PRODUCTS_AT_ONCE)
        return self(t, y), self._finite(diagonal)

    def is_differentiable(self, t: Any) -> bool:
        """Whether JAX knows the derivatives of everything that the program does."""
        y = jax.ShapeDtypeStruct((self.reads * self.d,), float)
        try:
            jax.eval_shape(lambda t, y: jax.jvp(lambda y: self(t, y), (y,), (y,)), t, y)
        except Exception:  # a callback, or a while loop of the user's own
            return False
        return True

    def guard(self) -> "Field":
        """The same with zeros for what is not finite in its Jacobian."""
        return replace(self, guarded=True)

    def _finite(self, jacobian: Array) -> Array:
        return jnp.where(jnp.isfinite(jacobian), jacobian, 0.0) if self.guarded else jacobian

    @property
    def calls_libraries(self) -> bool:
        """Whether one of the programs has decompositions or transforms."""
        programs = (self.program, self.jacobian_program)
        return any(program is not None and program.calls_libraries for program in programs)

    def has_derivatives(self, t: Array, y: Array) -> bool:
        """Whether JAX can differentiate ``f``: a ``pure_callback`` in it may have no rule."""
        try:
            if "pure_callback" not in self.program.operations():
                return True
            jax.eval_shape(lambda y: jax.jvp(partial(self, t), (y,), (y,)), y)
        except Unreadable:
            return True
        except ValueError:
            return False
        return True

    def may_be_kept(self) -> bool:
        """Whether what the vector field closes over is small, and outlives the trace it is in."""
        arrays = (*self.constants, *self.jacobian_constants)
        if isinstance(self.program.jaxpr, Opaque) and inside_trace():
            return False  # it may close over anything
        return not is_traced(arrays) and sum(array.size for array in arrays) <= _LARGEST_KEPT

    def with_arguments(self, args: tuple[Any, ...]) -> "Field":
        """The same field with other parameters, of the same types."""
        leaves = jax.tree.leaves(tuple(args))
        numbers = [numbers_of(leaves[i]) for i in self.data_leaves(args)]
        data = [leaf if isinstance(leaf, jax.Array) else np.asarray(leaf) for leaf in numbers]
        return Field(
            self.program,
            self.jacobian_program,
            self.d,
            self.constants,
            self.jacobian_constants,
            data,
            self.guarded,
            self.reads,
        )

    def data_leaves(self, args: tuple[Any, ...]) -> list[int]:
        """Which leaves of the parameters are data: the others are part of the program."""
        leaves = list(enumerate(jax.tree.leaves(tuple(args))))
        numbers = [i for i, leaf in leaves if is_numeric(leaf)]
        if len(numbers) != len(self.args):  # whole numbers are part of the program
            numbers = [i for i, leaf in leaves if is_numeric(leaf) and not is_whole(leaf)]
        return numbers

    def user_jacobian(self, t: Array, y: Array) -> Array:
        """What the user's own Jacobian gives: a matrix, or its diagonal."""
        assert self.jacobian_program is not None
        return self.jacobian_program(self.jacobian_constants, t, y, *self.args)


def bind(
    vector_field: Callable[..., Any] | None,
    t0: Array,
    y0: Array,
    args: tuple[Any, ...],
    jac: Callable[..., Any] | Any | None,
    *,
    diagonal: bool,
    name: str = "vector_field",
    reads: int = 1,
) -> Field:
    """Trace ``vector_field(t, y, *args)`` (and ``jac``) on flat vectors, or recall its trace.

    ``diagonal`` says that the solver needs the diagonal of the Jacobian only; ``jac`` may then
    return just that. ``name`` is what messages call the vector field. With ``reads`` above one,
    ``y0`` holds that many arrays along its first axis, and the vector field takes them one by one.
    """

    def traced() -> Field:
        return trace_field(
            vector_field, t0, y0, args, jac, diagonal=diagonal, name=name, reads=reads
        )

    if is_traced(t0, y0) or not isinstance(args, tuple | list):
        return traced()
    key = key_for("field", (vector_field, jac), args, y0.shape, diagonal, reads)
    field: Field = KNOWN.get(key and key.exact, traced, Field.may_be_kept)
    field = field.with_arguments(args)
    if jac is None or is_traced(field) or inside_trace() or _has_right_jacobian(field, t0, y0):
        return field
    warnings.warn(
        f"`jac` is not the derivative of {name} near the start: the exact derivative is used "
        "instead. (Is `jac` transposed, or in another order than `y`?)",
        stacklevel=3,
    )
    return replace(field, jacobian_program=None, jacobian_constants=())


_WRONG = 0.01
"""Largest part of a product by which a user's Jacobian may differ."""


def _has_right_jacobian(field: Field, t0: Array, y0: Array) -> bool:
    """Whether the user's Jacobian times some directions agrees with JAX's derivative.

    They are compared at points near the start, since terms may vanish at the start itself. Values
    that are not finite, and functions without a derivative in JAX, are not judged.
    """
    if not field.is_differentiable(t0):
        return True
    start = np.ravel(np.asarray(y0))
    for k, (t, y) in enumerate(points_near(float(t0), float(t0), start)):
        direction = (y - start) * np.where(np.arange(y.size) % 3 == k, -1.0, 1.0)
        given, exact, size = (np.asarray(x) for x in _products(field, t, y, direction))
        judged = np.isfinite(given) & np.isfinite(exact)
        if np.any(judged & (np.abs(given - exact) > _WRONG * np.maximum(size, np.abs(exact)))):
            return False
    return True


@compiled()
def _products(field: Field, t: Array, y: Array, v: Array) -> tuple[Array, Array, Array]:
    """The user's Jacobian times ``v``, the exact one times ``v``, and the size of the terms.

    Of a diagonal, the diagonals of both, for as many components as are cheap.
    """
    matrix = field.user_jacobian(t, y)

    def product(v: Array) -> Array:
        return jax.jvp(lambda y: field(t, y), (y,), (v,))[1]

    if matrix.ndim == 2:
        return matrix @ v, product(v), jnp.abs(matrix) @ jnp.abs(v)
    some = np.unique(np.linspace(0, len(y) - 1, _PRODUCTS_AT_ONCE).astype(int))
    columns = jax.vmap(product)(jnp.asarray(np.eye(len(y))[some]))
    return matrix[some], columns[np.arange(len(some)), some % field.d], jnp.abs(matrix[some])


def trace_field(
    vector_field: Callable[..., Any] | None,
    t0: Array,
    y0: Array,
    args: tuple[Any, ...],
    jac: Callable[..., Any] | Any | None,
    *,
    diagonal: bool,
    name: str = "vector_field",
    reads: int = 1,
) -> Field:
    """The same, traced anew."""
    if not callable(vector_field):
        raise TypeError(
            f"{name} must be a function f(t, y, *args), got {type(vector_field).__name__}."
        )
    if not isinstance(args, tuple | list):
        raise TypeError(
            f"args must be a tuple of parameters, got {type(args).__name__}. "
            "For a single parameter write args=(parameter,)."
        )
    shape = y0.shape if reads == 1 else y0.shape[1:]
    d = y0.size // reads
    leaves, tree = jax.tree.flatten(tuple(args))

    def check_value(value: Any) -> Array:
        return _real(value, name, (shape,), one_value=d == 1).reshape(d)

    def check_jacobian(value: Any) -> Array:
        m = reads * d
        expected = ((m,), (d, m)) if diagonal else ((d, m),)
        return _real(value, "jac", expected)

    def trace_both(is_data: Callable[[Any], bool]) -> Field:
        """Trace with those parameters as data that ``is_data`` says; the others are constants."""
        data = [jnp.asarray(numbers_of(leaf)) for leaf in leaves if is_data(leaf)]

        def trace_one(function: Callable[..., Any], check: Callable[[Any], Array]) -> Any:
            def evaluate(t: Array, y: Array, *parameters: Any) -> Array:
                given = [y] if reads == 1 else jnp.split(y, reads)
                return check(function(t, *(part.reshape(shape) for part in given), *parameters))

            return _trace(of_data(evaluate, leaves, tree, is_data), t0, y0.reshape(-1), data)

        program, constants = trace_one(vector_field, check_value)
        if jac is None:
            return Field(program, None, d, constants, (), data, reads=reads)
        jacobian = jac if callable(jac) else lambda t, y, *args: jnp.asarray(jac)
        jacobian_program, jacobian_constants = trace_one(jacobian, check_jacobian)
        return Field(program, jacobian_program, d, constants, jacobian_constants, data, reads=reads)

    if jac is not None and not callable(jac):
        jac = _matrix(jac)
    if diagonal and jac is None and d > DIAGONAL_LIMIT:
        raise ValueError(
            f"DiagonalEK1 needs the diagonal of the Jacobian, and y0 has {d} components: computing "
            f"it by d products is refused above d = {DIAGONAL_LIMIT}. Pass jac=, a function "
            "(t, y, *args) that returns the diagonal, or use EK0."
        )
    field: Field = with_data(leaves, trace_both)
    return field


def bind_values(
    functions: Sequence[Callable[..., Any]],
    arranged: Callable[[Callable[..., Any]], Callable[..., Any]],
    t0: Array,
    y0: Array,
    args: tuple[Any, ...],
    *,
    name: str,
    reads: int = 1,
) -> Field:
    """The values of ``functions`` one after the other, ``(k,)``, as a function of flat vectors.

    Each returns a number or an array; ``arranged`` says how it takes ``(t, y, *args)``. The rest is
    as in :func:`bind`; there is no Jacobian with it.
    """
    shape = y0.shape if reads == 1 else y0.shape[1:]
    leaves, tree = jax.tree.flatten(tuple(args))

    def evaluate(t: Array, y: Array, *parameters: Any) -> Array:
        parts = [part.reshape(shape) for part in ([y] if reads == 1 else jnp.split(y, reads))]
        found = [arranged(one)(t, *parts, *parameters) for one in functions]
        return jnp.concatenate([_real(value, name, None).reshape(-1) for value in found])

    def attempt(is_data: Callable[[Any], bool]) -> Field:
        data = [jnp.asarray(numbers_of(leaf)) for leaf in leaves if is_data(leaf)]
        flat: Any = y0.reshape(-1)
        program, constants = _trace(of_data(evaluate, leaves, tree, is_data), t0, flat, data)
        count = jax.eval_shape(partial(program, constants), t0, flat, *data).shape[0]
        return Field(program, None, count, constants, (), data, reads=reads)

    def traced() -> Field:
        found: Field = with_data(leaves, attempt)
        return found

    if is_traced(t0, y0):
        return traced()
    key = key_for(name, tuple(functions), args, y0.shape, reads)
    field: Field = KNOWN.get(key and key.exact, traced, Field.may_be_kept)
    return field.with_arguments(args)


def _matrix(jac: Any) -> np.ndarray:
    try:
        return np.asarray(jac, float)
    except (TypeError, ValueError):
        raise TypeError(
            f"jac must be a function (t, y, *args) or a constant matrix, got {jac!r}."
        ) from None


def _trace(function: Callable[..., Array], t: Array, y: Array, data: list[Any]) -> Any:
    try:
        return trace(function, t, y, *data)
    except NEEDS_VALUES as error:
        error.add_note(
            "probode.solve traces the functions it is given with JAX: write them with jax.numpy "
            "instead of numpy, and replace value-dependent branches by jnp.where or jax.lax.cond. "
            "probode.solve_ivp takes plain NumPy and Python functions as they are."
        )
        raise


def check_returned(value: Any, who: str, shape: tuple[int, ...]) -> None:
    """Raise if this is not what a vector field for a ``y`` of this shape returns."""
    _real(value, who, (shape,), one_value=int(np.prod(shape)) == 1)


def _real(
    value: Any, who: str, shapes: tuple[tuple[int, ...], ...] | None, *, one_value: bool = False
) -> Array:
    """Check what a user's function returned and convert it to float64.

    ``one_value``: a single number of any shape will do. Without ``shapes`` any shape will.
    """
    if value is None:
        raise TypeError(f"{who} returned None: does it end with a return statement?")
    try:
        array = jnp.asarray(value)
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"{who} must return {_described(shapes)}, got {type(value).__name__} that does not "
            f"convert to one: {error}"
        ) from None
    if jnp.issubdtype(array.dtype, jnp.complexfloating):
        raise TypeError(f"{who} must return real numbers, got {array.dtype}: embed as (Re, Im).")
    if shapes is None:
        return array.astype(jnp.float64)
    if array.shape not in shapes and not (one_value and array.size == 1):
        raise ValueError(
            f"{who} must return an array of shape {_or(shapes)} (that of y0), got {array.shape}."
            if who != "jac"
            else f"{who} must return an array of shape {_or(shapes)}, got {array.shape}."
        )
    return array.astype(jnp.float64)


def _described(shapes: tuple[tuple[int, ...], ...] | None) -> str:
    return "a number or an array" if shapes is None else f"an array of shape {_or(shapes)}"


def _or(shapes: tuple[tuple[int, ...], ...]) -> str:
    return " or ".join(map(str, shapes))
