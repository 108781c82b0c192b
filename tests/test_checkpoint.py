"""Solves that go on after a kill: the same numbers, bit by bit, whatever is lost or damaged."""

import logging
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from contextlib import nullcontext
from pathlib import Path

import killed
import numpy as np
import pytest
from only_python import number

from probode import Checkpoint, SecondOrder, SparseEK1, solve_ivp
from probode.base import durable
from probode.engines import journal, kept, native
from probode.ivp import noticed

SPAN, Y0 = (0.0, 12.0), [2.0, 0.0]
FORMS = ["run", "run.npz"]


def van_der_pol(t, y):
    return np.array([y[1], 5.0 * (1.0 - y[0] ** 2) * y[1] - y[0]])


def with_a_branch(t, y):
    """Only Python can evaluate it."""
    return [y[1], -np.sin(y[0])] if number(y[0]) < 9.0 else [0.0, 0.0]


def without_derivative(t, y):
    """Its derivative is not finite where the tank is empty."""
    return np.array([-np.sqrt(np.maximum(y[0], 0.0)), np.cos(20.0 * t) - y[1]])


def complex_rotation(t, y):
    return 1j * y


def pendulum(t, y, v):
    return -np.sin(y)


def diffusion(t, y):
    """Forty components, each with its neighbours."""
    flow = np.concatenate([[y[1] - 2.0 * y[0]], y[2:] - 2.0 * y[1:-1] + y[:-2], [y[-2] - y[-1]]])
    return 50.0 * flow + y * (1.0 - y) * np.sin(5.0 * t)


def falls(t, y):
    return y[0] - 0.3


falls.terminal = 3


def ball(t, y):
    return np.array([y[1], -9.81 - 0.1 * y[1]])


def floor(t, y):
    return y[0]


floor.direction, floor.reset = -1, lambda t, y: np.array([0.0, -0.9 * y[1]])


@pytest.fixture(autouse=True)
def _many_chunks(monkeypatch):
    """Saved after each of many chunks."""
    monkeypatch.setattr(journal, "SHARE", 0)
    monkeypatch.setattr(kept, "MOST_ROWS", 32)


def numbers(result):
    """All that a result says."""
    posterior = result.posterior
    found = [result.t, result.y, result.y_std, posterior.global_error(), result.nfev]
    for name in ("t_events", "y_events", "t_events_std"):
        found += [] if result[name] is None else list(result[name])
    return [*found, result.message, posterior.log_evidence if hasattr(posterior, "path") else 0.0]


def assert_same(these, those):
    for a, b in zip(numbers(these), numbers(those), strict=True):
        np.testing.assert_array_equal(a, b)


def stopped(after):
    """A callback that stops a solve at its ``after``-th call."""
    calls = []

    def stop(progress):
        calls.append(progress)
        return len(calls) >= after

    return stop


def in_pieces(place, *problem, **options):
    """The result of a solve that is stopped after every few chunks, and how often it was."""
    for count in range(200):
        result = solve_ivp(*problem, checkpoint=place, callback=stopped(3), **options)
        if result.status >= 0:
            return result, count
    raise AssertionError("it does not get on")


TASKS = {
    "kernels": (van_der_pol, {}),
    "python": (with_a_branch, {"rtol": 1e-8}),
    "terminal event": (van_der_pol, {"events": falls}),
    "chosen times": (van_der_pol, {"t_eval": [1.0, 5.0, 12.0]}),
    "breakpoint": (van_der_pol, {"breakpoints": [3.0]}),
    "jumps": (van_der_pol, {"jumps": [(2.0, lambda t, y: -y), (4.0, lambda t, y: 0.5 * y)]}),
    "resets": (ball, {"events": floor, "max_step": 0.005}),
    "global tolerance": (van_der_pol, {"global_rtol": 1e-6, "rtol": 1e-4}),
    "no derivative": (without_derivative, {"rtol": 1e-7}),
}
COSTLY = {
    "EK0": (van_der_pol, {"method": "EK0", "order": 3}),
    "auto": (van_der_pol, {"method": "auto"}),
    "grid": (van_der_pol, {"grid": np.linspace(*SPAN, 2000)}),
    "second order": (SecondOrder(pendulum), {"rtol": 1e-8}),
    "complex": (complex_rotation, {"rtol": 1e-10, "atol": 1e-10}),
    "filter": (van_der_pol, {"smooth": False}),
    "invariants": (with_a_branch, {"bounds": (-5.0, 5.0), "rtol": 1e-7}),
    "backwards": (with_a_branch, {"rtol": 1e-8}),
}


