"""What a process waits for before its first result: imports, and programs that were compiled."""

import ast
import os
import subprocess
import sys

import pytest

import probode
from probode.ivp.result import OdeResult


def fresh(code, **environment):
    """What Python prints in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_importing_loads_jax_and_numpy_and_nothing_else_of_size():
    code = (
        "import sys, probode; probode.solve_ivp;"
        "print({name.partition('.')[0] for name in sys.modules})"
    )
    loaded = ast.literal_eval(fresh(code))
    assert {"jax", "numpy"} <= loaded
    assert not loaded & {"scipy", "matplotlib", "xarray", "pandas", "tqdm", "dask", "plotly"}


def test_a_result_is_a_dictionary_whose_keys_are_attributes():
    result = OdeResult(t=1.0, success=True)
    result.message = "done"
    assert result["message"] == result.message == "done" and "message" in dir(result)
    del result.t
    assert "t" not in result
    with pytest.raises(AttributeError, match="t"):
        _ = result.t


def test_a_result_shows_first_how_it_ended():
    result = probode.solve_ivp(lambda t, y: -y, (0, 1), [1.0])
    lines = repr(result).splitlines()
    assert [line.split(":")[0].strip() for line in lines[:3]] == ["message", "success", "status"]
    assert len(lines) < 30 and max(map(len, lines)) < 200
