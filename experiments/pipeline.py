"""The whole of it: run or look up, write tables, draw, judge, report."""

import csv
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments import (
    calibration,
    claims_calibration,
    claims_solutions,
    claims_work,
    dormand_prince,
    figures_comparisons,
    figures_solutions,
    lotka_volterra,
    structure,
    van_der_pol,
)
from experiments.cache import Cache
from experiments.claims import Claim, Finding, Results
from experiments.figures import write
from experiments.report import page
from experiments.settings import EXPERIMENTS, FULL, Extent
from experiments.work import perform, progress_bar, spread
from probode.base.errors import check_choice

_MODULES: dict[str, Any] = {
    module.NAME: module
    for module in (lotka_volterra, van_der_pol, calibration, structure, dormand_prince)
}
CLAIMS: tuple[Claim, ...] = (
    *claims_solutions.CLAIMS,
    *claims_calibration.CLAIMS,
    *claims_work.CLAIMS,
)
FIGURES = (*figures_solutions.FIGURES, *figures_comparisons.FIGURES)


@dataclass(frozen=True)
class Outcome:
    """What a run has found, and where the report is."""

    findings: list[tuple[Claim, Finding]]
    report: Path
    seconds: float


def run(
    out: Path,
    *,
    extent: Extent = FULL,
    only: Sequence[str] | None = None,
    fresh: bool = False,
    processes: int = 2,
) -> Outcome:
    """Run experiments and write tables, figures, and the report.

    Parameters
    ----------
    out
        Folder for ``report.html``, ``figures/``, ``data/`` and ``cache/``.
    extent
        How much to run.
    only
        Names of experiments; by default all.
    fresh
        Forget earlier results instead of going on from them.
    processes
        How many to use for what is not timed.
    """
    begin = time.perf_counter()
    for name in only or ():
        check_choice("experiment", name, EXPERIMENTS)
    chosen = [name for name in EXPERIMENTS if not only or name in only]
    cache = Cache(out / "cache")
    if fresh:
        shutil.rmtree(cache.folder, ignore_errors=True)
    batches = {name: _MODULES[name].batches(extent) for name in chosen}
    everything = [batch for group in batches.values() for batch in group]
    drawn_later = [figure for figure in FIGURES if figure.experiment in chosen]
    total = sum(len(batch.configurations) for batch in everything) + len(drawn_later)

    with progress_bar(total) as bar:
        perform(everything, cache, processes, bar)
        results = _collect(batches, cache)
        for name in chosen:
            for table, rows in _MODULES[name].tables(results[name]).items():
                _write_table(out / "data" / f"{table}.csv", rows)
        bar.set_description_str("figures")
        jobs = [(figure, results[figure.experiment], out / "figures") for figure in drawn_later]
        drawn = spread(write, jobs, processes, bar)

    judged = [(claim, claim.examine(results)) for claim in CLAIMS]
    findings = [(claim, finding) for claim, finding in judged if finding is not None]
    rows = [
        {
            "claim": claim.key,
            "place": claim.place,
            "statement": claim.statement,
            "verdict": finding.verdict.value,
            "measured": finding.measured,
            "reason": finding.reason,
        }
        for claim, finding in findings
    ]
    _write_table(out / "data" / "claims.csv", rows)
    seconds = time.perf_counter() - begin
    titles = {name: _MODULES[name].TITLE for name in chosen}
    report = out / "report.html"
    html = page(titles, findings, drawn, results, extent.name)
    report.write_text(html, encoding="utf-8")
    return Outcome(findings, report, seconds)


def _collect(batches: dict[str, Any], cache: Cache) -> Results:
    """Settings and values of every configuration, by experiment."""
    results: dict[str, list[dict[str, Any]]] = {}
    for name, group in batches.items():
        results[name] = []
        for batch in group:
            for configuration in batch.configurations:
                values = cache.load(configuration)
                assert values is not None
                results[name].append(dict(configuration.settings) | values)
    return results


def _write_table(path: Path, rows: list[dict[str, Any]]) -> None:
    """A CSV file; columns are those of the first row."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]) if rows else [])
        writer.writeheader()
        writer.writerows(rows)
