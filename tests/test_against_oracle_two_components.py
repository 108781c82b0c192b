"""The engine against the multiprecision oracle: two components, in one process.

Dense output is compiled once for both problems.
"""

import pytest
from against_oracle import NAMES, AgainstOracle, cases

pytestmark = pytest.mark.optimised


@pytest.mark.parametrize(NAMES, [*cases("lotka-volterra"), *cases("nonautonomous")])
class TestAgainstOracle(AgainstOracle):
    pass
