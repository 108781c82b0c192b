"""Members side by side: what those kernels give that solve one member after the other.

The program for a GPU is made of the same sources; here a C++ compiler makes of it one for the CPU.
"""

import ctypes
import functools
import shutil
import subprocess

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from quick_ensembles import assert_same_bars

from probode import EK0, EK1, DiagonalEK1, PControl, Status, solve_ensemble
from probode.engines import native
from probode.engines.abreast import cuda, on_card, on_host, source
from probode.engines.native.code import OPERATIONS
from probode.engines.native.library import address
from probode.ensemble import engines, one_by_one

pytestmark = pytest.mark.skipif(not native.available(), reason="native kernels were not built")

RATES = np.array([1.0, 1.3, 1.7, 2.0, 2.2, 2.5, 2.6, 2.9, 3.1, 3.3])
"""Ten: a group of eight that is full, and one that is not."""


def lotka_volterra(t, y, a):
    return jnp.stack([a * y[0] - y[0] * y[1], y[0] * y[1] - 3.0 * y[1]])


def series(**options):
    chosen = {"save_at": [0.0, 0.7, 1.5, 2.0], "rtol": 1e-4, "covariance": True, **options}
    span = chosen.pop("t_span", (0.0, 2.0))
    return solve_ensemble(*(lotka_volterra, span, [1.0, 1.0], (RATES,)), engine="kernels", **chosen)


CASES = {
    "EK0": {"solver": EK0(3)},
    "EK0, ends": {"solver": EK0(5), "save_at": 2.0},
    "EK0, many points": {"solver": EK0(2), "save_at": np.linspace(0.0, 2.0, 150)},
    "EK0, components": {"solver": EK0(3, "dynamic-mv")},
    "EK0, damped": {"solver": EK0(4, "damped"), "smooth": False},
    "EK0, fixed": {"solver": EK0(3, "fixed"), "calibration": "model"},
    "EK0, fixed components": {"solver": EK0(4, "fixed-mv")},
    "EK0, fast": {"solver": EK0(3), "calibration": "defect-fast"},
    "EK0, proportional": {"solver": EK0(3), "control": PControl()},
    "EK0, twice": {"solver": EK0(3, evaluations=2)},
    "EK0, twice, ends": {"solver": EK0(5, evaluations=2), "save_at": 2.0},
    "EK0, twice, components": {"solver": EK0(4, "damped-mv", evaluations=2), "smooth": False},
    "EK0, twice, fixed": {"solver": EK0(3, "fixed", evaluations=2)},
    "DiagonalEK1": {"solver": DiagonalEK1(3)},
    "DiagonalEK1, components": {"solver": DiagonalEK1(2, "damped-mv"), "smooth": False},
    "EK1": {"solver": EK1(2)},
    "EK1, fast": {"solver": EK1(3), "calibration": "defect-fast", "rtol": 1e-2},
    "EK1, fixed": {"solver": EK1(3, "fixed")},
    "EK1, backwards": {"solver": EK1(2), "save_at": [1.9, 1.0, 0.0], "t_span": (2.0, 0.0)},
    "EK1, few steps": {"solver": EK1(2), "max_steps": 20},
    "EK1, diffuse": {"solver": EK1(2, initialization="diffuse"), "smooth": False},
    "EK1, tolerances of their own": {"solver": EK1(2), "rtol": 10.0 ** -np.linspace(2, 6, 10)},
}


def one_after_the_other(monkeypatch):
    monkeypatch.setattr(on_host, "MOST_COLUMNS", 0)


def assert_same(one, other):
    for name in ("status", "steps", "accepted", "f_evaluations", "jacobian_evaluations"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name), err_msg=name)
    np.testing.assert_allclose(one.mean, other.mean, rtol=1e-9, atol=1e-12)
    assert_same_bars(one, other)


@pytest.mark.parametrize("case", CASES)
def test_side_by_side_is_one_after_the_other(case, monkeypatch):
    side_by_side = series(**CASES[case])
    one_after_the_other(monkeypatch)
    assert_same(side_by_side, series(**CASES[case]))


