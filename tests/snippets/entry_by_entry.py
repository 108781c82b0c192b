"""Traceable entry by entry only: with helpers that take one number, or see another NumPy."""

import math
import sys
import types
from typing import Any

import numpy as np

from snippets.registry import snippet


@np.vectorize
def hill(x):
    return x**2 / (1 + x**2)


@snippet("scalars", [0.7, 0.2])
def vectorised_helper(t, y):
    return hill(y) - math.exp(-t) * y


michaelis = np.frompyfunc(lambda x, k: x / (k + x), 2, 1)


@snippet("scalars", [0.7, 0.2, 0.5])
def function_of_objects(t, y):
    dy = np.zeros(3)
    dy[:2] = michaelis(y[:2], 0.4)
    dy[2] = np.sin(y).sum()
    return dy


def installed_helper() -> Any:
    """A function of another package, which keeps its own ``numpy``."""
    module = types.ModuleType("installed_rates")
    module.__file__ = "site-packages/installed_rates.py"
    sys.modules["installed_rates"] = module
    exec(
        "import numpy as np\n"
        "def rates(y):\n"
        "    return np.array([np.exp(-y[0]) * y[1], np.sqrt(y[0])])\n",
        vars(module),
    )
    return module.rates


rates_elsewhere = installed_helper()


@snippet("scalars", [0.7, 0.2])
def helper_of_another_package(t, y):
    return rates_elsewhere(y) - y


installed = types.FunctionType(
    compile("lambda t, y: rates(y)", "installed_rates.py", "eval").co_consts[0],
    vars(sys.modules["installed_rates"]),
)
snippet("numpy", [0.7, 0.2], name="function_of_another_package")(installed)
