"""The command line: what it prints, and the exit codes that scripts rely on."""

import json
import subprocess
import sys

import jax
import numpy as np
import pytest

import probode
from probode import problems
from probode.cli import info, main
from probode.cli.summary import numbers
from probode.engines.native import library

# One solver throughout, so that it is compiled once.
FAST = ["--method", "EK0", "--order", "2", "--rtol", "1e-3", "--atol", "1e-6"]


def run(capsys, *argv):
    """Exit code, standard output, standard error."""
    code = main(list(argv))
    out, err = capsys.readouterr()
    return code, out, err


def solve(capsys, *argv):
    return run(capsys, "solve", *argv, *FAST)


def solve_json(capsys, *argv):
    return json.loads(solve(capsys, *argv, "--json")[1])


def test_module_runs_as_a_program():
    command = [sys.executable, "-m", "probode", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, f"probode {probode.__version__}\n")


@pytest.mark.parametrize(
    "command", [[], ["solve"], ["fit"], ["problems"], ["demo"], ["info"], ["paper"]]
)
def test_help_shows_examples_and_succeeds(capsys, command):
    code, out, _ = run(capsys, *command, "--help")
    assert code == 0
    assert "examples:\n  probode " in out


def test_without_a_checkout_the_command_says_where_the_experiments_are(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "experiments.command", None)
    code, _, err = run(capsys, "paper", "--quick")
    assert code == 2
    assert "in the folder 'experiments' of the source distribution" in err


def test_help_shows_defaults(capsys):
    assert "relative tolerance (default: 1e-06)" in " ".join(
        run(capsys, "solve", "--help")[1].split()
    )


@pytest.mark.parametrize("name", problems.names())
def test_every_problem_has_a_line(capsys, name):
    problem = problems.get(name)
    (line,) = [x for x in run(capsys, "problems")[1].splitlines() if x.split()[0] == name]
    kind = "stiff" if problem.stiff else "non-stiff"
    assert line.split()[3:5] == [str(problem.dimension), kind]
    assert line.endswith(problem.description)


def test_solve_succeeds_silently_on_stderr(capsys):
    code, _, err = solve(capsys, "logistic")
    assert (code, err) == (0, "")


@pytest.mark.parametrize(
    "label",
    ["method", "steps", "evaluations", "final value", "max error", "first call", "second call"],
)
def test_summary_names(capsys, label):
    assert f"\n{label} " in solve(capsys, "logistic")[1]


def test_json_agrees_with_the_library(capsys):
    summary = solve_json(capsys, "logistic")
    problem = problems.get("logistic")
    posterior = probode.solve(
        problem.vector_field,
        problem.t_span,
        problem.y0,
        problem.args,
        solver=probode.EK0(2),
        control=probode.PIControl(rtol=1e-3, atol=1e-6),
    ).calibrate()
    np.testing.assert_allclose(summary["mean"], posterior.mean[-1], rtol=1e-12)
    np.testing.assert_allclose(summary["std"], posterior.std[-1], rtol=1e-9)
    assert summary["f_evaluations"] == posterior.stats.f_evaluations


@pytest.mark.parametrize(
    ("options", "method"),
    [
        (["--method", "auto"], "EK1(4)"),
        (["--method", "auto", "--order", "2"], "EK1(2)"),
        (["--method", "EK1", "--order", "auto"], "EK1(4)"),
    ],
    ids=" ".join,
)
def test_method_and_order_may_be_chosen_for_the_user(capsys, options, method):
    """Small problems get EK1, of an order that follows from the tolerance."""
    code, out, _ = run(capsys, "solve", "logistic", "--rtol", "1e-2", *options)
    assert code == 0 and f"\nmethod       {method}, " in out


def test_json_error_is_that_against_the_exact_solution(capsys):
    summary = solve_json(capsys, "logistic")
    exact = problems.get("logistic").exact(2.5)
    np.testing.assert_allclose(summary["error"], np.abs(summary["mean"] - exact))


def test_exact_solution_is_used_at_other_end_times(capsys):
    summary = solve_json(capsys, "logistic", "--t-span", "0", "1")
    exact = problems.get("logistic").exact(1.0)
    np.testing.assert_allclose(summary["error"], np.abs(summary["mean"] - exact))


