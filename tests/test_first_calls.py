"""What a process waits for before its first result: imports, and programs that were compiled."""

import ast
import io
import os
import subprocess
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from only_python import number

import probode
from probode.base import on_disk, waiting
from probode.base.precision import double_precision
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


def test_a_small_solve_loads_no_scipy_either():
    code = (
        "import sys, probode; r = probode.solve_ivp(lambda t, y: -y, (0, 5), [1.0]); r.y_std;"
        "print({name.partition('.')[0] for name in sys.modules})"
    )
    assert not ast.literal_eval(fresh(code)) & {"scipy", "matplotlib"}


def test_blas_that_is_loaded_within_a_solve_keeps_to_one_thread_until_its_end():
    code = """if True:
        from threadpoolctl import threadpool_info
        from probode.base.blas import load_lapack, one_blas_thread
        import numpy
        def threads():
            return [one["num_threads"] for one in threadpool_info() if one["user_api"] == "blas"]
        before = threads()
        with one_blas_thread():
            alone = threads()
            load_lapack()
            with one_blas_thread():
                both = threads()
        print([before, alone, both, threads()])
    """
    before, alone, both, after = ast.literal_eval(fresh(code, OPENBLAS_NUM_THREADS="2"))
    assert set(before) == {2} and set(alone) == {1}
    assert len(both) > len(alone) and set(both) == {1}
    assert set(after) == {2}


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


COMPILED = []


def _record(event, duration, **_):
    if event == "/jax/core/compile/backend_compile_duration":
        COMPILED.append(event)


jax.monitoring.register_event_duration_secs_listener(_record)


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """A folder in which all programs are kept, however quickly they are compiled."""
    monkeypatch.setenv("PROBODE_CACHE", str(tmp_path / "programs"))
    monkeypatch.setattr(on_disk, "_WORTH_KEEPING", 0.0)
    return tmp_path / "programs"


def anew(value, power=3):
    """A value and how often it took the compiler, as in a new process: ``jax.jit`` anew."""
    function = on_disk.KeptProgram.of(lambda x, n: jnp.sin(x) ** n, None, 1)
    before = len(COMPILED)
    result = function(value, power)
    assert np.array_equal(function(value, power), result)  # the same program, without a look
    return np.asarray(result), len(COMPILED) - before


def test_what_was_compiled_once_is_not_compiled_again(cache):
    value = np.linspace(0.0, 1.0, 5, dtype=np.float32)
    first, compiled = anew(value)
    assert compiled == 1 and len(list(cache.iterdir())) == 1
    second, compiled = anew(value)
    assert compiled == 0
    assert np.array_equal(first, second) and np.array_equal(anew(2 * value)[0], anew(2 * value)[0])


@pytest.mark.parametrize(
    "other",
    [
        (np.zeros(4, np.float32),),
        (np.zeros(3, np.int32),),
        (np.zeros(3, np.float32), 4),
        (1.0,),
    ],
    ids=["shape", "type", "static", "scalar"],
)
def test_another_signature_is_another_program(cache, other):
    anew(np.zeros(3, np.float32))
    result, compiled = anew(*other)
    assert compiled == 1
    assert np.allclose(result, np.sin(other[0]) ** (other[1] if len(other) > 1 else 3), rtol=1e-5)


def test_64_bits_are_another_program(cache):
    anew(0.5)
    with double_precision():
        result, compiled = anew(0.5)
    assert compiled == 1 and result.dtype == np.float64


def test_a_broken_file_is_compiled_over(cache):
    first, _ = anew(np.float32(0.5))
    (file,) = cache.iterdir()
    whole = file.read_bytes()
    file.write_bytes(whole[:100])
    again, compiled = anew(np.float32(0.5))
    assert compiled == 1 and np.array_equal(first, again)
    assert len(file.read_bytes()) == len(whole)


def test_a_folder_that_cannot_be_written_to_costs_nothing(cache):
    cache.write_text("a file in its place")
    assert anew(np.float32(0.5))[1] == 1
    assert cache.read_text() == "a file in its place"


def test_it_can_be_switched_off(cache, monkeypatch):
    monkeypatch.setenv("PROBODE_CACHE", "0")
    anew(np.float32(0.25))
    assert not cache.exists()


def test_the_cache_of_jax_is_left_to_those_who_chose_it(cache, monkeypatch, tmp_path):
    monkeypatch.setattr(on_disk, "cache_folder", lambda: str(tmp_path))
    assert not on_disk.in_use()
    anew(np.float32(0.25))
    assert not cache.exists()


