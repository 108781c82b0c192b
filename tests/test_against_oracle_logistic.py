"""The engine against the multiprecision oracle: logistic."""

import pytest
from against_oracle import NAMES, AgainstOracle, cases


@pytest.mark.parametrize(NAMES, cases("logistic"))
class TestAgainstOracle(AgainstOracle):
    pass