def test_no_error_is_claimed_for_another_initial_value(capsys):
    assert solve_json(capsys, "logistic", "--y0", "0.2")["error"] is None


def test_no_reference_is_used_at_another_end_time(capsys):
    assert solve_json(capsys, "lotka-volterra", "--t-span", "0", "1")["error"] is None


@pytest.mark.parametrize("number", ["-2e-3", "-.5", "-1", "+1e-1"])
def test_signs_and_exponents_parse(capsys, number):
    argv = ["--y0", number, "1", "--t-span", "-1e-1", "0"]
    summary = solve_json(capsys, "lotka-volterra", *argv)
    assert summary["t_span"] == [-0.1, 0.0]
    assert summary["mean"][0] == pytest.approx(float(number), rel=0.2)


def test_filter_does_not_smooth(capsys):
    assert "filtered" in solve(capsys, "logistic", "--filter")[1]


def test_at_most_six_components_are_printed(capsys):
    out = run(capsys, "solve", "hires", *FAST, "--t-span", "0", "1e-3")[1]
    assert "y6 " in out
    assert "y7 " not in out
    assert "2 more components" in out


def test_plot_writes_the_file_it_names(capsys, tmp_path):
    path = tmp_path / "logistic.png"
    _, out, _ = solve(capsys, "logistic", "--plot", str(path))
    assert out.splitlines()[-1].split() == ["figure", str(path)]
    assert path.read_bytes().startswith(b"\x89PNG")


def test_stopping_early_exits_with_1(capsys):
    assert solve(capsys, "logistic", "--max-steps", "2")[0] == 1


def test_stopping_early_prints_the_partial_result(capsys):
    out = solve(capsys, "logistic", "--max-steps", "2")[1]
    assert "stopped at 0." in out
    assert "last value   y1" in out


def test_stopping_early_is_explained_on_stderr(capsys):
    err = solve(capsys, "logistic", "--max-steps", "2")[2]
    assert "maximal number of steps" in err
    assert len(err.splitlines()) == 1


def test_stopping_early_keeps_json_valid(capsys):
    summary = solve_json(capsys, "logistic", "--max-steps", "2")
    assert (summary["success"], summary["status"]) == (False, "MAX_STEPS")


def test_values_that_are_not_finite_are_null_in_json():
    assert numbers([np.nan, -np.inf, 1.0]) == [None, None, 1.0]


def test_solve_that_never_started_exits_with_1(capsys):
    code, out, err = solve(capsys, "logistic", "--y0", "-1e300")
    assert code == 1
    assert "stopped at 0\n" in out
    assert "is NaN or Inf at the initial value" in err


