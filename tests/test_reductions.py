"""Statistics gathered while an ensemble is solved are those of all members, kept whole."""

import itertools

import jax
import numpy as np
import pytest
from compiling import QUICKLY
from probode.reductions import Chunk, Function, Histogram, Max, Mean, Min, Quantiles, Variance

import probode
from probode import EK0, Status, reductions
from probode.ensemble import batch, chunks, collected
from probode.ensemble.sketch import Sketch

COUNT = 300
RATES = np.random.default_rng(0).uniform(0.1, 1.5, COUNT)
TIMES = np.linspace(0.0, 1.0, 4)
EDGES = np.linspace(0.0, 2.0, 9)
Q = [0.05, 0.5, 0.95]
OPTIONS = {"calibration": "model", "solver": EK0(2), "rtol": 1e-3, "atol": 1e-5, "max_steps": 60}


def growth(t, y, rate):
    """Beyond a rate of one it blows up before the end."""
    return rate * y * y


def everything():
    return {
        "mean": Mean(),
        "std": Mean(of="std"),
        "variance": Variance(),
        "quantiles": Quantiles(Q),
        "histogram": Histogram(EDGES),
        "min": Min(),
        "max": Max(),
        "squares": lambda chunk: {"y²": np.square(chunk.mean).sum(axis=0), "n": len(chunk)},
    }


def solve(rates=RATES, save_at=TIMES, **options):
    return probode.solve_ensemble(
        growth, (0.0, 1.0), [1.0, 0.5], (rates,), save_at=save_at, **{**OPTIONS, **options}
    )


@pytest.fixture(scope="module", autouse=True)
def quickly_compiled():
    with pytest.MonkeyPatch.context() as patch:
        for name in ("advance_lanes", "exchange_lanes"):
            program = jax.jit(
                getattr(batch, name).__wrapped__, static_argnums=0, compiler_options=QUICKLY
            )
            patch.setattr(batch, name, program)
        yield


@pytest.fixture(scope="module")
def whole():
    return solve(engine="vmapped")


@pytest.fixture
def sizes(monkeypatch):
    """How many members each chunk has that is solved."""
    found = []
    original = chunks.solve_members

    def noting(vector_field, members, *rest, **options):
        found.append(members.count)
        return original(vector_field, members, *rest, **options)

    monkeypatch.setattr(chunks, "solve_members", noting)
    return found


def check(reduced, whole):
    """NumPy's statistics of the members that reached their end."""
    done = whole.success
    mean, std = whole.mean[done], whole.std[done]
    assert 0 < np.sum(~done) < len(done)
    assert (reduced.members, reduced.used, reduced.failed) == (len(done), done.sum(), (~done).sum())
    assert list(reduced.first_failed) == whole.failed[:100].tolist()
    codes = dict(zip(*np.unique(whole.status, return_counts=True), strict=True))
    assert {status.value: n for status, n in reduced.statuses.items()} == codes
    # A sum of n numbers is rounded n times at most, in units of the largest.
    room = {"rtol": 1e-13, "atol": 1e-14}
    np.testing.assert_allclose(reduced["mean"], mean.mean(axis=0), **room)
    np.testing.assert_allclose(reduced["std"], std.mean(axis=0), **room)
    np.testing.assert_allclose(reduced["variance"], mean.var(axis=0, ddof=1), **room)
    np.testing.assert_allclose(reduced["squares"]["y²"], np.square(mean).sum(axis=0), **room)
    assert reduced["squares"]["n"] == done.sum()
    assert np.array_equal(reduced["min"], mean.min(axis=0))
    assert np.array_equal(reduced["max"], mean.max(axis=0))
    assert reduced["quantiles"].rank_error == 0.0
    np.testing.assert_allclose(
        reduced["quantiles"].values, np.quantile(mean, Q, axis=0), rtol=1e-15
    )
    histogram = reduced["histogram"]
    for place in np.ndindex(*mean.shape[1:]):
        values = mean[(slice(None), *place)]
        assert np.array_equal(histogram.counts[place], np.histogram(values, EDGES)[0])
        assert histogram.below[place] == np.sum(values < EDGES[0])
        assert histogram.above[place] == np.sum(values > EDGES[-1])


def test_they_are_those_of_all_members(whole):
    check(solve(engine="vmapped", reduce=everything()), whole)
    check(whole.reduce(everything()), whole)


