"""The three ways to run a function while it is traced, and numbers that it reads as inputs."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from probode.programs.identity import Place
from probode.programs.tracing import scalars
from probode.programs.tracing.arrays import TracedArray, unwrap
from probode.programs.tracing.branches import along_every_path
from probode.programs.tracing.python_functions import FUNCTIONS
from probode.programs.tracing.rewrite import Rewriter
from probode.programs.tracing.watching import watch


class Numbers:
    """Numbers that become inputs of a trace: those in given places.

    Attributes
    ----------
    values, replaced
        The numbers by their places; the places where one was replaced while tracing.
    """

    __slots__ = ("replaced", "values")  # without a key: places are those of one function object

    def __init__(self, values: Mapping[Place, Any]) -> None:
        self.values = dict(values)
        self.replaced: set[Place] = set()

    def __len__(self) -> int:
        return len(self.values)

    def after(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Arguments with the numbers behind."""
        return (*args, tuple(self.values.values())) if self.values else tuple(args)


def _split(
    args: tuple[Any, ...], numbers: Numbers | None
) -> tuple[tuple[Any, ...], dict[Place, Any]]:
    """Arguments of a function, and the numbers, which come last."""
    if numbers is None:
        return args, {}
    *rest, values = args
    return tuple(rest), dict(zip(numbers.values, values, strict=True))


def as_jax(fun: Callable[..., Any], numbers: Numbers) -> Callable[..., Any]:
    """``fun`` as JAX sees it, with ``numbers`` as the last argument (if there are any).

    A refusal of JAX that ``fun`` swallows comes through.
    """
    some = numbers or None  # without numbers there is a key

    def function(t: Any, y: Any, *args: Any) -> Any:
        rest, values = _split(args, some)
        run = fun
        if some is not None:
            rewrite = Rewriter(fun, lambda value: None, lambda array: array, values)
            run = rewrite(fun)
            some.replaced |= rewrite.replaced
        watch.start()
        result = run(t, y, *rest)
        watch.finish()
        return result

    return function


def as_it_is(fun: Callable[..., Any], numbers: Numbers) -> Callable[..., jax.Array]:
    """The function itself, with JAX's tracers."""
    seen = as_jax(fun, numbers)

    def function(t: Any, y: Any, *args: Any) -> jax.Array:
        return _output(seen(t, y, *args))

    return function


def with_arrays(
    fun: Callable[..., Any], careful: bool, numbers: Numbers
) -> Callable[..., jax.Array]:
    """A copy of the function, with stand-ins for NumPy and its arrays."""

    def enter(leaf: Any, rewrite: Rewriter) -> Any:
        return TracedArray(leaf) if isinstance(leaf, jax.Array) else rewrite(leaf)

    copy = partial(Rewriter, builtins=FUNCTIONS)
    return _copied(fun, careful, numbers, copy, enter, partial(unwrap, as_array=True))


def with_scalars(
    fun: Callable[..., Any], careful: bool, numbers: Numbers
) -> Callable[..., jax.Array]:
    """A copy of the function, with arrays of traced scalars."""
    copy = partial(Rewriter, replace=scalars.stand_in, arrays=lambda array: array)
    return _copied(fun, careful, numbers, copy, lambda x, _: scalars.scatter(x), scalars.gather)


def _copied(
    fun: Callable[..., Any],
    careful: bool,
    numbers: Numbers,
    rewriter: Callable[..., Rewriter],
    enter: Callable[[Any, Any], Any],
    leave: Callable[[Any], Any],
) -> Callable[..., jax.Array]:
    """A copy of the function that is given what ``enter`` makes of its arguments and numbers."""
    some = numbers or None

    def function(t: Any, y: Any, *args: Any) -> jax.Array:
        rest, values = _split(args, some)
        watch.start(careful)
        known = {place: jnp.asarray(value) for place, value in values.items()}
        given = (jnp.asarray(t), jnp.asarray(y), *rest)

        def run() -> jax.Array:
            """Run a new copy each time: nothing that one run has written is seen by the next."""
            inside = {place: enter(value, None) for place, value in known.items()}
            rewrite = rewriter(fun, numbers=inside)
            inputs = in_order(given, jax.tree.map(lambda leaf: enter(leaf, rewrite), given))
            result = rewrite(fun)(*inputs)
            if some is not None:
                some.replaced |= rewrite.replaced
            return _output(leave(result))

        value = along_every_path(run)
        watch.finish()
        return value

    return function


def _output(value: Any) -> jax.Array:
    """What a function returned, as an array of float64 of whatever shape."""
    if value is None:
        raise TypeError("The function returned None: does it end with a return statement?")
    array = jnp.asarray(value)
    if jnp.iscomplexobj(array):
        raise TypeError(f"The function must return real numbers, got {array.dtype}.")
    return array.astype(jnp.float64)


def in_order(given: Any, value: Any) -> Any:
    """``value`` with the keys of dictionaries in the order in which they were given."""
    if type(given) is dict and type(value) is dict and given.keys() == value.keys():
        return {key: in_order(item, value[key]) for key, item in given.items()}
    if type(given) in (list, tuple) and type(value) is type(given) and len(given) == len(value):
        return type(given)(in_order(*pair) for pair in zip(given, value, strict=True))
    return value
