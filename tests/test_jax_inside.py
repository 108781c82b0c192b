"""What the library borrows from JAX's inside: without it, the same numbers, and a word about it."""

import itertools
import json
import logging
import pickle
import subprocess
import sys
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiling import jit_once

import probode
from probode.base import jax_inside
from probode.base.compile import use_compilation_cache
from probode.base.jax_inside import Closed, Opaque, Unreadable, known, loans, programs, values
from probode.base.precision import double_precision, inside_trace
from probode.engines.fallback import may_lack_derivatives
from probode.engines.native import library, traced
from probode.programs.field import bind
from probode.programs.program import Program, timing, trace, work
from probode.programs.stored import NotStorable, StoredFunction, listing, stored
from probode.programs.switches import switches
from probode.programs.taylor import derivatives
from probode.programs.tracing.evaluate import Evaluator, count_equations
from probode.programs.unroll import Unsupported
from probode.programs.unroll import run as unrolled

Y0 = np.array([1.0, 0.5])
SOLVER, CONTROL = probode.EK1(2), probode.PIControl(1e-8, 1e-6)


def clear():
    loans._said.clear()
    for remembered in (programs.readable, programs.operations, programs.library_calls):
        remembered.cache_clear()
    values._tracer.cache_clear()


@pytest.fixture(autouse=True)
def announced(monkeypatch, caplog):
    """What was announced in a test: a function that gives it as text."""
    caplog.set_level(logging.WARNING, "probode")
    clear()
    yield lambda: caplog.text
    monkeypatch.undo()
    clear()


def hide(monkeypatch, module, name=None):
    """Take an attribute, or a whole module, away from JAX."""
    if name is None:
        monkeypatch.setitem(sys.modules, module, None)
    else:
        __import__(module)
        monkeypatch.delattr(sys.modules[module], name)


EXTRA = itertools.count(1)


def new_field(xp=jnp):
    """A vector field that nobody has compiled: it adds nothing, once more than the one before."""
    extra = next(EXTRA)

    def field(t, y):
        x = y[0]
        for _ in range(extra):
            x = x + 0.0 * t
        return xp.stack([xp.sin(y[1]) * xp.exp(-0.1 * t), xp.tanh(x) - y[1] ** 3])

    return field


def solved(field=None):
    posterior = probode.solve(field or new_field(), (0.0, 1.0), Y0, solver=SOLVER, control=CONTROL)
    return np.stack([posterior.mean[-1], posterior.std[-1]])


def solved_ivp():
    result = probode.solve_ivp(new_field(np), (0.0, 1.0), Y0, rtol=1e-6, atol=1e-8)
    return np.stack([result.y[:, -1], result.y_std[:, -1]])


def solved_in_jit():
    field = new_field()

    @jax.jit
    def final(y0):
        posterior = probode.solve(
            field, (0.0, 1.0), y0, solver=SOLVER, control=CONTROL, save_at=[1.0]
        )
        return posterior.mean[-1]

    with double_precision():
        return np.asarray(final(jnp.asarray(Y0)))


@pytest.fixture(scope="module")
def reference():
    """The numbers with all that JAX has."""
    return {way: way() for way in (solved, solved_ivp, solved_in_jit)}


def assert_same(found, expected):
    """Means to rounding; error bars are differences of them, in units of the tolerance."""
    means, bars = (found[0], expected[0]), (found[1], expected[1])
    if found.ndim == 1:
        means, bars = (found, expected), (0.0, 0.0)
    np.testing.assert_allclose(*means, rtol=1e-10)
    np.testing.assert_allclose(*bars, rtol=1e-3)


# --- Nothing is lacking here ----------------------------------------------------------------------


def test_nothing_is_announced_by_a_jax_that_has_it_all(reference):
    assert_same(solved(), reference[solved])
    assert_same(solved_ivp(), reference[solved_ivp])
    assert not jax_inside.said()


def test_what_is_lacking_is_announced_once(announced):
    for _ in range(3):
        jax_inside.say("a thing", "it is done otherwise")
    assert announced().count(f"JAX {jax.__version__} lacks a thing: it is done otherwise.") == 1


# --- Values and traces ----------------------------------------------------------------------------