def test_programs_that_call_python_are_not_kept(cache):
    def called_back(x):
        return jax.pure_callback(np.cos, jax.ShapeDtypeStruct((), jnp.float32), x)

    function = on_disk.KeptProgram.of(called_back, None)
    assert np.isclose(function(np.float32(0.5)), np.cos(0.5))
    assert not cache.exists()


def test_programs_that_differ_in_what_they_do_not_use_are_told_apart(cache):
    """Their texts would be the same."""
    x, y = np.array([0.5, 1.0]), np.array([2.0, 3.0])
    for used, given in ((0, (x, y)), (1, (y, x)), (0, (x, y, y))):

        def cosine(given, used=used):
            return jnp.cos(given[used])

        found = on_disk.KeptProgram.of(cosine, None)(given)
        np.testing.assert_allclose(found, np.cos(x), rtol=1e-6)
    assert len(list(cache.iterdir())) == 3


def test_what_was_not_used_for_longest_makes_room(cache, monkeypatch):
    anew(np.float32(0.5))
    (old,) = cache.iterdir()
    os.utime(old, (0, 0))
    monkeypatch.setattr(on_disk, "LARGEST", old.stat().st_size + 100)
    anew(np.float32(0.5), 5)
    assert len(list(cache.iterdir())) == 1 and not old.exists()


def test_transformed_functions_are_compiled_with_what_is_around_them(cache):
    function = on_disk.KeptProgram.of(lambda x: x**3, None)
    assert jax.grad(function)(2.0) == 12.0
    assert np.array_equal(jax.vmap(function)(jnp.arange(3.0)), [0.0, 1.0, 8.0])


SOLVE = """
import jax, jax.numpy as jnp, numpy as np, probode
from probode.base import on_disk, waiting
on_disk._WORTH_KEEPING = 0.0
def field(t, y):  # no list of operations: it has to be compiled
    return -jax.lax.lgamma(y + 3.0)
solution = probode.solve(field, (0.0, 1.0), np.array([1.0, 2.0]), solver=probode.EK0(1))
print(np.asarray(solution.mean).tobytes().hex(), np.asarray(solution.std).tobytes().hex())
"""


def test_a_solve_from_disk_is_the_same_solve(cache):
    first = fresh(SOLVE)
    files = {file: file.stat().st_size for file in cache.iterdir()}
    assert files
    assert fresh(SOLVE) == first
    assert {file: file.stat().st_size for file in cache.iterdir()} == files


class Terminal(io.StringIO):
    """Somebody looks."""

    def isatty(self):
        return True


def impatient(monkeypatch, terminal=True):
    """A stream for messages, where two hundredths of a second are long."""
    monkeypatch.setattr(waiting, "PATIENCE", 0.02)
    monkeypatch.setattr(waiting, "_EVERY", 0.01)
    monkeypatch.setattr(sys, "stderr", Terminal() if terminal else io.StringIO())
    return sys.stderr


def test_what_takes_long_says_what_it_is_doing_and_takes_it_back(monkeypatch):
    stream = impatient(monkeypatch)
    with waiting.doing("solving"), waiting.doing(lambda: f"t = {1 + 1}"):
        time.sleep(0.2)
    shown = stream.getvalue()
    assert "probode: t = 2" in shown and "solving" not in shown
    assert shown.endswith("\r") and not shown.split("\r")[-2].strip()  # an empty line is left


def test_what_is_over_soon_says_nothing(monkeypatch):
    stream = impatient(monkeypatch)
    monkeypatch.setattr(waiting, "PATIENCE", 5.0)
    with waiting.doing("solving"):
        time.sleep(0.05)
    assert stream.getvalue() == ""


@pytest.mark.parametrize("why", ["no terminal", "switched off", "somebody else says so"])
def test_nothing_is_said(monkeypatch, why):
    stream = impatient(monkeypatch, why != "no terminal")
    if why == "switched off":
        monkeypatch.setenv("PROBODE_PROGRESS", "0")
    with waiting.doing(None if why == "somebody else says so" else "solving"):
        time.sleep(0.1)
    assert "probode" not in stream.getvalue()


def test_a_long_solve_tells_how_far_it_is(monkeypatch):
    stream = impatient(monkeypatch)
    probode.solve_ivp(lambda t, y: [number(y[0]) and -number(y[0])], (0, 20), [1.0], max_step=0.01)
    assert "probode: t = " in stream.getvalue() and "steps" in stream.getvalue()