def test_they_do_not_depend_on_the_chunks(whole, sizes):
    small = solve(engine="vmapped", reduce=everything(), memory=2**15)
    assert len(sizes) > 3 and max(sizes) < 100
    check(small, whole)


@pytest.mark.parametrize("engine", ["lanes", "kernels"])
def test_each_engine_gives_them(engine):
    # At rates between, whether a member blows up is the same for all of them.
    rates = np.concatenate([np.linspace(0.1, 0.8, 80), np.linspace(1.2, 2.0, 20)])
    expected = solve(rates, None, engine=engine)
    check(solve(rates, None, engine=engine, reduce=everything()), expected)


def test_a_store_keeps_the_members_and_an_interrupted_one_goes_on(whole, tmp_path, monkeypatch):
    pytest.importorskip("zarr")
    store, calls = tmp_path / "sweep.zarr", itertools.count()
    original = chunks.solve_members

    def failing(*args, **options):
        if next(calls) == 2:
            raise RuntimeError("power cut")
        return original(*args, **options)

    options = {"engine": "vmapped", "memory": 2**15, "store": store, "reduce": everything()}
    monkeypatch.setattr(chunks, "solve_members", failing)
    with pytest.raises(RuntimeError, match="power cut"):
        solve(**options)
    solved = []
    monkeypatch.setattr(
        chunks,
        "solve_members",
        lambda f, m, *rest, **o: solved.append(m.count) or original(f, m, *rest, **o),
    )
    check(solve(**options), whole)
    assert 0 < sum(solved) < COUNT
    check(solve(**options), whole)  # nothing is left to solve


def test_workers_reduce_what_they_solve(whole):
    distributed = pytest.importorskip("distributed")
    cluster = distributed.LocalCluster(
        n_workers=1, threads_per_worker=1, processes=False, dashboard_address=None
    )
    with cluster, distributed.Client(cluster) as client:
        found = solve(engine="vmapped", client=client, reduce=everything(), memory=2**15)
    check(found, whole)


def test_nothing_is_kept_of_the_members(monkeypatch):
    """What is there after a chunk takes as much after many."""
    import pickle

    from probode.ensemble.reduced import Reducing

    held = []
    original = Reducing.write

    def weighing(self, chunk, results):
        original(self, chunk, results)
        assert not self._early
        fixed = {n: x for n, x in self.tally.reductions.items() if n not in ("squares",)}
        held.append(len(pickle.dumps(fixed)))

    monkeypatch.setattr(Reducing, "write", weighing)
    wanted = {**everything(), "quantiles": Quantiles(Q, size=16)}
    solve(np.linspace(0.1, 0.4, 1200), engine="kernels", save_at=None, reduce=wanted, memory=2**15)
    assert len(held) >= 8
    # Each doubling of the members may add a level of 32 values for two components.
    assert max(held) - held[0] < 2 * 8 * 32 * 8


@pytest.mark.parametrize("count", [32, 33, 1000, 20_000])
def test_quantiles_keep_to_the_bound_of_their_ranks(count):
    rng = np.random.default_rng(count)
    values = np.stack(
        [rng.normal(size=count), np.sort(rng.exponential(size=count)), rng.integers(0, 5, count)], 1
    )
    q = np.linspace(0.0, 1.0, 21)
    size = 16
    in_one, in_parts, merged = Sketch(size), Sketch(size), Sketch(size)
    in_one.add(values)
    for piece in np.array_split(values, [5, 6, 50, 777]):
        in_parts.add(piece)
        other = Sketch(size)
        other.add(piece)
        merged.join(other)
    assert np.array_equal(in_one.quantiles(q), in_parts.quantiles(q))
    for sketch in (in_one, merged):
        assert sketch.count == count
        assert sketch.rank_error <= max(0.0, np.log2(count / size)) / (2 * size)
        assert (sketch.rank_error == 0.0) == (count <= 2 * size)
        found = sketch.quantiles(q)
        if sketch.rank_error == 0.0:
            assert np.array_equal(found, np.quantile(values, q, axis=0))
            continue
        for part, row in zip(q, found, strict=True):
            below, upto = (values < row).mean(axis=0), (values <= row).mean(axis=0)
            assert np.all(below <= part + sketch.rank_error + 1 / count)
            assert np.all(upto >= part - sketch.rank_error)