def test_tracers_without_their_name(monkeypatch, announced, reference):
    hide(monkeypatch, "jax.core", "Tracer")
    seen = []
    jax.jit(lambda x: seen.append(jax_inside.is_tracer(x)))(1.0)
    jax.vmap(lambda x: seen.append(jax_inside.is_tracer(x)) or x)(jnp.ones(2))
    jax.grad(lambda x: seen.append(jax_inside.is_tracer(x)) or x)(1.0)
    assert seen == [True] * 3
    assert not any(map(jax_inside.is_tracer, (1.0, np.ones(2), jnp.ones(2), "t", None)))
    assert_same(solved_in_jit(), reference[solved_in_jit])
    assert "jax.core.Tracer" in announced()


@pytest.mark.parametrize("lacking", ["take_current_trace", None])
def test_whether_anything_is_traced_by_an_operation(monkeypatch, announced, lacking):
    hide(monkeypatch, "jax.extend.core", *filter(None, [lacking]))
    inside = []
    jax.jit(lambda: inside.append(inside_trace()))()
    assert inside == [True] and not inside_trace()
    assert "take_current_trace" in announced()


def test_an_error_for_unknown_values_with_other_arguments(monkeypatch, announced):
    error = jax.errors.ConcretizationTypeError
    monkeypatch.setattr(error, "__init__", lambda self: None)
    made = jax_inside.unknown_value(1.0, "not known")
    assert isinstance(made, error) and str(made) == "not known"
    assert "ConcretizationTypeError" in announced()


def test_double_precision_by_its_older_name(monkeypatch):
    monkeypatch.setattr(jax.experimental, "enable_x64", jax.enable_x64, raising=False)
    hide(monkeypatch, "jax", "enable_x64")
    with double_precision():
        assert jnp.ones(1).dtype == np.float64


def test_no_double_precision_is_an_error_that_says_what_to_do(monkeypatch):
    monkeypatch.delattr(jax.experimental, "enable_x64", raising=False)
    hide(monkeypatch, "jax", "enable_x64")
    with pytest.raises(ImportError, match="use another version of JAX"):
        double_precision()


# --- Programs -------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", [solved, solved_ivp, solved_in_jit])
def test_programs_of_another_form(monkeypatch, announced, reference, way):
    made = jax.make_jaxpr

    def other_form(function, **options):
        def trace(*inputs):
            result = made(function, **options)(*inputs)
            closed = result[0] if options.get("return_shape") else result
            other = SimpleNamespace(program=closed)
            return (other, result[1]) if options.get("return_shape") else other

        return trace

    monkeypatch.setattr(jax, "make_jaxpr", other_form)
    assert_same(way(), reference[way])
    assert "programs in the form that is known" in announced()


@pytest.mark.parametrize("way", [solved, solved_ivp, solved_in_jit])
def test_programs_without_eval_jaxpr(monkeypatch, announced, reference, way):
    hide(monkeypatch, "jax.core", "eval_jaxpr")
    assert_same(way(), reference[way])
    assert "jax.core.eval_jaxpr" in announced()


@pytest.mark.parametrize(
    ("way", "name"),
    [
        *((solved, name) for name in ("sin", "mul", "integer_pow", "jit")),
        *((solved_ivp, name) for name in ("exp", "custom_jvp_call")),
    ],
)
def test_operations_of_another_name(monkeypatch, announced, reference, way, name):
    monkeypatch.setattr(jax_inside.operations()[name], "name", f"other_{name}")
    clear()
    assert_same(way(), reference[way])
    assert name in announced()


def test_operations_with_another_parameter(monkeypatch, announced, reference):
    monkeypatch.setitem(known.PARAMETERS, "integer_pow", frozenset())
    assert_same(solved(), reference[solved])
    assert "'integer_pow' without the parameter y" in announced()


def test_a_parameter_that_says_nothing_is_none():
    equation = SimpleNamespace(primitive=SimpleNamespace(name="mul"), params={"new": None})
    assert jax_inside.operation(equation) == "mul"
    equation.params["new"] = "meaning"
    assert jax_inside.operation(equation) == "mul(new)"


