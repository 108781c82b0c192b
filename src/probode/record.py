"""Records of arrays that JAX sees into: frozen dataclasses, made in a microsecond."""

from dataclasses import dataclass, field, fields
from typing import Any, dataclass_transform

import jax


def static(**options: Any) -> Any:
    """Mark a field as part of the program instead of data; options are those of ``field``."""
    return field(metadata={"static": True}, **options)


@dataclass_transform(frozen_default=True, eq_default=False, field_specifiers=(static,))
def record(cls: type) -> Any:
    """Turn a class with annotated fields into a frozen record, and tell JAX of it."""
    return jax.tree_util.register_dataclass(dataclass(frozen=True, eq=False)(cls))


def unchecked(cls: type, values: dict[str, Any]) -> Any:
    """A record with these values, taken as they are."""
    made: Any = object.__new__(cls)
    made.__dict__.update(values)
    return made


@dataclass_transform(frozen_default=True, eq_default=False, field_specifiers=(field,))
def checked_record(cls: type) -> Any:
    """The same for a class that checks its values when a user makes one.

    JAX takes records apart and puts them together with anything in their place (tracers, shapes,
    nothing at all): that is not checked.
    """
    cls = dataclass(frozen=True, eq=False)(cls)
    names = tuple(one.name for one in fields(cls))

    def flatten(value: Any) -> tuple[tuple[Any, ...], None]:
        return tuple(getattr(value, name) for name in names), None

    def unflatten(_: None, leaves: tuple[Any, ...]) -> Any:
        return unchecked(cls, dict(zip(names, leaves, strict=True)))

    jax.tree_util.register_pytree_node(cls, flatten, unflatten)
    return cls
