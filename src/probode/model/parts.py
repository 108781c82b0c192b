"""Parts of a model that anybody can write: frozen dataclasses that JAX sees into."""

from dataclasses import fields
from functools import lru_cache, partial
from typing import Any

import jax
import numpy as np


class Part:
    """Base of priors, equations, solvers: a frozen dataclass whose numbers are data.

    Fields that hold a float, an array or another part are data: new values do not compile a new
    program, and derivatives by them are possible. All others (whole numbers, names, functions) are
    part of the program; they have to be hashable.
    """

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        jax.tree_util.register_pytree_node(cls, _flatten, partial(_unflatten, cls))

    def __setstate__(self, state: dict[str, Any]) -> None:
        # Without what was computed from the fields, for which other versions may have other names;
        # a field that they did not have is as by default.
        cls: Any = type(self)
        for name in _names(cls):
            self.__dict__[name] = state[name] if name in state else getattr(cls, name)


def check_fields(part: Part) -> None:
    """Refuse lists of numbers among the fields: they would be neither data nor hashable."""
    cls: Any = type(part)
    for name in _names(cls):
        value = getattr(part, name)
        if isinstance(value, list | dict | set):
            raise TypeError(
                f"{type(part).__name__}.{name} must be a number, an array or something hashable, "
                f"got a {type(value).__name__}: for numbers use np.array({value!r})."
            )


@lru_cache(maxsize=256)
def _names(cls: Any) -> tuple[str, ...]:
    return tuple(field.name for field in fields(cls))


_DATA = (float, np.floating, np.ndarray, jax.Array, Part)


def _flatten(part: Any) -> tuple[list[Any], Any]:
    cls: Any = type(part)
    values, names = part.__dict__, _names(cls)
    # What JAX has put together may hold anything in place of a number.
    data = values.get("_data")
    if data is None:
        data = tuple(name for name in names if isinstance(values[name], _DATA))
    rest = tuple((name, values[name]) for name in names if name not in data)
    return [values[name] for name in data], (data, rest)


def _unflatten(cls: type, known: Any, leaves: Any) -> Any:
    """Put together without a check: JAX fills in tracers, shapes, or nothing at all."""
    data, rest = known
    part: Any = object.__new__(cls)
    part.__dict__.update(rest, _data=data, **dict(zip(data, leaves, strict=True)))
    return part