def test_neighbours_do_not_matter():
    """Bit by bit: a member that blows up beside them, one that cannot begin, another group."""

    def blow_up(t, y, rate):
        return jnp.stack([rate * y[0] ** 2, -y[1] * y[0]])

    def solved(rates):
        return solve_ensemble(
            *(blow_up, (0.0, 0.6), [1.0, 2.0], (np.array(rates),)),
            save_at=[0.2, 0.4, 0.6],
            solver=EK1(2),
            engine="kernels",
        )

    alone, beside = solved([0.5, 0.7]), solved([3.0, 0.5, np.nan, 0.7])
    assert [int(x) == Status.SUCCESS for x in beside.status] == [False, True, False, True]
    for name in ("mean", "std", "steps"):
        np.testing.assert_array_equal(getattr(beside, name)[[1, 3]], getattr(alone, name))


def test_members_with_more_steps_than_room_are_solved_one_after_the_other(monkeypatch):
    expected = series(solver=EK0(3))
    monkeypatch.setattr(on_host, "_MOST_BYTES", 8 * 1024)  # for two to eight members
    asked = []
    real = one_by_one.solve_members
    monkeypatch.setattr(
        one_by_one, "solve_members", lambda *args, **how: (asked.append(args), real(*args, **how))
    )
    assert_same(series(solver=EK0(3)), expected)
    assert len(asked) == 1


def test_bars_are_of_the_size_of_the_error_over_many_steps():
    """A linear problem with a closed form; two decades of tolerances in one ensemble."""
    rates, times = np.linspace(0.5, 4.0, 64), np.linspace(0.0, 10.0, 21)
    found = solve_ensemble(
        *(lambda t, y, r: jnp.stack([r * y[1], -r * y[0]]), (0.0, 10.0), [1.0, 0.0], (rates,)),
        save_at=times,
        solver=EK0(4),
        engine="kernels",
        rtol=10.0 ** -np.linspace(4, 6, 64),
        atol=1e-8,
    )
    angle = rates[:, None] * times
    exact = np.stack([np.cos(angle), -np.sin(angle)], axis=-1)
    chi2 = np.mean(((found.mean - exact)[:, 1:] / found.std[:, 1:]) ** 2, axis=(1, 2))
    assert np.mean((chi2 > 1 / 3) & (chi2 < 3)) > 0.9


# The program for a GPU, compiled for the CPU.

COMPILER = shutil.which("g++") or shutil.which("clang++")
compiles = pytest.mark.skipif(COMPILER is None, reason="a C++ compiler is needed to try it")

IN_PLACE_OF_CUDA = """
#include <cmath>
#include <cstring>
#define __CUDACC__ 1
#define __device__
#define __forceinline__ inline
#define __noinline__
#define __global__
#define __launch_bounds__(...)
struct Place3 { int x; };
static Place3 blockIdx{0}, blockDim{32}, threadIdx{0};
inline double __longlong_as_double(long long x) { double y; std::memcpy(&y, &x, 8); return y; }
typedef unsigned long long Whole;
inline Whole atomicAdd(Whole* x, Whole by) { auto old = *x; *x += by; return old; }
inline Whole __shfl_sync(unsigned, Whole x, int) { return x; }
inline bool __any_sync(unsigned, bool x) { return x; }
inline void __syncwarp() {}
"""

ONE_BY_ONE = """
extern "C" void solve_all(const Given* given, const Options* options, const double* for_start,
                          const double* for_value, const double* for_slopes, double* rows,
                          long most, double* noted, long count) {
  const int width = Kept<SizesHere>{}.width(), noted_numbers = noted_width(SizesHere{});
  CardRows kept{{rows, 1, width}, most};
  const Store around{noted, 1, noted_numbers};
  CardField field{for_start, for_value, for_slopes, {}};
  for (long i = 0; i < count; ++i) {
    Tables tables;
    Solve<SizesHere, CardField, CardRows> one{
        SizesHere{}, tables, *options, *given, field, kept, around, i, 1};
    one.run();
  }
}
"""


def compiled(text, folder):
    for name, header in source.headers().items():
        (folder / name).write_text(header)
    (folder / "members.cc").write_text(text)
    target = folder / "members.so"
    options = ["-O0", "-std=c++17", "-shared", "-fPIC", "-w", "-fpermissive", f"-I{folder}"]
    subprocess.run([COMPILER, *options, str(folder / "members.cc"), "-o", str(target)], check=True)
    return ctypes.CDLL(str(target))


