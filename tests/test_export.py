"""Exported and saved posteriors hold what the posterior holds."""

import builtins
import json
import sys
import zipfile
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiling import jit_once

import probode
from probode import EK0, EK1, DiagonalEK1, Posterior

Y0 = np.array([1.0, 0.5])
TIMES = np.array([0.1, 0.55, 0.9])


def field(t, y):
    return jnp.sin(y) - y * jnp.roll(y, 1) + t


def solve(solver=EK1(2), y0=Y0, step=0.125, **options):  # noqa: B008
    return probode.solve(field, (0.0, 1.0), y0, solver=solver, step=step, **options)


@pytest.fixture(scope="module")
def posterior():
    return solve()


@pytest.fixture(scope="module")
def saved_times():
    return solve(save_at=TIMES)


@pytest.fixture
def file(tmp_path):
    return tmp_path / "posterior.npz"


def again(posterior, file):
    posterior.save(file)
    return Posterior.load(file)


def rewritten(file, change):
    """The file with a changed header."""
    with np.load(file) as members:
        arrays = dict(members)
    header = json.loads(str(arrays.pop("header")))
    change(header)
    np.savez(file, header=np.array(json.dumps(header)), **arrays)


# xarray, netCDF, pandas


def test_dataset_has_time_and_state(posterior):
    data = posterior.to_xarray()
    assert dict(data.sizes) == {"time": 9, "state": 2}
    np.testing.assert_array_equal(data.time, posterior.t)
    np.testing.assert_array_equal(data.state, [0, 1])


@pytest.mark.parametrize(("variable", "name"), [("y", "mean"), ("y_std", "std")])
def test_dataset_holds_the_marginals(posterior, variable, name):
    """As attributes too: xarray's own methods (``Dataset.mean``) would be in the way."""
    np.testing.assert_array_equal(
        getattr(posterior.to_xarray(), variable), getattr(posterior, name)
    )


def test_dataset_holds_samples_if_asked_for(posterior):
    data = posterior.to_xarray(samples=3, seed=7)
    assert data.samples.dims == ("sample", "time", "state")
    np.testing.assert_array_equal(data.samples, posterior.sample(3, seed=7))


def test_dataset_without_samples_has_no_such_variable(posterior):
    assert set(posterior.to_xarray().data_vars) == {"y", "y_std"}


def test_dataset_at_other_times_is_dense_output(posterior):
    data = posterior.to_xarray(samples=2, t=TIMES)
    np.testing.assert_array_equal(data["y"], posterior(TIMES).mean)
    np.testing.assert_array_equal(data["samples"], posterior.sample(2, t=TIMES))


def test_dataset_at_one_time_has_one_row(posterior):
    assert posterior.to_xarray(t=0.3).sizes["time"] == 1


def test_matrix_of_times_is_refused(posterior):
    with pytest.raises(ValueError, match=r"vector of times, got shape \(1, 2\)"):
        posterior.to_xarray(t=[[0.1, 0.2]])


def test_matrices_are_flattened_and_their_shape_is_recorded():
    posterior = solve(EK0(2), np.ones((2, 3)))
    data = posterior.to_xarray()
    assert (data.sizes["state"], data.attrs["shape"]) == (6, "(2, 3)")
    np.testing.assert_array_equal(data["y"][:, 4], posterior.mean[:, 1, 1])


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("method", "EK1(2)"),
        ("order", 2),
        ("diffusion", "dynamic"),
        ("initialization", "taylor"),
        ("steps", 8),
        ("rejected", 0),
        ("status", "SUCCESS"),
        ("smoothed", 1),
        ("source", f"probode {probode.__version__}"),
    ],
)
def test_attributes_say_how_the_solution_was_computed(posterior, name, value):
    assert posterior.to_xarray().attrs[name] == value


def test_attributes_hold_message_and_evidence(posterior):
    attributes = posterior.to_xarray().attrs
    assert attributes["message"] == posterior.message
    assert attributes["log_evidence"] == posterior.log_evidence


def test_attributes_hold_tolerances_where_there_are_any(posterior):
    known = with_tolerances(posterior, (np.asarray(1e-3), np.array([1e-6, 1e-5])))
    attributes = known.to_xarray().attrs
    assert attributes["rtol"] == 1e-3
    np.testing.assert_array_equal(attributes["atol"], [1e-6, 1e-5])


def with_tolerances(posterior, tolerances):
    return replace(posterior, tolerances=tolerances)


def test_netcdf_gives_the_dataset_back(posterior, tmp_path):
    xarray = pytest.importorskip("xarray")
    known = with_tolerances(posterior, (np.asarray(1e-3), np.array([1e-6, 1e-5])))
    known.to_netcdf(tmp_path / "posterior.nc", samples=2)
    with xarray.open_dataset(tmp_path / "posterior.nc") as data:
        xarray.testing.assert_identical(data.load(), known.to_xarray(samples=2))


