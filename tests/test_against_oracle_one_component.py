"""The engine against the multiprecision oracle: one component."""

import pytest
from against_oracle import NAMES, AgainstOracle, cases

pytestmark = pytest.mark.optimised


@pytest.mark.parametrize(NAMES, cases("logistic", alone=True))
class TestAgainstOracle(AgainstOracle):
    pass
