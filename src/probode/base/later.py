"""Modules that not everybody needs, imported when something of them is first used.

SciPy's sparse matrices and special functions would take a fifth of the time of ``import probode``;
a solve of a small problem asks for none of them.
"""

import importlib
from typing import Any


class Later:
    """Stands for a module: ``sparse = Later("scipy.sparse")``, then ``sparse.csc_array``."""

    def __init__(self, module: str) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module(self._module), name)


sparse = Later("scipy.sparse")
csgraph = Later("scipy.sparse.csgraph")
special = Later("scipy.special")
