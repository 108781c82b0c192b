"""Traced programs as plain data, which can be pickled: a list of operations and what they read.

A program goes where its source cannot: into a file, to another process. Its operations are stored
by name with their settings, functions that it calls are written out; it is put together again by
tracing the list. Derivative rules that came with functions of the user's or of JAX (``custom_jvp``)
are not stored: where there are any, the Jacobian is stored as a program of its own.
"""

import pickle
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from probode.base import jax_inside
from probode.base.jax_inside import (
    Closed,
    Jaxpr,
    Unreadable,
    kind,
    operation,
    operations,
    program_of,
    reading,
    those,
    walk,
)
from probode.base.precision import double_precision
from probode.programs.field import Field
from probode.programs.program import Program

_LARGEST_JACOBIAN = 200
"""Components up to which a Jacobian is stored with its function."""


class NotStorable(Exception):
    """A program that holds something other than plain data."""


class Variable(NamedTuple):
    """Shape and type of an input."""

    shape: tuple[int, ...]
    dtype: str
    weak_type: bool

    @staticmethod
    def of(variable: Any) -> "Variable":
        """Those of a variable of a program."""
        shape, dtype, weak_type = kind(variable)
        if not isinstance(dtype, np.dtype):
            raise NotStorable(f"it has an input of type {dtype}")
        return Variable(tuple(shape), dtype.str, weak_type)

    def described(self) -> Any:
        """As JAX takes it."""
        return jax.ShapeDtypeStruct(self.shape, self.dtype, weak_type=self.weak_type)


class Known(NamedTuple):
    """A number or an array that the program holds."""

    value: Any
    variable: Variable


class Operation(NamedTuple):
    """``places = name(operands; settings)``; an operand is a place, or known."""

    name: str
    operands: tuple[Any, ...]
    settings: dict[str, Any]
    places: tuple[int, ...]


class Listed(NamedTuple):
    """A program; inputs, its constants first, have the first places."""

    constants: int
    inputs: tuple[Variable, ...]
    operations: tuple[Operation, ...]
    outputs: tuple[Any, ...]
    has_rules: bool
    closed: tuple[Any, ...] | None = None
    """The constants, of a program inside another one that holds them itself."""

    def traced(self, constants: Sequence[Any]) -> Any:
        """The program with its constants."""
        inputs = [x.described() for x in self.inputs]
        made = jax.make_jaxpr(self._run)(*inputs)
        closed = jax_inside.with_constants(made, self.constants, constants)
        if closed is not None:
            return closed
        return jax.make_jaxpr(lambda *given: self._run(*constants, *given))(
            *inputs[self.constants :]
        )

    def _run(self, *inputs: Any) -> list[Any]:
        values: dict[int, Any] = dict(enumerate(inputs))

        def read(atom: Any) -> Any:
            if not isinstance(atom, Known):
                return values[atom]
            shape, dtype, weak_type = atom.variable
            if weak_type and shape == ():
                return np.asarray(atom.value).item()
            return np.asarray(atom.value, dtype)

        for name, operands, settings, places in self.operations:
            primitive = operations()[name]
            given = {key: _loaded(value) for key, value in settings.items()}
            results = jax_inside.bind(primitive, list(map(read, operands)), given)
            values.update(zip(places, results, strict=True))
        return [read(atom) for atom in self.outputs]


class StoredField(NamedTuple):
    """A vector field as plain data."""

    program: Listed
    jacobian: Listed | None
    d: int
    constants: tuple[Any, ...]
    jacobian_constants: tuple[Any, ...]
    args: list[Any]
    reads: int = 1

    def field(self) -> Field:
        """The vector field."""
        with double_precision():
            program = self.program.traced(self.constants)
            jacobian = None
            if self.jacobian is not None:
                jacobian = self.jacobian.traced(self.jacobian_constants)
            return Field(
                Program(program.jaxpr),
                None if jacobian is None else Program(jacobian.jaxpr),
                self.d,
                tuple(map(jnp.asarray, program.consts)),
                () if jacobian is None else tuple(map(jnp.asarray, jacobian.consts)),
                self.args,
                reads=self.reads,
            )


class StoredFunction:
    """A vector field as plain data, as the function ``(t, y, *args)`` that it came from.

    Parameters
    ----------
    stored
        The vector field, with arguments of the same kinds.
    jacobian
        Be its Jacobian instead.
    """

    def __init__(self, stored: StoredField, jacobian: bool = False) -> None:
        self._stored, self._jacobian = stored, jacobian
        self._field: Field | None = None

    def __reduce__(self) -> Any:
        return type(self), (self._stored, self._jacobian)

    def __call__(self, t: Any, *given: Any) -> Any:
        """The value, in the shape of ``y``; or the Jacobian."""
        field, flat = self._bound(given)
        if self._jacobian:
            return field.user_jacobian(t, flat)
        return jnp.reshape(field(t, flat), jnp.shape(given[0]))

    def _bound(self, given: tuple[Any, ...]) -> tuple[Field, Any]:
        """The field with its parameters, and the state that it reads."""
        if self._field is None:
            self._field = self._stored.field()
        reads = self._field.reads
        flat = jnp.concatenate([jnp.reshape(y, -1) for y in given[:reads]])
        return self._field.with_arguments(given[reads:]), flat


