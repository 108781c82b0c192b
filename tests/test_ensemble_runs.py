"""Ensembles that take long: on disk, killed and resumed, on a cluster that loses a worker."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas
import pytest
import xarray

import probode
from probode import EK0, Status, Sweep
from probode.ensemble import chunks, store
from probode.ensemble.problem import read_family
from probode.ensemble.solve import read_settings

zarr = pytest.importorskip("zarr")

RATES = np.linspace(0.5, 2.0, 1000)
SMALL_CHUNKS = 2**15
"""A memory budget that makes chunks of some hundred members."""


def decay(t, y, rate):
    return -rate * y


def solve(rates=RATES, fun=decay, **options):
    options = {"solver": EK0(1), "smooth": False, "memory": SMALL_CHUNKS} | options
    return probode.solve_ensemble(
        fun, (0.0, 1.0), [1.0], (Sweep(rates, "rate"),), rtol=1e-3, **options
    )


@pytest.fixture(scope="module")
def plain():
    return solve()


@pytest.fixture
def counted(monkeypatch):
    """How many members are solved, chunk by chunk."""
    counts = []
    original = chunks.solve_members

    def counting(vector_field, members, *rest, **options):
        counts.append(members.count)
        return original(vector_field, members, *rest, **options)

    monkeypatch.setattr(chunks, "solve_members", counting)
    return counts


def assert_same(found, plain):
    for name in ("mean", "std", "status", "steps", "f_evaluations"):
        np.testing.assert_array_equal(getattr(found, name), getattr(plain, name))


def test_chunks_do_not_change_the_result(plain, counted):
    assert_same(solve(memory=2**18), plain)
    assert max(counted) < 1000


def test_progress_counts_members(capsys):
    solve(progress="always")
    assert "1.00k/1.00k" in capsys.readouterr().err


def test_labels_that_are_no_numbers_are_stored(tmp_path):
    table = pandas.Series([1.0, 2.0], index=pandas.Index(["a", "b"], name="patient"))
    probode.solve_ensemble(
        decay, (0.0, 1.0), [1.0], (table,), solver=EK0(1), smooth=False, store=tmp_path / "out.zarr"
    )
    attributes = xarray.open_zarr(tmp_path / "out.zarr", consolidated=False).attrs
    assert attributes["probode ensemble"]["labels"] == {"patient": ["a", "b"]}


@pytest.mark.parametrize("each", [False, True], ids=["same times", "times of their own"])
def test_a_netcdf_file_holds_the_same(tmp_path, each):
    """Labels in words, a member that fails, save points that differ."""
    pytest.importorskip("netCDF4")
    table = pandas.Series([1.0, np.nan, 2.0], index=pandas.Index(["a", "b", "c"], name="patient"))
    times = np.linspace(0.5, 1.0, 3)
    found = probode.solve_ensemble(
        *(decay, (0.0, 1.0), [1.0], (table,)),
        save_at=xarray.DataArray([times, times, times / 2], dims=("patient", "time"))
        if each
        else times,
        solver=EK0(1),
    )
    found.to_netcdf(tmp_path / "out.nc")
    with xarray.open_dataset(tmp_path / "out.nc") as stored:
        xarray.testing.assert_identical(stored.load(), found.to_xarray())
    assert list(stored.patient) == ["a", "b", "c"] and not stored.trusted[1]
    assert np.isnan(stored["y"][1]).all() and stored["y_std"].shape == (3, 3, 1)


def test_a_store_holds_the_same(plain, tmp_path):
    found = solve(store=tmp_path / "out.zarr")
    assert_same(found, plain)
    table = xarray.open_zarr(tmp_path / "out.zarr", consolidated=False)
    np.testing.assert_array_equal(table["y"], plain.mean)
    np.testing.assert_array_equal(table["rate"], RATES)
    np.testing.assert_array_equal(found.to_xarray()["y_std"], plain.std)


def test_save_points_of_each_member_are_in_the_store(tmp_path):
    """As in ``to_xarray``; without them nobody could say when a stored value is."""
    times = np.sort(np.random.default_rng(1).uniform(0.1, 1.0, (500, 3)), axis=1)
    found = solve(RATES[:500], save_at=Sweep(times, "rate"), store=tmp_path / "out.zarr")
    stored = zarr.open_group(str(tmp_path / "out.zarr"), mode="r")["t"]
    np.testing.assert_array_equal(stored[...], times)
    assert tuple(stored.metadata.dimension_names) == ("member", "time")
    np.testing.assert_array_equal(found.t, times)


def test_a_store_of_older_versions_is_read_and_continued(plain, tmp_path, monkeypatch):
    """They call the variables mean, std, cov, and are compressed by Zarr's default."""
    create = zarr.Group.create_array

    def compressed_by_default(group, name, **options):
        return create(group, name, **(options | {"compressors": "auto"}))

    with monkeypatch.context() as older:
        older.setattr(store, "DATASET_NAMES", {})
        older.setattr(zarr.Group, "create_array", compressed_by_default)
        solve(store=tmp_path / "out.zarr")
    assert "mean" in xarray.open_zarr(tmp_path / "out.zarr", consolidated=False)
    shutil.rmtree(tmp_path / "out.zarr" / "status" / "c")  # as if it had been killed
    assert_same(solve(store=tmp_path / "out.zarr"), plain)