@pytest.mark.parametrize(
    "name", [*TASKS, *(pytest.param(name, marks=pytest.mark.slow) for name in COSTLY)]
)
@pytest.mark.parametrize("form", FORMS)
def test_a_solve_in_pieces_gives_the_numbers_of_one(tmp_path, name, form):
    fun, options = {**TASKS, **COSTLY}[name]
    span = {"backwards": SPAN[::-1], "resets": (0.0, 3.0)}.get(name, SPAN)
    problem = fun, span, np.array(Y0, complex) if name == "complex" else Y0
    options = {"rtol": 1e-6, **options}
    whole = solve_ivp(*problem, **options)
    found, count = in_pieces(tmp_path / form, *problem, **options)
    assert count >= 2
    assert_same(found, whole)


@pytest.mark.parametrize("fun", [pytest.param(van_der_pol, marks=pytest.mark.slow), with_a_branch])
def test_the_same_holds_without_kernels(tmp_path, fun):
    options = {"rtol": 1e-5, "order": 3}
    with native.disabled():
        whole = solve_ivp(fun, SPAN, Y0, **options)
        found, count = in_pieces(tmp_path / "run", fun, SPAN, Y0, **options)
    assert count >= 2
    assert_same(found, whole)


@pytest.mark.parametrize("form", FORMS)
def test_what_is_done_is_not_done_again(tmp_path, form):
    calls = []

    def counts(t, y):
        calls.append(t)
        return with_a_branch(t, y)

    options = {"checkpoint": tmp_path / form, "calibration": "model", "rtol": 1e-9}
    first = solve_ivp(counts, SPAN, Y0, **options)
    took = len(calls)
    calls.clear()
    again = solve_ivp(counts, SPAN, Y0, **options)
    np.testing.assert_array_equal(again.y, first.y)
    looks = noticed._SAMPLES  # a search for jumps, which is made in both
    assert len(calls) - looks < 0.2 * (took - looks)  # to get to know it, and to start


def test_a_limit_of_time_is_where_the_next_call_goes_on(tmp_path):
    def slow(t, y):
        time.sleep(2e-4)
        return with_a_branch(t, y)

    place, reached = tmp_path / "run", [0.0]
    for _ in range(3):
        result = solve_ivp(slow, (0.0, 1e5), Y0, checkpoint=place, time_limit=0.6, rtol=1e-6)
        assert not result.success
        assert result.t[-1] > reached[-1] and result.t[0] == 0.0
        reached.append(result.t[-1])


def test_other_output_is_made_of_the_same_steps(tmp_path):
    place = tmp_path / "run"
    solve_ivp(van_der_pol, SPAN, Y0, checkpoint=place)
    options = {"t_eval": [1.0, 2.0], "calibration": "model", "dense_output": True}
    other = solve_ivp(van_der_pol, SPAN, Y0, checkpoint=place, **options)
    np.testing.assert_array_equal(other.y, solve_ivp(van_der_pol, SPAN, Y0, **options).y)