BAD = {
    "unknown option": (["solve", "logistic", "--foo"], "--foo"),
    "no command": ([], "COMMAND"),
    "not a number": (["solve", "logistic", "--rtol", "small"], "'small'"),
    "unknown method": (["solve", "logistic", "--method", "EK2"], "EK2"),
    "unknown problem": (["solve", "lotka-voltera"], "did you mean 'lotka-volterra'"),
    "tolerance": (["solve", "logistic", "--rtol", "-1"], "rtol must be positive"),
    "order": (["solve", "logistic", "--order", "12"], "between 1 and 11"),
    "diffusion": (["solve", "logistic", "--diffusion", "dynamic-mv"], "not defined for EK1"),
    "infinite time": (["solve", "logistic", "--t-span", "0", "inf"], "must be finite"),
    "size of y0": (["solve", "logistic", "--y0", "1", "2"], "of dimension 1, got 2 numbers"),
    "bound": (["solve", "logistic", "--max-steps", "0"], "max_steps must be a positive"),
    "time limit": (["solve", "logistic", "--time-limit", "0"], "--time-limit must be positive"),
    "figure format": (["solve", "logistic", "--plot", "a.xyz"], "ending must be one of"),
    "figure folder": (["solve", "logistic", "--plot", "no/such/a.png"], "there is no folder"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_exits_with_2_and_says_why(capsys, case):
    argv, reason = BAD[case]
    code, out, err = run(capsys, *argv)
    assert (code, out) == (2, "")
    assert reason in err
    assert len(err.splitlines()) <= 2


def test_missing_matplotlib_is_reported_before_the_solve(capsys, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    code, out, err = solve(capsys, "logistic", "--plot", str(tmp_path / "a.png"))
    assert (code, out) == (2, "")
    assert "pip install probode[plot]" in err


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    """The folder of the demo, its exit code and what it printed."""
    folder = tmp_path_factory.mktemp("demo") / "new"
    with pytest.MonkeyPatch.context() as patch:
        printed = []
        patch.setattr("builtins.print", lambda text, **_: printed.append(text))
        code = main(["demo", "--out", str(folder)])
    return folder, code, "\n".join(printed)


def test_demo_writes_its_figure_to_a_new_folder(demo):
    folder, code, _ = demo
    assert code == 0
    assert (folder / "lotka_volterra.png").read_bytes().startswith(b"\x89PNG")


def test_demo_prints_the_path_of_its_figure(demo):
    folder, _, out = demo
    assert str(folder / "lotka_volterra.png") in out


def test_demo_is_accurate(demo):
    (line,) = [line for line in demo[2].splitlines() if line.startswith("max error")]
    assert float(line.split()[-1]) < 1e-8


@pytest.fixture
def model(tmp_path):
    path = tmp_path / "model.py"
    path.write_text(
        "import numpy as np\ny0 = [1.0, 0.0]\ndef rhs(t, y):\n    return np.array([y[1], -y[0]])\n"
    )
    return path


def test_a_function_in_a_file_can_be_solved(model, capsys):
    assert main(["solve", f"{model}:rhs", "--t-span", "0", "1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["mean"][0] == pytest.approx(0.5403023, abs=1e-5)


def test_chosen_times_and_samples_are_printed(model, capsys):
    command = ["solve", f"{model}:rhs", "--t-span", "0", "1", "--t-eval", "0.5", "1"]
    assert main([*command, "--samples", "3", "--json"]) == 0
    records = json.loads(capsys.readouterr().out)["t_eval"]
    assert [record["t"] for record in records] == [0.5, 1.0]
    assert len(records[0]["samples"]) == 3


def test_a_posterior_can_be_stored_and_loaded(model, tmp_path, capsys):
    path = tmp_path / "out.npz"
    assert main(["solve", f"{model}:rhs", "--t-span", "0", "1", "--save", str(path)]) == 0
    posterior = probode.Posterior.load(path)
    assert posterior.mean[-1][0] == pytest.approx(0.5403023, abs=1e-5)


@pytest.mark.parametrize(
    ("problem", "words"),
    [("{}:other", "no function 'other'"), ("missing.py:rhs", "no file missing.py")],
)
def test_a_file_problem_that_is_not_there_is_bad_input(problem, words, model, capsys):
    assert main(["solve", problem.format(model), "--t-span", "0", "1"]) == 2
    assert words in capsys.readouterr().err


def test_a_file_problem_needs_an_interval(model, capsys):
    assert main(["solve", f"{model}:rhs"]) == 2
    assert "--t-span" in capsys.readouterr().err


DECAY = """
parameters = {"rate": (0.5, 0.0), "start": 1.5}
noise = 0.05
def f(t, y, p):
    return -p.rate * y
def y0(p):
    return p.start
"""
CELLS = [(0, 2.03), (1, 0.88), (2, 0.44), (3, 0.19), (4, 0.05)]
TABLE = "time,u,other\n" + "".join(f"{t},{u},\n" for t, u in CELLS) + "5,,1\n"


@pytest.fixture
def fit_files(tmp_path):
    """A table with an empty cell in its last row, and a model."""
    table, model = tmp_path / "data.csv", tmp_path / "model.py"
    table.write_text(TABLE)
    model.write_text(DECAY)
    return table, model


QUICK = ["--columns", "u", "--method", "plain", "--rtol", "1e-4", "--atol", "1e-6"]


def test_fit_agrees_with_the_library_and_draws_its_figure(fit_files, tmp_path, capsys):
    table, model = fit_files
    figure = tmp_path / "fit.png"
    code, out, err = run(capsys, "fit", str(table), str(model), *QUICK, "--out", str(figure))
    assert (code, err) == (0, "")
    found = probode.fit(
        lambda t, y, p: -p.rate * y,
        tuple(np.array(CELLS).T),
        {"rate": (0.5, 0.0), "start": 1.5},
        y0=lambda p: p.start,
        noise=0.05,
        method="plain",
        solver=probode.EK1(3),
        control=probode.PIControl(1e-4, 1e-6),
    )
    assert out.startswith("Fit of 2 parameters to 5 values\n")  # one cell is empty
    row = next(line.split() for line in out.splitlines() if line.startswith("  rate "))
    assert float(row[1]) == pytest.approx(found.estimates["rate"], abs=1e-4)
    assert figure.read_bytes().startswith(b"\x89PNG")


def test_draws_are_written_for_arviz(fit_files, tmp_path, capsys, monkeypatch):
    """What ``Fit.sample`` returns, which is tested in a file of its own and compiled for long."""
    arviz = pytest.importorskip("arviz")

    def sample(self, draws, *, warmup, seed):
        return arviz.from_dict(posterior={"rate": np.full((4, draws), float(seed))})

    monkeypatch.setattr(probode.Fit, "sample", sample)
    path = tmp_path / "draws.nc"
    command = ["fit", *map(str, fit_files), *QUICK, "--sample", str(path), "--draws", "10"]
    code, out, _ = run(capsys, *command, "--seed", "3")
    assert code == 0 and out.endswith(f"draws {path}\n")
    np.testing.assert_array_equal(arviz.from_netcdf(path).posterior["rate"], np.full((4, 10), 3.0))


BAD_FITS = {
    "no column": (TABLE, DECAY, ["--columns", "v"], "no column 'v'; it has time, u, other"),
    "no time": (TABLE, DECAY, ["--time", "day"], "no column 'day'"),
    "not a number": (TABLE + "6,much,\n", DECAY, [], "line 8: 'u' must be a number"),
    "short row": (TABLE + "6\n", DECAY, [], "line 8: 1 cells, and the header has 3"),
    "no rows": ("t,u\n", DECAY, [], "has no data"),
    "no values": ("t\n1\n", DECAY, [], "no column besides 't'"),
    "no f": (TABLE, DECAY.replace("def f", "def g"), [], "it has no f."),
    "no noise": (TABLE, DECAY.replace("noise", "other"), [], "must define noise"),
    "a file that fails": (TABLE, DECAY + "1 / 0\n", [], "cannot be run: ZeroDivisionError"),
    "ending": (TABLE, DECAY, ["--sample", "draws.csv"], "its ending must be .nc (netCDF)."),
}


@pytest.mark.parametrize("case", BAD_FITS)
def test_bad_input_to_fit_is_named(case, fit_files, capsys):
    (table, model), (cells, text, options, reason) = fit_files, BAD_FITS[case]
    table.write_text(cells)
    model.write_text(text)
    code, out, err = run(capsys, "fit", str(table), str(model), *options)
    assert (code, out) == (2, "")
    assert reason in err
    assert len(err.splitlines()) <= 2


def test_files_of_a_fit_that_are_not_there(fit_files, capsys):
    table, model = map(str, fit_files)
    assert "no file none.csv" in run(capsys, "fit", "none.csv", model)[2]
    assert "no file none.py" in run(capsys, "fit", table, "none.py")[2]


def test_info_as_json_names_what_is_installed(capsys):
    assert main(["info", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["probode"] == probode.__version__ and found["needed"]["jax"] == jax.__version__


def test_info_names_the_kernels_in_use(capsys):
    main(["info"])
    (line,) = [one for one in capsys.readouterr().out.splitlines() if one.startswith("kernels")]
    assert (library.instruction_set() or "none: ") in line


def test_info_without_kernels_says_why_and_what_it_costs(capsys, monkeypatch):
    monkeypatch.setattr(library, "instruction_set", lambda: None)
    monkeypatch.setattr(library, "LIBRARY", "nothing.so")
    monkeypatch.delenv("PROBODE_NATIVE", raising=False)
    main(["info"])
    out = capsys.readouterr().out
    assert "kernels   none: not built" in out and "each step several times" in out


def test_info_names_what_is_missing_and_how_to_get_it():
    found = info.gather(probode.__version__)
    found["optional"]["zarr"] = None
    assert "missing   zarr" in info.in_words(found) and "probode[ensemble]" in info.in_words(found)