def test_chunks_with_many_save_points_are_bounded_in_bytes():
    """Ten million members with 100 save points are not kept in memory 65 536 at a time."""
    family = read_family(
        (0.0, 1.0), np.ones(3), (np.zeros(10**7),), np.linspace(0, 1, 100), None, None,
        probode.PIControl(), (),
    )  # fmt: skip
    settings = read_settings(
        EK0(3), probode.PIControl(), True, False, "defect", 100, None, "kernels"
    )
    members = chunks.chunk_size(family, settings, 2**30, 1)
    assert 2**24 < members * chunks.bytes_per_member(family, settings) <= 2**25


SCRIPT = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
import test_ensemble_runs as runs
from probode.ensemble import store
import time
write, written = store.Store.write, []
def slowly(self, chunk, results):
    write(self, chunk, results)
    written.append(chunk)
    print("written", flush=True)
    time.sleep(60 * (len(written) - 1))
store.Store.write = slowly
runs.solve(store=sys.argv[1])
"""


def test_a_killed_run_goes_on_where_it_was(plain, tmp_path, counted):
    path = tmp_path / "out.zarr"
    command = [sys.executable, "-c", SCRIPT, str(path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    for _ in range(2):
        assert process.stdout.readline() == b"written\n"
    process.send_signal(signal.SIGKILL)
    process.wait()
    before = {file: file.stat().st_mtime_ns for file in (path / "y" / "c").rglob("*")}
    found = solve(store=path)
    assert_same(found, plain)
    files = [file for file in before if file.is_file()]
    assert len(files) == 2
    assert all(file.stat().st_mtime_ns == before[file] for file in files)
    assert 0 < sum(counted) < 1000
    counted.clear()
    assert_same(solve(store=path), plain)
    assert not counted


def test_a_run_with_other_settings_is_refused(tmp_path, counted):
    solve(store=tmp_path / "out.zarr")
    counted.clear()
    for options, words in (
        ({"rates": RATES**2}, "differs from this one in: args"),
        ({"solver": EK0(2)}, r"solver \(stored: EK0\(order=1"),
        ({"fun": lambda t, y, rate: -2 * rate * y}, "in: fun"),
    ):
        with pytest.raises(ValueError, match=words):
            solve(store=tmp_path / "out.zarr", **options)
    with pytest.raises(FileExistsError, match="resume=True"):
        solve(store=tmp_path / "out.zarr", resume=False)
    assert not counted


def test_a_path_that_cannot_be_written_is_refused_before_anything_is_computed(tmp_path, counted):
    (tmp_path / "file").write_text("no folder")
    for path in (tmp_path / "file" / "out.zarr", tmp_path / "file"):
        with pytest.raises(OSError, match="store"):
            solve(store=path)
    assert not counted


def test_the_store_says_what_is_missing(tmp_path, monkeypatch, ctrl_c):
    """Ctrl-C: what was finished is there, the rest is marked, and a resumed run completes it."""
    original = chunks.solve_members
    seen = []

    def interrupted(vector_field, members, *rest, **options):
        seen.append(members.count)
        if len(seen) == 4:
            os.kill(os.getpid(), signal.SIGINT)
            options["stop"].wait(10)
        return original(vector_field, members, *rest, **options)

    with monkeypatch.context() as patch:
        patch.setattr(chunks, "solve_members", interrupted)
        found = solve(store=tmp_path / "out.zarr")
    assert 0 < np.sum(found.status == Status.INTERRUPTED) < 1000
    assert set(found.status) == {Status.SUCCESS, Status.INTERRUPTED}
    assert solve(store=tmp_path / "out.zarr").success.all()


# --- A cluster ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def client():
    distributed = pytest.importorskip("distributed")
    cluster = distributed.LocalCluster(
        n_workers=2,
        threads_per_worker=1,
        processes=True,
        dashboard_address=None,
    )
    with cluster, distributed.Client(cluster) as client:
        yield client


@pytest.mark.slow
@pytest.mark.parametrize("stored", [True, False], ids=["written by the workers", "gathered"])
def test_a_cluster_that_loses_a_worker_gives_the_same(client, plain, tmp_path, stored):
    victims = list(client.run(os.getpid).values())
    finished = []

    def kill(count):
        finished.append(count)
        if len(finished) == 1:
            os.kill(victims[0], signal.SIGKILL)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("probode.ensemble.solve.members_bar", _telling(kill))
        store = tmp_path / "out.zarr" if stored else None
        found = solve(fun=decay, client=client, store=store)
    assert_same(found, plain)
    assert victims[0] not in client.run(os.getpid).values()
    assert len(finished) > 2


def _telling(function):
    from contextlib import contextmanager

    @contextmanager
    def bar(*_):
        yield function

    return bar


def test_a_client_is_checked():
    pytest.importorskip("distributed")
    with pytest.raises(TypeError, match=r"distributed\.Client"):
        solve(client="localhost:8786")