@pytest.mark.parametrize(
    ("changed", "word"),
    [
        ({"y0": [2.0, 0.1]}, "y0"),
        ({"t_span": (0.0, 13.0)}, "t_span"),
        ({"rtol": 1e-5}, "tolerances"),
        ({"fun": lambda t, y: np.array([y[1], 4.0 * (1.0 - y[0] ** 2) * y[1] - y[0]])}, "fun"),
        ({"fun": with_a_branch}, "fun"),
        ({"order": 4}, "method"),
        ({"breakpoints": [3.0]}, "breakpoints"),
        ({"events": falls}, "events"),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_a_checkpoint_of_another_problem_is_refused_and_left_as_it_is(tmp_path, changed, word):
    place = tmp_path / "run.npz"
    given = {"fun": van_der_pol, "t_span": SPAN, "y0": Y0}
    solve_ivp(**given, checkpoint=place, callback=stopped(3))
    before = place.read_bytes()
    with pytest.raises(ValueError, match=f"another solve: it differs from this one in.*{word}"):
        solve_ivp(**{**given, **changed}, checkpoint=place)
    assert place.read_bytes() == before


def damage(path, how):
    content = path.read_bytes()
    if how == "cut off":
        path.write_bytes(content[: len(content) // 2])
    elif how == "one byte":
        middle = len(content) // 2
        path.write_bytes(content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :])
    elif how == "empty":
        path.write_bytes(b"")
    else:
        path.unlink()


DAMAGES = ["cut off", "one byte", "empty", "gone"]


@pytest.mark.parametrize("how", DAMAGES)
@pytest.mark.parametrize("form", FORMS)
def test_a_damaged_file_is_gone_on_from_as_it_was_before(tmp_path, form, how, caplog):
    place = tmp_path / form
    whole = solve_ivp(van_der_pol, SPAN, Y0)
    solve_ivp(van_der_pol, SPAN, Y0, checkpoint=Checkpoint(place, every=0.0), callback=stopped(5))
    damage(place if form == "run.npz" else place / "run-0000.npz", how)
    with caplog.at_level(logging.WARNING, "probode"):
        assert_same(solve_ivp(van_der_pol, SPAN, Y0, checkpoint=place), whole)
    assert how == "gone" or "damaged" in caplog.text


@pytest.mark.parametrize("how", ["cut off", "one byte"])
@pytest.mark.parametrize("form", FORMS)
def test_where_nothing_is_good_any_more_it_is_said_and_left(tmp_path, form, how):
    place = tmp_path / form
    solve_ivp(van_der_pol, SPAN, Y0, checkpoint=Checkpoint(place, every=0.0), callback=stopped(5))
    files = [place, durable.earlier(place)] if form == "run.npz" else [place / "rows-0000.f64"]
    for path in files:
        damage(path, how)
    left = [path.read_bytes() for path in files]
    with pytest.raises(ValueError, match=r"damaged and cannot be gone on from.*left as it is"):
        solve_ivp(van_der_pol, SPAN, Y0, checkpoint=place)
    assert [path.read_bytes() for path in files] == left


class Killed(BaseException):
    """In the place of a kill: nothing is written any more from there on."""


@pytest.mark.parametrize("form", FORMS)
def test_a_kill_at_any_operation_on_files_loses_nothing(tmp_path, form, monkeypatch):
    """Each of them in turn: syncs, renames, and half of what is being written."""
    whole = solve_ivp(van_der_pol, SPAN, Y0)
    left = [0]

    def dying(operation, partial=None):
        def run(*given, **options):
            left[0] -= 1
            if left[0] == 0 and partial is not None:
                partial(*given, **options)
            if left[0] <= 0:
                raise Killed
            return operation(*given, **options)

        return run

    def half(file, **arrays):
        file.write(b"PK half of a file")

    for at in range(1, 25):
        place, left[0] = tmp_path / str(at) / form, at
        with monkeypatch.context() as patch:
            patch.setattr(durable.os, "fsync", dying(os.fsync))
            patch.setattr(durable.os, "replace", dying(os.replace))
            patch.setattr(durable.np, "savez", dying(np.savez, half))
            with pytest.raises(Killed):
                solve_ivp(van_der_pol, SPAN, Y0, checkpoint=Checkpoint(place, every=0.0))
        assert_same(solve_ivp(van_der_pol, SPAN, Y0, checkpoint=place), whole)


def child(place, out):
    """A process that has begun to solve."""
    script = Path(__file__).with_name("killed.py")
    command = [sys.executable, str(script), place, out]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "begun\n"
    return process


def kills(place, out, count, seed):
    """Kill a process at random moments, ``count`` times; then let it end."""
    draw, killed = random.Random(seed), 0
    while killed < count:
        process = child(place, out)
        time.sleep(draw.uniform(0.0, 0.6))
        killed += process.poll() is None
        process.send_signal(signal.SIGKILL)
        process.communicate()
        assert process.returncode in (0, -signal.SIGKILL)
        if process.returncode == 0:  # a fast machine is done before: once more from the beginning
            shutil.rmtree(place) if Path(place).is_dir() else Path(place).unlink()
    process = child(place, out)
    process.communicate()
    assert process.returncode == 0


IN_ANOTHER_PROCESS = """
import sys
import numpy as np
from probode import SparseEK1, solve_ivp

def traced(t, y):
    return np.array([y[1], -np.sin(y[0])])

def driven(t, y):
    return [y[1], -float(np.sin(y[0]))] if float(str(y[0])) < 9.0 else [0.0, 0.0]

for i, (fun, method) in enumerate([(traced, "EK1"), (driven, "EK0"), (traced, SparseEK1())]):
    found = solve_ivp(fun, (0.0, 2.0), [1.0, 0.0], method, checkpoint=f"{sys.argv[1]}/{i}")
    print(found.y[:, -1], found.y_std[:, -1])
"""


def test_the_same_call_in_another_process_is_the_same_solve(tmp_path):
    """Addresses and hashes differ from process to process: nothing may be known by them."""
    command = [sys.executable, "-c", IN_ANOTHER_PROCESS, str(tmp_path)]
    first, second = (
        subprocess.run(
            command,
            env=os.environ | {"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    )
    assert first == second


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_results_after_kills_at_random_moments_are_those_of_one_run(tmp_path, form):
    place, out = str(tmp_path / form), str(tmp_path / "result.npz")
    kills(place, out, 20, seed=len(form))
    whole = killed.main()
    with np.load(out) as found:
        for name, value in whole.items():
            np.testing.assert_array_equal(found[name], value)


def test_a_folder_of_something_else_is_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("my only copy")
    with pytest.raises(FileExistsError, match="not a checkpoint"):
        solve_ivp(van_der_pol, SPAN, Y0, checkpoint=tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_file_of_something_else_is_left_alone(tmp_path):
    place = tmp_path / "data.npz"
    np.savez(place, x=np.arange(3.0))
    before = place.read_bytes()
    with pytest.raises(ValueError, match="damaged"):
        solve_ivp(van_der_pol, SPAN, Y0, checkpoint=place)
    assert place.read_bytes() == before


@pytest.mark.parametrize("form", FORMS)
def test_two_solves_do_not_write_to_one_place(tmp_path, form):
    place = tmp_path / form
    tries = []

    def second(progress):
        with pytest.raises(ValueError, match="being written by another solve"):
            solve_ivp(van_der_pol, SPAN, Y0, checkpoint=place)
        tries.append(progress)

    solve_ivp(van_der_pol, SPAN, Y0, checkpoint=place, callback=second)
    assert tries
    assert solve_ivp(van_der_pol, SPAN, Y0, checkpoint=place).success


def test_rows_of_a_folder_do_not_stay_in_memory(tmp_path, monkeypatch):
    held = []
    add = kept.Kept.last_alone

    def watched(self, least):
        add(self, least)
        held.append(sum(part.steps for part in self.chunks))

    monkeypatch.setattr(kept.Kept, "last_alone", watched)
    result = solve_ivp(van_der_pol, (0.0, 100.0), Y0, rtol=1e-6, checkpoint=tmp_path / "run")
    assert result.posterior.stats.steps > 2000
    assert max(held) < 400


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "options",
    [
        pytest.param({}, id=""),
        pytest.param({"t_eval": [1.0, 3.0]}, id="chosen times"),
        pytest.param({"calibration": "model", "breakpoints": [1.5]}, id="model"),
        pytest.param({"mass_matrix": np.full(40, 2.0)}, id="mass matrix", marks=pytest.mark.slow),
        pytest.param({"method": SparseEK1(linear="krylov")}, id="krylov", marks=pytest.mark.slow),
    ],
)
def test_large_systems_go_on_with_the_same_factorisations(tmp_path, form, options):
    problem = diffusion, (0.0, 4.0), np.linspace(0.0, 1.0, 40) ** 2
    options = {"method": "SparseEK1", "rtol": 1e-6, "atol": 1e-8, **options}
    whole = solve_ivp(*problem, **options, checkpoint=tmp_path / "whole")
    found, count = in_pieces(tmp_path / form, *problem, **options)
    assert count >= 2
    for name in ("t", "y", "y_std", "nfev", "njev", "nlu"):
        np.testing.assert_array_equal(found[name], whole[name])
    # Without a checkpoint kernels take the same steps, and round in another order.
    np.testing.assert_allclose(found.y, solve_ivp(*problem, **options).y, rtol=1e-7, atol=1e-12)


@pytest.mark.parametrize(
    ("given", "error"), [(3, TypeError), ("", TypeError), (("run", "fast"), ValueError)]
)
def test_bad_places_and_intervals(given, error):
    with pytest.raises(error):
        Checkpoint(*given) if isinstance(given, tuple) else Checkpoint(given)


@pytest.mark.parametrize("context", [nullcontext, native.disabled])
@pytest.mark.slow
def test_a_checkpoint_of_another_engine_is_refused(tmp_path, context):
    other = native.disabled if context is nullcontext else nullcontext
    with context():
        solve_ivp(van_der_pol, SPAN, Y0, checkpoint=tmp_path / "run", callback=stopped(3))
    with other(), pytest.raises(ValueError, match="engine"):
        solve_ivp(van_der_pol, SPAN, Y0, checkpoint=tmp_path / "run")
