"""``python -m benchmarks``: work-precision of our solvers and of their peers, or the step cost."""

import argparse
import json
import sys
import time
from pathlib import Path

from benchmarks import measure, problems, report, solvers, table


def main(arguments: list[str] | None = None) -> int:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    work = commands.add_parser(
        "work_precision", help="time to an error, against the peers: CSV, figures, tables"
    )
    work.add_argument(
        "--quick",
        action="store_true",
        help=f"under five minutes: {', '.join(problems.QUICK)}; fewer tolerances, repetitions and "
        "solvers; first calls on the first problem only",
    )
    work.add_argument("--problems", nargs="+", choices=problems.NAMES, metavar="NAME")
    work.add_argument("--solvers", nargs="+", default=[], metavar="PART", help="parts of names")
    work.add_argument("--out", type=Path, default=Path("out/bench"))
    work.add_argument("--no-first", action="store_true", help="leave out the first calls")
    step = commands.add_parser("step_cost", help="microseconds a step", add_help=False)
    chosen, rest = parser.parse_known_args(arguments)
    if chosen.command == "step_cost":
        from benchmarks import step_cost

        sys.argv = [step.prog, *rest]
        step_cost.main()
        return 0
    if rest:
        parser.error(f"unknown arguments: {' '.join(rest)}")
    return work_precision(chosen)


def work_precision(chosen: argparse.Namespace) -> int:
    """Measure, then write everything under ``--out``; after each problem, what there is so far."""
    plan = measure.QUICK if chosen.quick else measure.FULL
    names = chosen.problems or (problems.QUICK if chosen.quick else problems.NAMES)
    picked = [solver.name for solver in solvers.select(chosen.solvers)]
    if chosen.quick and not chosen.solvers:
        picked = [name for name in picked if name in solvers.QUICK]
    chosen.out.mkdir(parents=True, exist_ok=True)
    results = measure.Results(measure.header(plan))
    start = time.perf_counter()

    def say(text: str) -> None:
        print(f"[{time.perf_counter() - start:6.1f} s] {text}", flush=True)

    for number, name in enumerate(names):
        problem = problems.get(name)
        say(problem.title)
        measure.sweep(results, problem, picked, plan, chosen.out, say)
        if not chosen.no_first and (number == 0 or not chosen.quick):
            for solver in dict.fromkeys(p.solver for p in results.points if p.problem == name):
                if not chosen.quick or solvers.QUICK_FIRST.search(solver):
                    measure.first_call(results, problem, solver, plan)
        write(results, chosen.out)
    print("\n" + report.summary(table.rows(results)))
    say(f"written to {chosen.out}")
    return 0


def write(results: measure.Results, out: Path) -> None:
    """CSV, Markdown, JSON and figures."""
    rows = table.rows(results)
    table.write_points(results, out / "points.csv")
    table.write_csv(results, rows, out / "table.csv")
    (out / "table.md").write_text(report.markdown(results, rows))
    (out / "header.json").write_text(json.dumps(results.header, indent=2) + "\n")
    try:
        from benchmarks import figures
    except ImportError as error:
        print(f"no figures: {error}; install probode[bench]", file=sys.stderr)
        return
    figures.draw(results, out)


if __name__ == "__main__":
    sys.exit(main())
