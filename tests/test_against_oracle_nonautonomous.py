"""The engine against the multiprecision oracle: nonautonomous."""

import pytest
from against_oracle import NAMES, AgainstOracle, cases


@pytest.mark.parametrize(NAMES, cases("nonautonomous"))
class TestAgainstOracle(AgainstOracle):
    pass