def solve_as_a_card_does(folder, problem, results, **_):
    library = compiled(IN_PLACE_OF_CUDA + source.source(problem) + ONE_BY_ONE, folder)
    pointers = {name: address(array) for name, array in problem.arrays().items()}
    where = tuple(None if x is None else address(x) for x in results)
    given = on_host.Given.of(problem, pointers, where)
    options = (ctypes.c_double * len(problem.options))(*problem.options)
    most = 2000
    rows = np.full(most * problem.sizes.kept, np.nan)
    noted = np.full(problem.save_at.shape[1] * max(1, problem.sizes.noted), np.nan)
    library.solve_all(
        ctypes.byref(given), options, *map(address, problem.numbers), address(rows),
        ctypes.c_long(most), address(noted), ctypes.c_long(problem.members),
    )  # fmt: skip


ON_CARD = ("EK0", "EK0, fixed components", "DiagonalEK1", "EK1")


@compiles
@pytest.mark.parametrize("case", ON_CARD)
def test_the_program_for_a_card_does_the_same(case, monkeypatch, tmp_path):
    expected = series(**CASES[case])
    monkeypatch.setattr(on_host, "solve", functools.partial(solve_as_a_card_does, tmp_path))
    assert_same(series(**CASES[case]), expected)


ONE_NUMBER = {
    "exp": jnp.exp, "exp2": jnp.exp2, "expm1": jnp.expm1, "log": jnp.log, "log1p": jnp.log1p,
    "tanh": jnp.tanh, "sin": jnp.sin, "cos": jnp.cos, "tan": jnp.tan, "sinh": jnp.sinh,
    "cosh": jnp.cosh, "asin": jnp.arcsin, "acos": jnp.arccos, "atan": jnp.arctan,
    "asinh": jnp.arcsinh, "acosh": lambda x: jnp.arccosh(x + 1.5), "atanh": jnp.arctanh,
    "cbrt": jnp.cbrt, "floor": jnp.floor, "ceil": jnp.ceil, "round_even": jnp.round,
    "sign": jnp.sign, "sqrt": jnp.sqrt, "abs": jnp.abs,
    "max": lambda x: jnp.maximum(x, 0.5), "min": lambda x: jnp.minimum(x, 0.5),
    "clamp": lambda x: jnp.clip(x, 0.3, 0.6), "select": lambda x: jnp.where(x > 0.5, x, -x),
    "and": lambda x: jnp.where((x > 0.3) & (x <= 0.6), x, 2.0),
    "rem": lambda x: jnp.fmod(3 * x, 0.7),
    "or": lambda x: jnp.where((x < 0.3) | (x >= 0.6), x, 2.0), "pow": lambda x: x**1.7,
    "xor": lambda x: jnp.where((x < 0.3) ^ (x != 0.6), x, 2.0), "div": lambda x: 1.0 / (1.0 + x),
    "not": lambda x: jnp.where(~(x < 0.3), x, 2.0), "atan2": lambda x: jnp.arctan2(x, 0.3),
    "logistic": lambda x: 1.0 / (1.0 + jnp.exp(-x)),
}  # fmt: skip


@compiles
@pytest.mark.parametrize("solver", [EK0(1), EK1(1)], ids=["EK0", "EK1"])
def test_operations_in_groups_are_those_of_the_card(solver, monkeypatch, tmp_path):
    """Many components make groups of alike operations, with one, two and three operands."""

    def field(t, y, rate):
        return rate * jnp.roll(y, 1) - jnp.sin(y) ** 2 + jnp.where(y > t, y, t)

    def solved():
        start = np.linspace(-1.0, 1.0, 24)
        how = {"solver": solver, "engine": "kernels", "calibration": "model", "rtol": 0.1}
        return solve_ensemble(field, (0.0, 0.1), start, (np.array([0.5, 0.9]),), **how)

    expected = solved()
    monkeypatch.setattr(on_host, "solve", functools.partial(solve_as_a_card_does, tmp_path))
    np.testing.assert_allclose(solved().mean, expected.mean, rtol=1e-12, atol=1e-14)


