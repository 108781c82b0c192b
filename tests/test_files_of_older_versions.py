"""Files and pickles that older versions have written are read by this one.

Bounds: what was stored is the same bit for bit; what is computed from it goes through kernels for
other instructions, or none, which round in another order. The same seed gives the same sample up to
the signs of rows of a factor: where a pivot is rounding, its sign is that of the machine's BLAS.
"""

import importlib
import pickle
import shutil

import numpy as np
import older_versions
import pytest
from older_versions import FOLDER, PICKLED, SAVED, STORE, numbers

from probode import Posterior
from probode.ensemble import chunks

COMPUTED = ("between", "std between", "event")
WRITERS = sorted(path.stem for path in FOLDER.glob("*.zip"))


@pytest.fixture(scope="module", params=WRITERS)
def files(request, tmp_path_factory):
    """The folder of files that a version has written."""
    folder = tmp_path_factory.mktemp(request.param)
    shutil.unpack_archive(FOLDER / f"{request.param}.zip", folder)
    return folder


def assert_has_the_numbers(result, files, kind):
    known = np.load(files / "numbers.npz")
    found = numbers(result)
    names = [name for name in known if name.startswith(f"{kind}/")]
    assert len(names) == len(found) > 0
    for name in names:
        key = name.removeprefix(f"{kind}/")
        if key == "std between":  # later versions add what is seen between the steps
            assert np.all(found[key] >= known[name] * (1 - 1e-7)), name
            assert np.all(found[key] <= 3 * known[name]), name
        elif key == "sample":
            off = np.abs(found[key] - found["between"]) / found["std between"]
            assert np.all(off < 6) and np.any(off > 0.01), name  # four numbers of a normal law
        elif key in COMPUTED:
            np.testing.assert_allclose(found[key], known[name], rtol=1e-7, err_msg=name)
        else:
            np.testing.assert_array_equal(found[key], known[name], err_msg=name)


def load(files, kind):
    return pickle.loads((files / f"{kind}.pickle").read_bytes())


@pytest.mark.parametrize("kind", PICKLED)
def test_a_pickle_has_its_numbers(files, kind):
    assert_has_the_numbers(load(files, kind), files, kind)


@pytest.mark.parametrize("kind", SAVED)
def test_a_saved_posterior_has_its_numbers(files, kind):
    assert_has_the_numbers(Posterior.load(files / f"{kind}.npz"), files, f"saved {kind}")


@pytest.mark.parametrize("kind", ["EK0", "EK1"])
def test_the_function_in_a_pickle_is_evaluated_again(files, kind):
    """Against the closed form: at this tolerance the estimate is within a third of the error."""
    posterior = load(files, kind)
    values, vectors = np.linalg.eig(older_versions.MATRIX)
    weights = np.linalg.solve(vectors, older_versions.Y0)
    exact = [(vectors @ (weights * np.exp(values * t))).real for t in np.asarray(posterior.t)]
    error = np.asarray(posterior.mean)[-1] - exact[-1]
    found = posterior.calibrate().global_error()[-1]
    np.testing.assert_allclose(found, error, atol=np.linalg.norm(error) / 3)


def test_what_was_pickled_can_be_pickled_again(files):
    again = pickle.loads(pickle.dumps(load(files, "ivp, traced")))
    assert_has_the_numbers(again, files, "ivp, traced")


def test_a_store_is_gone_on_with(files, tmp_path, monkeypatch):
    """It is the same ensemble, of which nothing is solved again but what is missing."""
    solved = []
    original = chunks.solve_members

    def counting(vector_field, members, *rest, **options):
        solved.append(members.count)
        return original(vector_field, members, *rest, **options)

    monkeypatch.setattr(chunks, "solve_members", counting)
    shutil.copytree(files / STORE, tmp_path / STORE)
    found = older_versions.ensemble(store=tmp_path / STORE)
    assert_has_the_numbers(found, files, "ensemble")
    assert solved == []
    shutil.rmtree(tmp_path / STORE / "status" / "c")
    shutil.rmtree(tmp_path / STORE / "y" / "c")
    again = older_versions.ensemble(store=tmp_path / STORE)
    assert solved == [len(older_versions.RATES)]
    np.testing.assert_allclose(again.mean, found.mean, rtol=1e-7)


def test_modules_are_found_where_they_were(files):
    """Pickles name them. The paper's experiments are not in the package; nobody pickled them."""
    names = (files / "modules.txt").read_text().split()
    outside = ("probode.paper", "probode.__main__")
    for name in (name for name in names if not name.startswith(outside)):
        module = importlib.import_module(name)
        assert module is importlib.import_module(module.__name__), name
        assert module.__spec__.name == module.__name__