def _opaque():
    return Program(Opaque(lambda t, y: -2.0 * y, "text"))


WALKS = {
    "compared": lambda p: (p == p, p == _opaque(), p.calls_libraries),
    "run": lambda p: float(p((), 0.0, 3.0)),
    "measured": lambda p: work(p.jaxpr),
    "counted": lambda p: count_equations(p.jaxpr),
    "timed": timing,
    "evaluated": lambda p: float(Evaluator(Closed(p.jaxpr, ()))(0.0, 3.0)),
}
EXPECTED = {
    "compared": (True, False, True),
    "run": -6.0,
    "measured": np.inf,
    "counted": 0,
    "timed": (True, False),
    "evaluated": -6.0,
}


@pytest.mark.parametrize("name", WALKS)
def test_whoever_looks_into_a_program_can_do_without(announced, name):
    assert WALKS[name](_opaque()) == EXPECTED[name]
    assert name == "run" or "lacks programs" in announced()


@pytest.mark.parametrize(
    ("look", "error"),
    [
        pytest.param(lambda p: unrolled(p.jaxpr, (), [0.0, 1.0]), Unsupported, id="unrolled"),
        pytest.param(lambda p: listing(p.jaxpr), NotStorable, id="stored"),
        pytest.param(lambda p: p.operations(), Unreadable, id="operations"),
    ],
)
def test_whoever_cannot_do_without_a_program_says_so(announced, look, error):
    with pytest.raises(error):
        look(_opaque())
    assert "lacks programs" in announced()


def _bound(field=None):
    with double_precision():
        return bind(field or new_field(), 0.0, jnp.asarray(Y0), (), None, diagonal=False)


def test_a_program_that_cannot_be_read_may_lack_derivatives():
    assert may_lack_derivatives(replace(_bound(), program=_opaque()))


def test_switches_that_cannot_be_read_are_not_stopped_at(monkeypatch, announced):
    field = _bound(lambda t, y: jnp.where(t > 0.5, -y, y))
    assert len(switches(field, 0.0, 1.0).times) == 1
    monkeypatch.setitem(known.PARAMETERS, "broadcast_in_dim", frozenset())
    monkeypatch.setattr("probode.programs.switches.operation", lambda equation: equation.other)
    assert len(switches(field, 0.0, 1.0).times) == 0
    assert "steps do not stop at them" in announced()


def test_derivatives_by_nesting_are_those_by_series(monkeypatch, announced):
    with double_precision():
        t0, y0 = jnp.zeros(()), jnp.asarray(Y0)
        found = []
        for lacking in (False, True):
            if lacking:
                monkeypatch.setattr(
                    "probode.programs.taylor.trace", lambda *_: Closed(_opaque().jaxpr, ())
                )
            found.append(jit_once(partial(derivatives, new_field(), order=3))(t0, y0))
        np.testing.assert_allclose(*found, rtol=1e-12)
    assert "derivatives at the start take longer" in announced()


def _with_rule():
    @jax.custom_jvp
    def doubled(x):
        return x + x

    doubled.defjvp(lambda primals, tangents: (doubled(*primals), 2.0 * tangents[0]))
    return trace(lambda t, y: doubled(y), 0.0, Y0)[0]


def test_derivative_rules_of_another_form(monkeypatch, announced):
    assert _with_rule() == _with_rule()
    assert jax_inside.rule_of_jvp(object(), 1) is None
    assert "derivative rules" in announced()
    monkeypatch.setattr(jax_inside, "rule_of_jvp", lambda *_: None)
    program = _with_rule()
    assert program == program and program != _with_rule()


def _shifted(field):
    table = np.array([0.25, -0.5])
    return lambda t, y: field(t, y) + table


def test_a_stored_program_with_its_constants_in_it(monkeypatch, announced):
    original = new_field()
    field = _bound(_shifted(original))
    content = pickle.dumps(StoredFunction(stored(field)))
    assert jax_inside.with_constants(object(), 0, ()) is None
    assert "jaxpr.replace" in announced()
    for lacking in (False, True):
        if lacking:
            monkeypatch.setattr(jax_inside, "with_constants", lambda *_: None)
        with double_precision():
            value = pickle.loads(content)(0.3, jnp.asarray(Y0))
            np.testing.assert_allclose(value, _shifted(original)(0.3, jnp.asarray(Y0)), rtol=1e-14)


