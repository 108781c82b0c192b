"""Programs of JAX's and their parts: run, put together."""

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import jax

from probode.base.jax_inside.loans import borrowed, say
from probode.base.jax_inside.programs import Closed, Jaxpr, Opaque, is_literal, walk


def run(jaxpr: Jaxpr, constants: Sequence[Any], *inputs: Any) -> list[Any]:
    """Evaluate a program, inside or outside of a trace."""
    if isinstance(jaxpr, Opaque):
        return jax.tree.leaves(jaxpr.function(*inputs))
    evaluate = borrowed("jax.core", "eval_jaxpr")
    if evaluate is not None:  # with the user's source in its messages
        return list(evaluate(jaxpr, constants, *inputs))
    say("jax.core.eval_jaxpr", "programs are traced operation by operation")
    return walk(jaxpr, constants, inputs, lambda value, _: value, apply, lambda _: None)


def apply(equation: Any, values: Sequence[Any]) -> list[Any]:
    """The results of an equation of any kind, on these values."""
    primitive, functions, params = equation.primitive, [], equation.params
    if hasattr(primitive, "get_bind_params"):  # some contain functions
        given = primitive.get_bind_params(params)
        functions, params = given if isinstance(given, tuple) else ([], given)
    pairs = zip(equation.invars, values, strict=True)
    operands = [atom.val if is_literal(atom) else value for atom, value in pairs]
    with getattr(getattr(equation, "ctx", None), "manager", None) or nullcontext():
        return bind(primitive, [*functions, *operands], params)


def bind(primitive: Any, values: Sequence[Any], params: dict[str, Any]) -> list[Any]:
    """The results of an operation, as a list."""
    results = primitive.bind(*values, **params)
    return list(results) if primitive.multiple_results else [results]


def rule_of_jvp(rule: Any, inputs: int) -> tuple[Closed, tuple[Any, ...]] | None:
    """A derivative rule (``custom_jvp``) as a program, with its zeros; ``None``: not to be had."""
    try:
        jaxpr, constants, zeros = rule.call_wrapped(*(False,) * inputs)
        return Closed(jaxpr, constants), tuple(zeros)
    except Exception:
        say(
            "derivative rules in the form that is known",
            "functions with rules of their own are compiled anew when they are made anew",
        )
        return None


def with_constants(closed: Any, count: int, constants: Sequence[Any]) -> Any | None:
    """A program whose first ``count`` inputs are made constants; ``None``: not to be had."""
    try:
        jaxpr = closed.jaxpr
        held = [*jaxpr.constvars, *jaxpr.invars[:count]]
        values = [*closed.consts, *constants]
        changes = {"constvars": held, "invars": jaxpr.invars[count:]}
        changes["debug_info"] = jaxpr.debug_info._replace(arg_names=None, result_paths=None)
        if jaxpr is closed:  # since JAX 0.12 one with values
            return jaxpr.replace(**changes, consts=values)
        return type(closed)(jaxpr.replace(**changes), values)
    except Exception:
        say("jaxpr.replace", "stored functions are compiled anew for other numbers")
        return None
