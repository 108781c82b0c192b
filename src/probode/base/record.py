"""Records of arrays that JAX sees into: frozen dataclasses, made in a microsecond."""

from dataclasses import dataclass, field, fields
from functools import cache
from typing import Any, dataclass_transform

import jax
import jax.numpy as jnp
import numpy as np

from probode.base.precision import double_precision


def static(**options: Any) -> Any:
    """Mark a field as part of the program instead of data; options are those of ``field``."""
    return field(metadata={"static": True}, **options)


@dataclass_transform(frozen_default=True, eq_default=False, field_specifiers=(static,))
def record(cls: type) -> Any:
    """Turn a class with annotated fields into a frozen record, and tell JAX of it."""
    cls.__getstate__ = _state  # type: ignore[method-assign,assignment]
    return jax.tree_util.register_dataclass(dataclass(frozen=True, eq=False)(cls))


def _state(self: Any) -> dict[str, Any]:
    """What pickle takes of a record."""
    return {name: _exactly(value) for name, value in vars(self).items()}


class _Exact:
    """An array of JAX on its way: by itself it loses digits where JAX's switch is off."""

    def __init__(self, array: jax.Array) -> None:
        self._array = array

    def __reduce__(self) -> Any:
        return _with_all_digits, (np.asarray(self._array),)


def _with_all_digits(array: np.ndarray) -> jax.Array:
    with double_precision():
        return jnp.asarray(array)


def _exactly(value: Any) -> Any:
    if isinstance(value, jax.Array) and not jnp.issubdtype(value.dtype, jax.dtypes.extended):
        return _Exact(value)
    if isinstance(value, tuple):
        items = map(_exactly, value)
        return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
    return value


def unchecked(cls: type, values: dict[str, Any]) -> Any:
    """A record with these values, taken as they are."""
    made: Any = object.__new__(cls)
    made.__dict__.update(values)
    return made


@dataclass_transform(frozen_default=True, eq_default=False, field_specifiers=(field,))
def checked_record(cls: type) -> Any:
    """The same for a class that checks its values when a user makes one.

    JAX takes records apart and puts them together with anything in their place (tracers, shapes,
    nothing at all): that is not checked. Classes that inherit from one, such as a user's, are
    records too.
    """
    if not any(base in _TOLD_TO_JAX for base in cls.__mro__):

        def inherit(heir: type, **options: Any) -> None:
            super(cls, heir).__init_subclass__(**options)  # type: ignore[arg-type]
            _tell_jax(heir)

        cls.__init_subclass__ = classmethod(inherit)  # type: ignore[assignment]
        _tell_jax(cls)
    return dataclass(frozen=True, eq=False)(cls)


_TOLD_TO_JAX: set[type] = set()


def _tell_jax(cls: type) -> None:
    """Register a class before its fields are known: they are once there is an object of it."""

    def flatten(value: Any) -> tuple[tuple[Any, ...], None]:
        return tuple(getattr(value, name) for name in _names(cls)), None

    def unflatten(_: None, leaves: tuple[Any, ...]) -> Any:
        return unchecked(cls, dict(zip(_names(cls), leaves, strict=True)))

    jax.tree_util.register_pytree_node(cls, flatten, unflatten)
    _TOLD_TO_JAX.add(cls)


@cache
def _names(cls: type) -> tuple[str, ...]:
    return tuple(one.name for one in fields(cls))