@compiles
def test_operations_of_lists_are_those_of_the_card(monkeypatch, tmp_path):
    """One step of a system in which each component has its own operation, at several values."""

    def field(t, y, x):
        return jnp.stack([one(x + 0.0 * y[i]) for i, one in enumerate(ONE_NUMBER.values())])

    def solved():
        values = np.array([0.1, 0.29, 0.5, 0.61, 0.93])
        return solve_ensemble(
            *(field, (0.0, 1.0), np.zeros(len(ONE_NUMBER)), (values,)),
            solver=EK0(1),
            engine="kernels",
            calibration="model",
        )

    expected = solved()
    monkeypatch.setattr(on_host, "solve", functools.partial(solve_as_a_card_does, tmp_path))
    np.testing.assert_allclose(solved().mean, expected.mean, rtol=1e-12, atol=1e-14)


def test_every_operation_has_a_form():
    """Functions of CUDA's have the names of the operations, where nothing else is said."""
    known = {"exp", "exp2", "expm1", "log", "log1p", "tanh", "sin", "cos", "tan", "sinh", "cosh"}
    known |= {"asin", "acos", "atan", "asinh", "acosh", "atanh", "cbrt", "erf", "erfc", "floor"}
    known |= {"ceil", "round", "sqrt"}
    named = {x for x in OPERATIONS if source._form(x).startswith(f"{x}({{0}})")}
    assert named <= known


def test_members_for_which_a_card_has_no_memory_are_solved_in_a_batch(monkeypatch, caplog):
    def full(*args, **how):
        raise cuda.OutOfMemory("CUDA: out of memory")

    def batch(*args, **how):  # by the kernels of the CPU: a batch takes long to compile
        return one_by_one.solve_one_by_one(*args, **{**how, "device": None}), None

    monkeypatch.setattr(on_card, "lacks", lambda device: None)
    monkeypatch.setattr(on_card, "solve", full)
    monkeypatch.setattr(engines, "_card", lambda device: jax.devices()[0])
    monkeypatch.setattr(engines, "solve_vmapped", batch)
    found = series(solver=EK0(3))
    assert "free memory on the card" in caplog.text
    assert np.isfinite(found.mean).all()


@pytest.mark.parametrize("smooth", [True, False])
def test_bars_of_high_orders_are_of_the_size_of_the_error(smooth):
    """The estimate beside the filter has to be better than two evaluations at order 5 are."""
    times = np.linspace(0.0, 3.0, 11)
    found = solve_ensemble(
        *(lambda t, y, k: k * np.array([y[1], -y[0]]), (0.0, 3.0), [1.0, 0.5]),
        (np.linspace(3.0, 5.0, 40),),
        solver=EK0(5, evaluations=2),
        save_at=times,
        smooth=smooth,
        rtol=1e-7,
        atol=1e-7,
    )
    turns = np.linspace(3.0, 5.0, 40)[:, None] * times
    cosine, sine = np.cos(turns), np.sin(turns)
    exact = np.stack([cosine + 0.5 * sine, 0.5 * cosine - sine], axis=-1)
    chi2 = np.mean(((found.mean - exact)[:, 1:] / found.std[:, 1:]) ** 2, axis=(1, 2))
    assert np.all((chi2 > 1 / 3) & (chi2 < 3))


def test_members_that_are_put_into_an_order_are_the_same(monkeypatch):
    rates = np.random.default_rng(0).uniform(0.5, 4.0, 600)  # 180 to 470 steps
    ordered = []
    alike = on_host._alike
    monkeypatch.setattr(on_host, "_alike", lambda *x: ordered.append(1) or alike(*x))

    def solve(some):
        options = {"solver": EK0(2), "save_at": [1.0, 7.0], "rtol": 1e-3, "engine": "kernels"}
        return solve_ensemble(lotka_volterra, (0.0, 8.0), [1.0, 1.0], (some,), **options)

    found, parts = solve(rates), [solve(rates[:300]), solve(rates[300:])]
    assert len(ordered) == 1
    for name in ("mean", "std", "steps", "status"):
        expected = np.concatenate([getattr(part, name) for part in parts])
        np.testing.assert_array_equal(getattr(found, name), expected)
