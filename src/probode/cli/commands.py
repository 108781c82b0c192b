"""The command line: ``probode solve``, ``fit``, ``problems``, ``demo``, ``info``, ``paper``.

Exit codes: 0, success; 1, the solve did not reach the end, or the fit a maximum (what there is gets
printed); 2, bad usage or bad input.
"""

import argparse
import dataclasses
import json
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

import jax
import numpy as np
import scipy.integrate

from probode import __version__, problems
from probode.base.compile import use_compilation_cache
from probode.base.precision import double_precision
from probode.cli import fits, info, paper, user_problems
from probode.cli.summary import in_words, numbers, run
from probode.filter.control import PIControl
from probode.filter.solvers import EK1
from probode.filter.start import INITIALIZATIONS
from probode.inference.likelihood import METHODS as LIKELIHOODS
from probode.ivp.front_door import CONTROLS, METHODS
from probode.ivp.method import AUTO
from probode.model.diffusion import DIFFUSIONS
from probode.posterior import plotting
from probode.posterior.posterior import Posterior
from probode.problems import InitialValueProblem

_DPI = 150
_ORDER = 5

_EXAMPLES = {
    "": ["problems", "solve lotka-volterra", "demo --out out"],
    "solve": [
        "solve lotka-volterra --plot lotka-volterra.png",
        "solve fitzhugh-nagumo --method EK0 --order 3 --rtol 1e-4 --atol 1e-6",
        "solve fitzhugh-nagumo --y0 -1.5 1e-2 --t-span 0 5 --filter",
        "solve hires --order 4 --json",
        "solve pleiades --method auto",
        "solve lorenz --t-span 0 1e5 --time-limit 60 --checkpoint run",
        "solve model.py:rhs --y0 1 0 --t-span 0 10 --t-eval 5 10 --save out.nc",
    ],
    "fit": [
        "fit data.csv model.py",
        "fit data.csv model.py --out fit.png --starts 5",
        "fit data.csv model.py --columns hares lynxes --sample draws.nc --draws 500",
    ],
    "problems": ["problems"],
    "demo": ["demo", "demo --out figures"],
    "info": ["info", "info --json"],
    "paper": paper.EXAMPLES,
}
_EXIT_CODES = """\
exit codes:
  0  success
  1  the solve did not reach the end of the interval, or the fit a maximum; what there is gets
     printed
  2  bad usage or bad input
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line.

    Parameters
    ----------
    argv
        The arguments after the program's name; by default those of the process.

    Returns
    -------
    int
        The exit code: 0, 1 (the solve did not reach the end, or the fit a maximum) or 2 (bad usage
        or bad input).
    """
    arguments = sys.argv[1:] if argv is None else argv
    try:
        parser = _parser(next(iter(arguments), None))
        options = parser.parse_args([_shield(argument) for argument in arguments])
    except SystemExit as stop:
        return int(stop.code or 0)
    if argv is None:  # a process of its own, which may choose for all of JAX
        use_compilation_cache()
    try:
        return options.command(options)
    except (ValueError, TypeError, OSError, ImportError) as error:
        text = " ".join(str(error).splitlines()[:2])
        print(f"probode: error: {text}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("probode: interrupted", file=sys.stderr)
        return 1


class _Parser(argparse.ArgumentParser):
    """A parser whose errors fit on two lines."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message}\nTry '{self.prog} --help'.\n")


def _shield(argument: str) -> str:
    """Keep argparse from taking a negative number such as ``-1e-3`` for an option."""
    try:
        float(argument)
    except ValueError:
        return argument
    return f" {argument}" if argument.startswith("-") else argument


def _help(command: str) -> dict[str, Any]:
    """How a parser shows its examples, and the exit codes, under its options."""
    lines = [f"  probode {example}" for example in _EXAMPLES[command]]
    return {
        "epilog": "\n".join(["examples:", *lines, "", _EXIT_CODES]),
        "formatter_class": argparse.RawDescriptionHelpFormatter,
    }


def _parser(command: str | None) -> argparse.ArgumentParser:
    """The options of all commands; those of ``paper`` if that is the one."""
    text = "Probabilistic ODE solvers: solutions with error bars."
    parser = _Parser(prog="probode", description=text, **_help(""))
    parser.add_argument("--version", action="version", version=f"probode {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    def add(name: str, command: Callable[..., int] | None, text: str) -> argparse.ArgumentParser:
        added = commands.add_parser(name, help=text, description=f"{text}.", **_help(name))
        added.set_defaults(command=command)
        return added

    _add_solve_arguments(add("solve", _solve, "Solve a problem of the zoo and print a summary"))
    _add_fit_arguments(add("fit", _fit, "Fit the parameters of a model to a table of data"))
    add("problems", _problems, "List the zoo: the problems that can be solved by name")
    demo = add("demo", _demo, "Solve Lotka-Volterra and draw it with its true error")
    folder = "folder for the figure (default: %(default)s)"
    demo.add_argument("--out", default="out", type=Path, metavar="DIR", help=folder)
    told = add("info", _info, "Say what is installed and used: versions, kernels, devices")
    told.add_argument("--json", action="store_true", help="print it as one JSON object")
    text = "Run the experiments of the paper again and check every statement it prints"
    experiments = add("paper", None, text)
    if command == "paper":  # only then: another folder may have that name
        paper.add_arguments(experiments)
    return parser


def _add_solve_arguments(parser: argparse.ArgumentParser) -> None:
    def add(name: str, text: str, **options: Any) -> None:
        if options.get("default") is not None:
            text += " (default: %(default)s)"
        parser.add_argument(name, help=text, **options)

    text = "name of the problem ('probode problems' lists them), or path/to/file.py:function"
    add("problem", text, metavar="PROBLEM")
    add("--method", "solver", choices=[*METHODS, AUTO], default="EK1")
    order = "order of the prior, 1 to 11, or auto (default: 5; auto with --method auto)"
    add("--order", order, type=_order, metavar="Q")
    add("--evaluations", "of f in a step of EK0, 1 or 2", type=int, metavar="N")
    add("--diffusion", "diffusion model", choices=list(DIFFUSIONS), default="dynamic")
    add("--rtol", "relative tolerance", type=float, default=1e-6)
    add("--atol", "absolute tolerance", type=float, default=1e-9)
    add("--control", "step size control", choices=list(CONTROLS), default="PI")
    add("--initialization", "start of the solver", choices=list(INITIALIZATIONS), default="taylor")
    add("--t-span", "interval (default: the problem's)", type=float, nargs=2, metavar=("T0", "T1"))
    add("--y0", "initial value (default: the problem's)", type=float, nargs="+", metavar="Y")
    add("--max-steps", "stop after so many steps (default: no bound)", type=int, metavar="N")
    add("--time-limit", "stop after so many seconds (default: none)", type=float, metavar="S")
    kept = "keep the steps in a folder or a file .npz; the same command goes on from there"
    add("--checkpoint", kept, type=Path, metavar="PATH")
    add("--filter", "condition on the past only: no smoothing", action="store_true")
    times = "print the solution at these times too"
    add("--t-eval", times, type=float, nargs="+", metavar="T")
    add("--samples", "joint samples at --t-eval, and in --save", type=int, default=0, metavar="N")
    add("--save", "write the posterior: out.nc (netCDF) or out.npz", type=Path, metavar="FILE")
    add("--plot", "write a figure, such as out.png or out.pdf", type=Path, metavar="FILE")
    add("--json", "print the summary as one JSON object", action="store_true")


_MODEL = """Python file that defines f(t, y, p), parameters, y0 and noise (or log_density), and
if need be observe, t_span, args: what probode.fit takes"""


def _add_fit_arguments(parser: argparse.ArgumentParser) -> None:
    def add(name: str, text: str, **options: Any) -> None:
        if options.get("default") is not None:
            text += " (default: %(default)s)"
        parser.add_argument(name, help=text, **options)

    table = "CSV file with a header: a column of times, others of values; empty cells are missing"
    add("data", table, type=Path, metavar="DATA")
    add("model", _MODEL, type=Path, metavar="MODEL")
    add("--time", "column of the times (default: t or time, or the first)", metavar="NAME")
    add("--columns", "columns of the values (default: all others)", nargs="+", metavar="NAME")
    add("--method", "likelihood", choices=list(LIKELIHOODS), default="fenrir")
    add("--order", "order of the prior of EK1, 1 to 11", type=int, default=3, metavar="Q")
    add("--rtol", "relative tolerance", type=float, default=1e-5)
    add("--atol", "absolute tolerance", type=float, default=1e-8)
    add("--starts", "starts to try", type=int, default=1, metavar="N")
    add("--seed", "of starts and draws", type=int, default=0, metavar="N")
    add("--out", "write a figure, such as fit.png or fit.pdf", type=Path, metavar="FILE")
    add("--sample", "draw from the posterior by NUTS, write draws.nc", type=Path, metavar="FILE")
    add("--draws", "draws of each of four chains", type=int, default=1000, metavar="N")


def _fit(options: argparse.Namespace) -> int:
    if options.out is not None:
        _check_figure(options.out)
    if options.sample is not None:
        _check_store(options.sample, (".nc",))
    table = fits.read_table(options.data, options.time, options.columns)
    model = fits.read_model(options.model)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "the fit has not converged")  # the report says so
        found = fits.run(table, model, options)
    print(found)
    if options.out is not None:
        plotting.pyplot().switch_backend("agg")
        _write_figure(options.out, found.plot(names=table.names))
        print(f"figure {options.out}")
    if options.sample is not None:
        drawn = found.sample(options.draws, warmup=options.draws, seed=options.seed)
        drawn.to_netcdf(str(options.sample))
        print(f"draws {options.sample}")
    if not found.success:
        print(f"probode: {found.message}", file=sys.stderr)
    return 0 if found.success else 1


def _order(text: str) -> int | str:
    """An order from the command line."""
    return AUTO if text == AUTO else int(text)


_order.__name__ = "order"  # what argparse calls it in messages


def _problems(options: argparse.Namespace) -> int:
    zoo = [problems.get(name) for name in problems.names()]
    width = max(len(problem.name) for problem in zoo)
    for problem in zoo:
        kind = "stiff" if problem.stiff else "non-stiff"
        print(
            f"{problem.name:<{width}}  d = {problem.dimension:<3}  {kind:<9}  {problem.description}"
        )
    return 0


def _info(options: argparse.Namespace) -> int:
    found = info.gather(__version__)
    print(json.dumps(found) if options.json else info.in_words(found))
    return 0


def _solve(options: argparse.Namespace) -> int:
    problem = _problem(options)
    if not np.all(np.isfinite(problem.t_span)):
        t0, t1 = problem.t_span
        raise ValueError(f"--t-span must be finite, got {t0:g} to {t1:g}.")
    order = options.order
    if order is None:
        order = AUTO if options.method == AUTO else _ORDER
    choice = {
        "order": order,
        "diffusion": options.diffusion,
        "evaluations": options.evaluations,
        "initialization": options.initialization,
        "checkpoint": options.checkpoint,
    }
    control = CONTROLS[options.control](rtol=options.rtol, atol=options.atol)
    if options.plot is not None:
        _check_figure(options.plot)
    if options.save is not None:
        _check_store(options.save)
    if options.time_limit is not None and not options.time_limit > 0.0:
        raise ValueError(f"--time-limit must be positive, got {options.time_limit:g}.")
    posterior, summary = run(
        problem,
        options.method,
        control,
        smooth=not options.filter,
        max_steps=options.max_steps,
        time_limit=options.time_limit,
        **choice,
    )
    if options.plot is not None:
        title = f"{problem.name}, {posterior.solver.name}"
        _save_figure(options.plot, posterior, title=title, reference=problem.exact)
        summary["figure"] = str(options.plot)
    if options.t_eval is not None:
        summary["t_eval"] = _evaluated(posterior, options.t_eval, options.samples)
    if options.save is not None:
        _store(options.save, posterior, options.samples, options.t_eval)
        summary["saved"] = str(options.save)
    if options.json:
        print(json.dumps(summary, allow_nan=False))
    else:
        print(in_words(summary))
    return _exit_code(posterior)


def _problem(options: argparse.Namespace) -> InitialValueProblem:
    if user_problems.is_file_problem(options.problem):
        return user_problems.load(options.problem, options.t_span, options.y0)
    return _with_start(problems.get(options.problem), options.t_span, options.y0)


def _evaluated(posterior: Posterior, times: list[float], samples: int) -> list[dict[str, Any]]:
    """The posterior at chosen times, one record each."""
    at: Any = posterior(np.array(times))
    records = [
        {"t": t, "mean": numbers(mean), "std": numbers(std)}
        for t, mean, std in zip(times, at.mean, at.std, strict=True)
    ]
    if samples:
        drawn: Any = posterior.sample(samples, t=np.array(times))
        for i, record in enumerate(records):
            record["samples"] = [numbers(one) for one in drawn[:, i]]
    return records


def _check_store(path: Path, endings: tuple[str, ...] = (".nc", ".npz")) -> None:
    """Raise before the solve what would be in the way of storing its result."""
    if path.suffix not in endings:
        known = " or ".join(("", ".nc (netCDF)", ".npz")[1 : 1 + len(endings)])
        raise ValueError(f"cannot write {path}: its ending must be {known}.")
    if not path.parent.is_dir():
        raise ValueError(f"cannot write {path}: there is no folder {path.parent}.")


def _store(path: Path, posterior: Posterior, samples: int, times: list[float] | None) -> None:
    if path.suffix == ".npz":
        posterior.save(path)
    else:
        posterior.to_netcdf(path, samples, t=None if times is None else np.array(times))


def _demo(options: argparse.Namespace) -> int:
    path = options.out / "lotka_volterra.png"
    path.parent.mkdir(parents=True, exist_ok=True)
    _check_figure(path)
    problem = problems.get("lotka-volterra")
    solver, control = EK1(5), PIControl(rtol=1e-7, atol=1e-10)
    posterior, summary = run(problem, solver, control)
    _save_figure(
        path,
        posterior,
        names=("prey", "predators"),
        reference=_scipy_solution(problem),
        title=f"Lotka-Volterra, {solver.name}, rtol $10^{{-7}}$, atol $10^{{-10}}$",
    )
    summary["figure"] = str(path)
    print(in_words(summary))
    return _exit_code(posterior)


def _with_start(
    problem: InitialValueProblem, t_span: list[float] | None, y0: list[float] | None
) -> InitialValueProblem:
    """The problem from another start or over another interval, without what is then not known."""
    span = problem.t_span if t_span is None else (t_span[0], t_span[1])
    start = problem.y0 if y0 is None else np.array(y0)
    if start.shape != problem.y0.shape:
        d = problem.dimension
        raise ValueError(f"--y0: {problem.name} is of dimension {d}, got {start.size} numbers.")
    same = span[0] == problem.t_span[0] and np.array_equal(start, problem.y0)
    return dataclasses.replace(
        problem,
        t_span=span,
        y0=start,
        exact=problem.exact if same else None,
        reference_end=problem.reference_end if same and span == problem.t_span else None,
    )


def _exit_code(posterior: Posterior) -> int:
    if posterior.success:
        return 0
    print(f"probode: {posterior.message}", file=sys.stderr)
    return 1


def _check_figure(path: Path) -> None:
    """Raise before the solve what would be in the way of the figure after it."""
    canvas = plotting.pyplot().matplotlib.backend_bases.FigureCanvasBase
    formats = sorted(canvas.get_supported_filetypes())
    if path.suffix.lstrip(".").lower() not in formats:
        raise ValueError(f"cannot write {path}: its ending must be one of {', '.join(formats)}.")
    if not path.parent.is_dir():
        raise ValueError(f"cannot write {path}: there is no folder {path.parent}.")


def _save_figure(path: Path, posterior: Posterior, **options: Any) -> None:
    plt = plotting.pyplot()
    plt.switch_backend("agg")
    _write_figure(path, plotting.figure(posterior, **options))


def _write_figure(path: Path, drawing: Any) -> None:
    try:
        drawing.savefig(path, dpi=_DPI)
    finally:
        plotting.pyplot().close(drawing)


def _scipy_solution(problem: InitialValueProblem) -> Callable[[float], np.ndarray]:
    """The solution by an explicit Runge-Kutta method of order eight, close to machine precision."""
    with double_precision():
        field = jax.jit(problem.vector_field)
        solution = scipy.integrate.solve_ivp(
            lambda t, y: np.asarray(field(t, y, *problem.args)),
            problem.t_span,
            problem.y0,
            method="DOP853",
            rtol=1e-13,
            atol=1e-13,
            max_step=(problem.t_span[1] - problem.t_span[0]) / 200,
            dense_output=True,
        )
    return solution.sol
