"""Options of ``python -m experiments`` and ``probode paper``, and what they print."""

import argparse
from pathlib import Path

from experiments.settings import EXPERIMENTS, FULL, QUICK


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the command."""
    text = "a coarse subset, in two minutes (everything: up to half an hour)"
    parser.add_argument("--quick", action="store_true", help=text)
    text = "folder for report, figures, tables and cache (default: %(default)s)"
    parser.add_argument("--out", default="out/paper", type=Path, metavar="DIR", help=text)
    text = f"these experiments only: {', '.join(EXPERIMENTS)}"
    parser.add_argument("--only", nargs="+", metavar="EXPERIMENT", help=text)
    text = "forget earlier results (by default a run goes on from them)"
    parser.add_argument("--fresh", action="store_true", help=text)
    text = "processes for what is not timed (default: %(default)s)"
    parser.add_argument("--processes", type=int, default=2, metavar="N", help=text)


def run(options: argparse.Namespace) -> int:
    """Run, and print the verdicts."""
    from experiments import pipeline
    from probode.posterior import plotting

    plotting.pyplot()  # before any work, in case it is missing
    if options.processes < 1:
        raise ValueError(f"--processes must be 1 or more, got {options.processes}.")
    outcome = pipeline.run(
        options.out,
        extent=QUICK if options.quick else FULL,
        only=options.only,
        fresh=options.fresh,
        processes=options.processes,
    )
    for claim, finding in outcome.findings:
        print(f"{finding.verdict.value:<14}{claim.statement}")
        print(f"{'':<14}{finding.measured}")
        print(f"{'':<14}({finding.reason})")
    print(f"\nreport        {outcome.report}   ({outcome.seconds:.0f} s)")
    return 0
