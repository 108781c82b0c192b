"""What was found out about users' functions: one memory, for all front doors.

A key is made once per call: for what it is asked, what the functions read (``identity``), the types
of their arguments, and whatever else decides. Without a key (something cannot be compared) nothing
is remembered. Keys hold functions and arrays by value or weakly, never alive.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, NamedTuple

import jax

from probode.programs.identity import NoKey, Signature, key_of_arguments, signature_of


class Key(NamedTuple):
    """A question about functions: all but the numbers that they read, and these."""

    kind: Hashable
    signature: Signature

    @property
    def exact(self) -> Hashable:
        """With the numbers."""
        return self.kind, self.signature.values()


def key_for(
    purpose: str, functions: tuple[Any, ...], args: tuple[Any, ...], *others: Hashable
) -> Key | None:
    """The key of ``functions`` called with ``args``; ``None`` where they cannot be compared."""
    leaves, tree = jax.tree.flatten(tuple(args))
    try:
        signature = signature_of(*functions)
        arguments = key_of_arguments(leaves)
    except NoKey:
        return None
    return Key((purpose, signature.structure, arguments, tree, others), signature)


class Memory:
    """What was computed for a key, the latest ``size`` of them.

    Several threads may ask at once: what is computed meanwhile by another one is computed twice.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._known: OrderedDict[Hashable, Any] = OrderedDict()
        self._turn = threading.Lock()

    def get(
        self,
        key: Hashable | None,
        compute: Callable[[], Any],
        keep: Callable[[Any], bool] = lambda value: True,
    ) -> Any:
        """The value for ``key``, computed if it is new; without a key, computed each time.

        ``keep`` says whether a value may be remembered.
        """
        if key is None:
            return compute()
        try:
            with self._turn:
                found = self._known.get(key, self)
                if found is not self:
                    self._known.move_to_end(key)
                    return found
        except TypeError:  # something in it cannot be hashed
            return compute()
        value = compute()
        with self._turn:
            if keep(value):
                self._known[key] = value
            while len(self._known) > self._size:
                self._known.popitem(last=False)
        return value


KNOWN = Memory(768)
"""Vector fields (``bind``), functions and their code (``solve_ivp``), ensembles' functions."""