def test_variances_do_not_cancel():
    """A spread of one around 1e9: squares of 1e18 have no digit left for it."""
    values = 1e9 + np.random.default_rng(0).normal(size=(5000, 1, 1))
    found = Variance()
    for piece in np.array_split(values, 7):
        other = Variance()
        nothing = np.zeros((len(piece), 1))
        other.update(Chunk(np.arange(len(piece)), nothing, piece, piece, None, ()))
        found.merge(other)
    # Values are rounded to 1e-7 of their spread, and so are those that NumPy is given.
    np.testing.assert_allclose(found.result(), np.var(values, axis=0, ddof=1), rtol=1e-7)


def test_a_function_sees_members_and_their_parameters():
    def ends(chunk):
        assert chunk.t.shape == (len(chunk), 1) and chunk.cov.shape == (len(chunk), 1, 2, 2)
        return {int(i): (rate, y) for i, rate, y in zip(chunk.numbers, *found(chunk), strict=True)}

    def found(chunk):
        return chunk.args[0], chunk.mean[:, 0, 0]

    joined = Function(
        ends, combine=lambda a, b: {**a, **b}, finish=lambda x: dict(sorted(x.items()))
    )
    rates = np.array([0.5, 3.0, 0.25])
    reduced = solve(rates, None, covariance=True, reduce={"ends": joined})
    assert list(reduced["ends"]) == [0, 2]
    for i, (rate, y) in reduced["ends"].items():
        assert rate == rates[i] and abs(y - 1 / (1 - rate)) < 1e-3


def test_if_all_failed_nothing_is_said():
    reduced = solve(np.full(3, np.nan), reduce=[*(everything()[n] for n in ("mean", "quantiles"))])
    assert reduced.failed == 3 and reduced.used == 0
    assert reduced["mean"] is None and reduced["quantiles"] is None
    assert "3 START_NOT_FINITE" in repr(reduced)
    assert reduced.statuses == {Status.START_NOT_FINITE: 3}


def test_a_result_has_names_and_becomes_a_dataset():
    pytest.importorskip("xarray")
    reduced = solve(RATES[:5] / 2, reduce=[Mean(), Quantiles(Q), Histogram(EDGES)])
    assert list(reduced) == ["mean", "quantiles", "histogram"]
    assert np.array_equal(reduced.t, TIMES)
    data = reduced.to_xarray()
    assert data["mean"].dims == ("time", "state")
    assert data["quantiles"].dims == ("quantiles_q", "time", "state")
    assert data["histogram"].sum() + data["histogram_above"].sum() == 5 * len(TIMES) * 2
    assert data.attrs["members"] == 5 and data.attrs["failed"] == 0


def test_a_reduction_is_not_used_up():
    mean = Mean()
    first, again = (solve(RATES[:3] / 2, None, reduce=mean) for _ in range(2))
    assert np.array_equal(first["mean"], again["mean"]) and mean.result() is None


@pytest.mark.parametrize(
    ("reduce", "error", "words"),
    [
        (3, TypeError, "must be a reduction"),
        (Mean, TypeError, r"write Mean\(\)"),
        ([], ValueError, "at least one"),
        ([Mean(), Mean(of="std")], ValueError, "several reductions of the name 'mean'"),
    ],
)
def test_what_is_no_reduction_is_refused(reduce, error, words):
    with pytest.raises(error, match=words):
        solve(reduce=reduce)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Quantiles([1.5]), "between 0 and 1"),
        (lambda: Quantiles([0.5], size=3), "even"),
        (lambda: Histogram([1.0]), "at least two"),
        (lambda: Histogram([1.0, 0.0]), "increasing"),
        (lambda: Mean(of="median"), "'mean' or 'std'"),
    ],
)
def test_settings_are_checked(make, words):
    with pytest.raises(ValueError, match=words):
        make()


def test_weights_of_a_cubature_are_not_forgotten():
    with pytest.raises(ValueError, match="moments"):
        probode.solve_ensemble(
            growth,
            (0, 1),
            probode.Normal([0.1, 0.2], 1e-4 * np.eye(2)),
            (0.5,),
            cubature=5,
            reduce=reductions.Mean(),
        )


def test_too_much_memory_is_refused_before_anything_is_solved(monkeypatch):
    monkeypatch.setattr(collected, "free_memory", lambda: 2.0**30)
    million = {"rates": probode.Sweep(np.full(10**6, 0.5), "a")}
    many = np.linspace(0.0, 1.0, 1000)
    with pytest.raises(
        MemoryError, match=r"1000000 members at 1000 save points take 30 GB"
    ) as told:
        solve(**million, save_at=many)
    assert "store=" in str(told.value) and "reduce=" in str(told.value)
