"""Programs of JAX's: traced, looked into."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from probode.base.jax_inside.known import CALLS, HARMLESS, PARAMETERS, those
from probode.base.jax_inside.loans import borrowed, say

Jaxpr = Any
"""A program of JAX's, without what it closes over."""


class Unreadable(Exception):
    """A program that this version of JAX writes in another way than those that are known."""


class Closed(NamedTuple):
    """A program with what it closes over."""

    jaxpr: Jaxpr
    consts: Sequence[Any]


class Opaque:
    """A function in the place of a program that cannot be read."""

    def __init__(self, function: Callable[..., Any], text: str) -> None:
        self.function, self.text = function, text

    def __str__(self) -> str:
        return self.text

    @property
    def eqns(self) -> Any:
        """Not to be had."""
        raise Unreadable("a program that cannot be read")

    constvars = invars = outvars = eqns


def trace(function: Callable[..., Any], *inputs: Any) -> Closed:
    """``function`` as a program; one that is only good for running where it cannot be read."""
    closed = jax.make_jaxpr(function)(*inputs)
    if not readable():
        return Closed(Opaque(function, str(closed)), ())
    return Closed(_without_values(closed), closed.consts)


def _without_values(closed: Any) -> Jaxpr:
    """The program alone: since JAX 0.12 it holds on to what it closes over."""
    if closed.jaxpr is not closed:
        return closed.jaxpr
    return type(closed)(closed, [None] * len(closed.consts)) if closed.consts else closed


@lru_cache(maxsize=1)
def readable() -> bool:
    """Whether programs look as they are expected to."""
    table = np.zeros(2, np.float32)
    try:
        closed = jax.make_jaxpr(lambda x: jnp.sin(x) * table + 1.0)(table)
        jaxpr = closed.jaxpr
        names = [equation.primitive.name for equation in jaxpr.eqns]
        (sine, _, add), (one, constant) = jaxpr.eqns, (jaxpr.eqns[-1].invars[1], jaxpr.constvars[0])
        known = (
            names == ["sin", "mul", "add"]
            and sine.invars == jaxpr.invars
            and add.outvars == jaxpr.outvars
            and constant in jaxpr.eqns[1].invars
            and (is_literal(one) and not is_literal(constant) and float(one.val) == 1.0)
            and all(kind(v) == ((2,), np.dtype("float32"), False) for v in (constant, *add.outvars))
            and all(isinstance(equation.params, dict) for equation in jaxpr.eqns)
            and len(closed.consts) == len(jaxpr.constvars) == 1
        )
    except Exception:  # whatever it looks like
        known = False
    if not known:
        say(
            "programs in the form that is known",
            "functions are compiled anew for each solve, evaluated by XLA step by step, and steps "
            "do not stop at their switches in time",
        )
    gone = {"jit", "custom_jvp_call", *PARAMETERS} - those("optional") - operations().keys()
    if gone and operations():
        listed = ", ".join(sorted(gone))
        say(f"the operations {listed}", "what is there instead is evaluated by XLA")
    return known


@lru_cache(maxsize=1)
def operations() -> dict[str, Any]:
    """JAX's operations by name: those with derivatives, and those that it names."""
    derivatives = borrowed("jax.interpreters.ad", "primitive_jvps")
    named = borrowed("jax.extend.core", "primitives")
    if derivatives is None or named is None:
        say("a list of its operations", "functions without a name cannot be stored")
    found = {name: getattr(named, name) for name in dir(named) if name.endswith("_p")}
    return {primitive.name: primitive for primitive in (*(derivatives or ()), *found.values())}


@contextmanager
def reading(what: str, instead: str, expected: tuple[type[Exception], ...] = ()) -> Iterator[None]:
    """Look into programs: what fails there, but for ``expected``, becomes :class:`Unreadable`.

    ``what`` is looked for, ``instead`` is done if it is not found, and both are announced.
    """
    try:
        yield
    except expected:
        raise
    except Exception as error:
        say(what, instead)
        raise Unreadable(f"{what}: {type(error).__name__}: {error}") from error


def is_literal(atom: Any) -> bool:
    """Whether an operand is a number written into the program."""
    return hasattr(atom, "val")


def kind(variable: Any) -> tuple[tuple[int, ...], Any, bool]:
    """Shape, type, and whether the type gives way to others."""
    aval = variable.aval
    return aval.shape, aval.dtype, getattr(aval, "weak_type", False)


def operation(equation: Any) -> str:
    """The name of an operation; an unknown one if it has parameters that were not there before.

    A rule that does not know a parameter (one that says something: not ``None``) might compute
    something else.
    """
    name: str = equation.primitive.name
    known = PARAMETERS.get(name)
    if known is None or known.issuperset(equation.params):
        return name
    unknown = set(equation.params) - known - HARMLESS
    new = ", ".join(sorted(key for key in unknown if equation.params[key] is not None))
    if not new:
        return name
    say(f"{name!r} without the parameter {new}", "programs with it are evaluated by XLA")
    return f"{name}({new})"


@lru_cache(maxsize=1)
def library_calls() -> frozenset[str]:
    """Names of decompositions and transforms, which libraries do: documented as functions only."""
    own = [value for name, value in vars(jax.lax.linalg).items() if name.endswith("_p")]
    return those("library") | {getattr(primitive, "name", "") for primitive in own}


def program_of(value: Any) -> Closed | None:
    """The program that a parameter of an equation holds, if it does."""
    if not hasattr(value, "eqns"):
        return None
    return Closed(getattr(value, "jaxpr", value), getattr(value, "consts", ()))


def programs_in(params: dict[str, Any]) -> list[Closed]:
    """All programs among the parameters of an equation."""
    values = [v for x in params.values() for v in (x if isinstance(x, tuple | list) else [x])]
    return [found for found in map(program_of, values) if found is not None]


def called(equation: Any) -> Closed | None:
    """The program that an equation calls, if that is all it does."""
    name = operation(equation)
    return program_of(equation.params.get(CALLS[name])) if name in CALLS else None


def equations(jaxpr: Jaxpr) -> Iterator[Any]:
    """The equations of a program, and of all programs inside."""
    for equation in jaxpr.eqns:
        yield equation
        for inner in programs_in(equation.params):
            yield from equations(inner.jaxpr)


def walk(
    jaxpr: Jaxpr,
    constants: Sequence[Any],
    inputs: Sequence[Any],
    known: Callable[[Any, Any], Any],
    apply: Callable[[Any, list[Any]], Sequence[Any]],
    enter: Callable[[Any], Closed | None] = called,
) -> list[Any]:
    """The results of a program on values of any kind, equation by equation.

    Parameters
    ----------
    known
        ``(number, variable)`` to what stands for a number that the program holds.
    apply
        ``(equation, operands)`` to its results.
    enter
        From an equation to the program to go on with, if it is but a call.
    """
    values = dict(zip(jaxpr.invars, inputs, strict=True))
    held = zip(jaxpr.constvars, constants, strict=True)
    values.update((variable, known(value, variable)) for variable, value in held)

    def read(atom: Any) -> Any:
        return known(atom.val, atom) if is_literal(atom) else values[atom]

    for equation in jaxpr.eqns:
        operands = [read(atom) for atom in equation.invars]
        inner = enter(equation)
        if inner is None:
            results = apply(equation, operands)
        else:
            results = walk(inner.jaxpr, inner.consts, operands, known, apply, enter)
        values.update(zip(equation.outvars, results, strict=True))
    return [read(atom) for atom in jaxpr.outvars]
