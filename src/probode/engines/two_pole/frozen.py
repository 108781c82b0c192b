"""The two-pole filter between two steps as arrays, from which it goes on to the last digit.

A state is a tree of named tuples. Factorisations are not stored, but what they were made of: ``J``,
``h`` and ``γ``. The same matrix is factorised once, as it was.
"""

import json
from typing import Any

import jax
import numpy as np

from probode.base.durable import Damaged
from probode.engines.two_pole.step import Matrix, System

_ARRAY, _MATRIX = "#array", "#matrix"
"""What no field is called."""


def frozen(state: Any) -> list[np.ndarray]:
    """A text that says how numbers go together, and the arrays that it refers to."""
    keeper = _Keeper()
    tree = keeper.kept(state)
    text = json.dumps({"state": tree, "jacobians": keeper.jacobians, "matrices": keeper.matrices})
    return [np.array(text), *keeper.arrays]


class _Keeper:
    """Takes a tree apart."""

    def __init__(self) -> None:
        self.arrays: list[np.ndarray] = []
        self.jacobians: list[Any] = []
        self.matrices: list[Any] = []
        self._known: dict[int, int] = {}

    def _array(self, value: np.ndarray) -> dict[str, int]:
        self.arrays.append(value)
        return {_ARRAY: len(self.arrays)}

    def kept(self, value: Any, name: str = "") -> Any:
        """As JSON has it."""
        if name == "jacobian":
            return None if value is None else self._jacobian(value)
        if isinstance(value, Matrix):
            return self._matrix(value)
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            fields = zip(value._fields, value, strict=True)
            return {key: self.kept(one, key) for key, one in fields if key not in _NOT_KEPT}
        if isinstance(value, np.ndarray | jax.Array):
            return self._array(np.asarray(value))
        if isinstance(value, tuple):
            return [self.kept(one) for one in value]
        if isinstance(value, list):  # of arrays, one for each node so far
            return self._array(np.stack(value)) if value else []
        return value.item() if isinstance(value, np.generic) else value

    def _jacobian(self, value: Any) -> int:
        if id(value) not in self._known:
            if isinstance(value, tuple):  # where it is, if products with it are all there is
                made = ["point", float(value[0]), self._array(np.asarray(value[1]))]
            elif isinstance(value, np.ndarray):
                made = ["full", self._array(value)]
            else:
                parts = (value.data, value.indices, value.indptr)
                made = ["sparse", list(value.shape), *(self._array(part) for part in parts)]
            self.jacobians.append(made)
            self._known[id(value)] = len(self.jacobians) - 1
        return self._known[id(value)]

    def _matrix(self, value: Matrix) -> dict[str, int]:
        if id(value) not in self._known:
            self.matrices.append([self._jacobian(value.jacobian), value.h, value.gamma])
            self._known[id(value)] = len(self.matrices) - 1
        return {_MATRIX: self._known[id(value)]}


_NOT_KEPT = ("system", "watch")
"""Those of the call that goes on."""


def thawed(system: System, like: Any, arrays: list[np.ndarray]) -> Any:
    """The state again; ``like`` is one before the first step, of the same kind."""
    try:
        text = json.loads(str(arrays[0]))
        return _Maker(system, text, arrays).made(text["state"], like)
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise Damaged(f"the checkpoint holds another kind of solve ({error!r}).") from error


class _Maker:
    """Puts a tree together."""

    def __init__(self, system: System, text: dict[str, Any], arrays: list[np.ndarray]) -> None:
        self._arrays = arrays
        self._jacobians = [self._jacobian(*one) for one in text["jacobians"]]
        self._matrices = [
            self._matrix(system, self._jacobians[i], h, gamma) for i, h, gamma in text["matrices"]
        ]

    @staticmethod
    def _matrix(system: System, jacobian: Any, h: float, gamma: float) -> Matrix:
        return Matrix(system.linear.factorised(jacobian, gamma * h), h, gamma, jacobian)

    def _jacobian(self, kind: str, *rest: Any) -> Any:
        if kind == "point":
            return rest[0], self.made(rest[1], None)
        if kind == "full":
            return self.made(rest[0], None)
        from scipy.sparse import csc_array  # loads what others do not need

        parts = tuple(self.made(one, None) for one in rest[1:])
        return csc_array(parts, shape=tuple(rest[0]))

    def made(self, node: Any, like: Any, name: str = "") -> Any:
        """A value of the kind of ``like``."""
        if name == "jacobian":
            return None if node is None else self._jacobians[node]
        if isinstance(node, dict) and _ARRAY in node:
            found = self._arrays[node[_ARRAY]]
            return list(found) if isinstance(like, list) else found
        if isinstance(node, dict) and _MATRIX in node:
            return self._matrices[node[_MATRIX]]
        if isinstance(node, dict):
            fields = {key: self.made(one, getattr(like, key), key) for key, one in node.items()}
            return like._replace(**fields)
        if isinstance(node, list) and isinstance(like, list):
            return []
        if isinstance(node, list):
            each = like[0] if like and not isinstance(like[0], list) else None
            if like and isinstance(like[0], list):  # arrays, and how many of them count
                return tuple(self.made(one, kind) for one, kind in zip(node, like, strict=True))
            return tuple(self.made(one, each) for one in node)
        return node