class StoredValues(StoredFunction):
    """The same of functions whose values are not of the shape of ``y``: as a vector."""

    def __call__(self, t: Any, *given: Any) -> Any:
        """All values."""
        field, flat = self._bound(given)
        return field(t, flat)


def stored(field: Field) -> StoredField:
    """A vector field as plain data; raises :class:`NotStorable`."""
    program, jacobian = field.program, field.jacobian_program
    listed = listing(program.jaxpr)
    jacobian_constants = field.jacobian_constants
    own = None if jacobian is None else listing(jacobian.jaxpr)
    if own is None and listed.has_rules:
        if field.d > _LARGEST_JACOBIAN:
            raise NotStorable("it has derivative rules of its own, and many components")
        own, jacobian_constants = _jacobian(field)
    constants, jacobian_constants, args = (
        tuple(map(np.asarray, x)) for x in (field.constants, jacobian_constants, field.args)
    )
    return StoredField(listed, own, field.d, constants, jacobian_constants, list(args), field.reads)


def _jacobian(field: Field) -> tuple[Listed, tuple[Any, ...]]:
    """The Jacobian by the rules that the program has now, as a program of ``(t, y, *args)``."""

    def jacobian(t: Any, y: Any, *args: Any) -> Any:
        bound = Field(
            field.program, None, field.d, field.constants, (), list(args), reads=field.reads
        )
        return bound.jacobian(t, y)[1]

    with double_precision():
        t = jax.ShapeDtypeStruct((), float)
        y = jax.ShapeDtypeStruct((field.reads * field.d,), float)
        closed = jax_inside.trace(jacobian, t, y, *field.args)
    return listing(closed.jaxpr), tuple(closed.consts)


def listing(jaxpr: Jaxpr) -> Listed:
    """The operations of a program; raises :class:`NotStorable`."""
    try:
        with reading("programs that can be listed", "they are not stored", (NotStorable,)):
            return _listing(jaxpr)
    except Unreadable as error:
        raise NotStorable(str(error)) from error


def _listing(jaxpr: Jaxpr) -> Listed:
    writer, count = _Writer(), len(jaxpr.constvars)
    variables = (*jaxpr.constvars, *jaxpr.invars)
    places = writer.take(len(variables))
    own = set(map(id, jaxpr.constvars))  # literals have no hash

    def known(value: Any, variable: Any) -> Any:
        return value if id(variable) in own else Known(np.asarray(value), Variable.of(variable))

    outputs = walk(jaxpr, places[:count], places[count:], known, writer.write, writer.enter)
    described = tuple(map(Variable.of, variables))
    return Listed(count, described, tuple(writer.operations), tuple(outputs), writer.has_rules)


class _Writer:
    def __init__(self) -> None:
        self.operations: list[Operation] = []
        self.has_rules = False
        self._free = 0

    def take(self, count: int) -> tuple[int, ...]:
        self._free += count
        return tuple(range(self._free - count, self._free))

    def write(self, equation: Any, operands: list[Any]) -> Sequence[int]:
        """List an operation; returns the places of its results."""
        name, places = operation(equation), self.take(len(equation.outvars))
        settings = {key: self._setting(name, x) for key, x in equation.params.items()}
        if operations().get(name) is not equation.primitive or equation.effects:
            raise NotStorable(f"it has the operation {name!r}")
        self.operations.append(Operation(name, tuple(operands), settings, places))
        return places

    def enter(self, equation: Any) -> Closed | None:
        """Calls are written out, without derivative rules that come with them."""
        self.has_rules |= operation(equation) in those("rules")
        return jax_inside.called(equation)

    def _setting(self, name: str, value: Any) -> Any:
        program = program_of(value)
        if program is not None:
            inner = listing(program.jaxpr)
            self.has_rules |= inner.has_rules
            if not hasattr(value, "consts"):  # without values
                return inner
            return inner._replace(closed=tuple(map(np.asarray, program.consts)))
        if isinstance(value, tuple):
            items = [self._setting(name, item) for item in value]
            return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
        try:
            pickle.dumps(value)
        except Exception as error:  # anything may be in there
            raise NotStorable(f"it has the operation {name!r} with {value!r}") from error
        return value


def _loaded(value: Any) -> Any:
    """A setting as JAX takes it: programs put together again."""
    if isinstance(value, Listed):
        traced = value.traced(value.closed or ())
        return traced.jaxpr if value.closed is None else traced
    if isinstance(value, tuple) and not isinstance(value, Known | Variable):
        items = [_loaded(item) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
    return value
