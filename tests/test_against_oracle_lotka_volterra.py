"""The engine against the multiprecision oracle: lotka-volterra."""

import pytest
from against_oracle import NAMES, AgainstOracle, cases


@pytest.mark.parametrize(NAMES, cases("lotka-volterra"))
class TestAgainstOracle(AgainstOracle):
    pass