def test_netcdf_of_a_number_can_be_written(tmp_path):
    probode.solve(lambda t, y: -y, (0, 1), 1.0, solver=EK0(2), step=0.25).to_netcdf(
        tmp_path / "number.nc"
    )


def test_saved_times_are_exported(saved_times):
    np.testing.assert_array_equal(saved_times.to_xarray().time, TIMES)


def test_frame_has_two_columns_per_component(posterior):
    frame = posterior.to_dataframe()
    assert list(frame) == ["y1", "y1_std", "y2", "y2_std"]
    assert frame.index.name == "time"
    np.testing.assert_array_equal(frame["y2_std"], posterior.std[:, 1])


def test_frame_can_be_taken_at_other_times(posterior):
    frame = posterior.to_dataframe(t=TIMES)
    np.testing.assert_array_equal(frame.index, TIMES)
    np.testing.assert_array_equal(frame["y1"], posterior(TIMES).mean[:, 0])


def test_frame_takes_names(posterior):
    assert list(posterior.to_dataframe(names=["a", "b"])) == ["a", "a_std", "b", "b_std"]


def test_frame_refuses_the_wrong_number_of_names(posterior):
    with pytest.raises(ValueError, match="2 strings, one per component"):
        posterior.to_dataframe(names=["a"])


@pytest.mark.parametrize(
    ("library", "call"),
    [
        ("xarray", lambda p: p.to_xarray()),
        ("netCDF4", lambda p: p.to_netcdf("never written")),
        ("pandas", lambda p: p.to_dataframe()),
    ],
)
def test_missing_libraries_say_how_to_get_them(posterior, monkeypatch, library, call):
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(ImportError, match=rf"{library}: pip install probode\[export\]"):
        call(posterior)


# Saving and loading

KINDS = {
    "dense": {},
    "filter": {"smooth": False},
    "save_at": {"save_at": TIMES},
    "save_at, filter": {"save_at": TIMES, "smooth": False},
    "isotropic": {
        "solver": EK0(3, "fixed-mv", initialization="diffuse"),
        "y0": np.ones((2, 2)),
    },
    "block-diagonal": {
        "solver": DiagonalEK1(
            2, probode.FixedDiffusion(error="running"), initialization=probode.DiffuseStart(0.3)
        )
    },
}


@pytest.fixture(scope="module", params=KINDS)
def both(request, tmp_path_factory):
    posterior = solve(**KINDS[request.param])
    return posterior, again(posterior, tmp_path_factory.mktemp("saved") / "posterior.npz")


@pytest.mark.parametrize(
    "name", ["t", "mean", "std", "cov", "log_evidence", "spread", "shape", "status", "message"]
)
def test_loaded_posterior_is_the_same_bit_for_bit(both, name):
    posterior, loaded = both
    np.testing.assert_array_equal(getattr(loaded, name), getattr(posterior, name))


def test_loaded_posterior_knows_its_solver(both):
    posterior, loaded = both
    assert (loaded.solver, loaded.method) == (posterior.solver, posterior.method)


def test_loaded_posterior_has_all_leaves(both):
    """Same structure, same numbers: whatever the library computes from them is the same."""
    posterior, loaded = both
    assert jax.tree.structure(loaded) == jax.tree.structure(posterior)
    for ours, theirs in zip(jax.tree.leaves(loaded), jax.tree.leaves(posterior), strict=True):
        np.testing.assert_array_equal(ours, theirs)
        assert np.asarray(ours).dtype == np.asarray(theirs).dtype


@pytest.mark.parametrize("k", [0, 1])
def test_loaded_posterior_has_the_same_dense_output(posterior, file, k):
    ours, theirs = (p.derivative(TIMES, k) for p in (again(posterior, file), posterior))
    np.testing.assert_array_equal(ours.mean, theirs.mean)
    np.testing.assert_array_equal(ours.cov, theirs.cov)


def test_loaded_posterior_draws_the_same_samples(posterior, file):
    loaded = again(posterior, file)
    np.testing.assert_array_equal(loaded.sample(2, t=TIMES), posterior.sample(2, t=TIMES))


def test_loaded_saved_times_draw_the_same_samples(saved_times, file):
    np.testing.assert_array_equal(again(saved_times, file).sample(2), saved_times.sample(2))


def test_tolerances_survive(posterior, file):
    known = with_tolerances(posterior, (np.asarray(1e-3), np.array([1e-6, 1e-5])))
    np.testing.assert_array_equal(again(known, file).tolerances[1], [1e-6, 1e-5])


def test_failed_solve_can_be_saved(file):
    loaded = again(solve(max_steps=3), file)
    assert (loaded.status, len(loaded.t)) == (probode.Status.MAX_STEPS, 4)


def test_path_is_taken_as_it_is(posterior, tmp_path):
    posterior.save(tmp_path / "without ending")
    assert [path.name for path in tmp_path.iterdir()] == ["without ending"]