def test_without_a_list_of_operations_nothing_is_stored(monkeypatch, announced):
    field = _bound()
    hide(monkeypatch, "jax.interpreters.ad", "primitive_jvps")
    hide(monkeypatch, "jax.extend.core", "primitives")
    clear()
    with pytest.raises(NotStorable):
        stored(field)
    assert "a list of its operations" in announced()


# --- Compiling ------------------------------------------------------------------------------------


@pytest.mark.parametrize("lacking", ["jax.extend.core", "jax.interpreters.mlir", "jax.core"])
def test_no_operation_of_our_own(monkeypatch, announced, lacking):
    hide(monkeypatch, lacking)
    functions = dict.fromkeys(("shape", "evaluate", "batched", "on_cpu", "elsewhere"), len)
    assert jax_inside.new_operation("probode_test", **functions) is None
    assert "operations of others' making" in announced()


def test_jit_without_an_operation_of_our_own(monkeypatch, reference):
    monkeypatch.setattr(traced, "_end", None)
    assert_same(solved_in_jit(), reference[solved_in_jit])


def test_loops_that_are_not_compiled_in_one_piece(monkeypatch, announced):
    hide(monkeypatch, "jax.experimental.xla_metadata")
    assert jax_inside.in_one_piece(abs) is abs
    assert "lanes take longer" in announced()


def test_options_that_the_compiler_does_not_know(announced):
    options = {"xla_no_such_option": 1, "xla_backend_optimization_level": 1}
    assert jax_inside.known_options(options) == {"xla_backend_optimization_level": 1}
    assert "the options xla_no_such_option" in announced()


def test_a_cache_with_other_settings(monkeypatch, announced, tmp_path):
    def refuse(name, value):
        raise AttributeError(name)

    settings = SimpleNamespace(update=refuse)
    monkeypatch.setattr(jax, "config", settings)
    assert use_compilation_cache(tmp_path) is None
    assert "settings of its cache" in announced()


@pytest.mark.parametrize("lacking", ["jax.experimental.pallas", "jax.experimental.pallas.triton"])
def test_no_pallas(monkeypatch, announced, lacking):
    hide(monkeypatch, lacking)
    assert jax_inside.pallas(1) is None
    assert "jax.experimental.pallas" in announced()


@pytest.mark.skipif(library.load() is None, reason="no kernels were built")
def test_kernels_that_do_not_fit(monkeypatch, announced, reference):
    def refuse(*_, **__):
        raise NotImplementedError("another interface")

    monkeypatch.setattr(jax.ffi, "register_ffi_target", refuse)
    assert library._load.__wrapped__() is None
    assert "another interface" in announced()
    with library.disabled():
        assert_same(solved(), reference[solved])


# --- All of it ------------------------------------------------------------------------------------

WITHOUT_ANYTHING = """
import json, logging, sys
import jax, jax.core, jax.extend.core, jax.interpreters.ad, jax.interpreters.mlir
logging.basicConfig(stream=sys.stderr)
for name in ("Tracer", "eval_jaxpr", "ShapedArray"):
    delattr(jax.core, name)
for name in list(sys.modules):
    if name.startswith(("jax.extend", "jax.interpreters", "jax.experimental")):
        sys.modules[name] = None
import numpy as np, probode
field = lambda t, y: np.array([np.sin(y[1]) * np.exp(-0.1 * t), np.tanh(y[0]) - y[1] ** 3])
result = probode.solve_ivp(field, (0.0, 1.0), [1.0, 0.5], rtol=1e-6, atol=1e-8)
print(json.dumps([result.y[:, -1].tolist(), result.y_std[:, -1].tolist()]))
"""


def test_a_jax_without_any_of_it(reference):
    run = subprocess.run(
        [sys.executable, "-c", WITHOUT_ANYTHING], capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    assert_same(np.array(json.loads(run.stdout)), reference[solved_ivp])
    assert "jax.core.Tracer" in run.stderr and "jax.core.eval_jaxpr" in run.stderr