def test_result_of_a_compiled_solve_can_be_saved(saved_times, file):
    compiled = jit_once(lambda y0: solve(y0=y0, save_at=TIMES))(Y0)
    np.testing.assert_allclose(again(compiled, file).mean, saved_times.mean, rtol=1e-12)


def test_file_can_be_read_without_the_library(posterior, file):
    posterior.save(file)
    with np.load(file, allow_pickle=False) as members:
        header = json.loads(str(members["header"]))
        np.testing.assert_array_equal(members["posterior.path.rows.t"], posterior.t)
    solver = header["posterior"]["solver"]
    assert (solver["class"], solver["order"], header["status"]) == ("EK1", 2, "SUCCESS")


# What is refused


@pytest.fixture(scope="module")
def of_many():
    run = jit_once(jax.vmap(lambda y0: solve(y0=y0, save_at=TIMES)))
    return run(np.stack([Y0, Y0[::-1]]))


CALLS = {
    "to_xarray": lambda p, path: p.to_xarray(),
    "to_netcdf": lambda p, path: p.to_netcdf(path),
    "to_dataframe": lambda p, path: p.to_dataframe(),
    "save": lambda p, path: p.save(path),
}


@pytest.mark.parametrize("name", CALLS)
def test_batch_is_refused(of_many, file, name):
    with pytest.raises(TypeError, match=r"one solve, got a batch of shape \(2,\): take one"):
        CALLS[name](of_many, file)
    assert not file.exists()


def test_member_of_a_batch_can_be_saved(of_many, file):
    member = jax.tree.map(lambda x: x[1], of_many)
    np.testing.assert_array_equal(again(member, file).mean, of_many.mean[1])


@pytest.mark.parametrize("name", CALLS)
def test_traced_posterior_is_refused(posterior, file, name):
    with pytest.raises(TypeError, match="finished solve, got one inside a trace"):
        jax.make_jaxpr(lambda p: CALLS[name](p, file))(posterior)
    assert not file.exists()


def test_parts_of_the_user_are_refused(posterior, file):
    class Mine(EK1):
        pass

    foreign = solve(Mine(2))
    with pytest.raises(TypeError, match=r"cannot save posterior.solver, a Mine"):
        foreign.save(file)
    assert not file.exists()


def test_missing_file_is_reported_as_such(file):
    with pytest.raises(FileNotFoundError):
        Posterior.load(file)


def other_npz(file):
    np.savez(file, x=np.ones(2))


def other_header(file):
    np.savez(file, header=np.array('{"format": "something else"}'))


def other_zip(file):
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("header", "[1, 2]")


OTHERS = {
    "empty": lambda file: file.write_bytes(b""),
    "text": lambda file: file.write_text("t,y\n0,1\n"),
    "npy": lambda file: np.save(file.open("wb"), np.ones(2)),
    "npz": other_npz,
    "header": other_header,
    "zip": other_zip,
}


@pytest.mark.parametrize("kind", OTHERS)
def test_file_of_another_kind_is_refused(file, kind):
    OTHERS[kind](file)
    with pytest.raises(ValueError, match="is not a posterior saved by probode"):
        Posterior.load(file)


def test_unknown_format_is_refused(posterior, file):
    posterior.save(file)
    rewritten(file, lambda header: header.update(format_version=99, probode_version="9.9"))
    with pytest.raises(ValueError, match=r"format 99, written by probode 9\.9; this version .* 1"):
        Posterior.load(file)


def test_missing_array_is_reported_as_damage(posterior, file):
    posterior.save(file)
    rewritten(file, lambda header: header["posterior"].update(reference={"array": "nowhere"}))
    with pytest.raises(ValueError, match=r"damaged posterior.*nowhere"):
        Posterior.load(file)


def test_truncated_file_is_refused(posterior, file):
    posterior.save(file)
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(ValueError, match="posterior"):
        Posterior.load(file)


def test_altered_numbers_are_noticed(posterior, file):
    posterior.save(file)
    content = bytearray(file.read_bytes())
    place = content.find(np.ascontiguousarray(posterior.path.rows.mean).tobytes()[:64])
    content[place + 8] ^= 1
    file.write_bytes(content)
    with pytest.raises(ValueError, match="damaged"):
        Posterior.load(file)


@pytest.mark.parametrize("name", ["Popen", "os.system", "Path"])
def test_only_listed_classes_are_built(posterior, file, name):
    posterior.save(file)
    rewritten(file, lambda header: header["posterior"].update(solver={"class": name, "args": "x"}))
    with pytest.raises(ValueError, match=f"unknown part {name!r}"):
        Posterior.load(file)


class Trap:
    def __reduce__(self):
        return builtins.exec, ("raise SystemExit('executed')",)


def test_pickled_objects_are_not_executed(posterior, file):
    posterior.save(file)
    with np.load(file) as members:
        arrays = dict(members)
    trap = np.empty(1, object)
    trap[0] = Trap()
    np.savez(file, **{**arrays, "posterior.reference": trap})
    with pytest.raises(ValueError, match="damaged"):
        Posterior.load(file)
