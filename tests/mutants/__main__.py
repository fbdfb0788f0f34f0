"""`python -m tests.mutants`: the command behind `make mutants`."""

from __future__ import annotations

import argparse
import sys
from functools import partial
from pathlib import Path

from tests.mutants.driver import Driver, TestsFail
from tests.mutants.report import report_of
from tests.mutants.table import load_accepted


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="make mutants", description=__doc__)
    parser.add_argument("modules", nargs="*", help="groups, paths, folders or patterns; none: all of modules.toml")
    parser.add_argument("--sample", type=int, help="at most so many mutants of each module, always the same")
    parser.add_argument("--jobs", type=int, default=2, help="mutants at a time")
    parser.add_argument("--at-least", type=float, default=0.9, help="the share that must be killed")
    parser.add_argument("--root", type=Path, default=Path.cwd())
    given = parser.parse_args(arguments)
    try:
        plans = Driver(given.root, given.jobs, partial(print, flush=True)).run(given.modules, given.sample)
    except TestsFail as error:
        print(error, file=sys.stderr)
        return 2
    report = report_of(given.root, plans, load_accepted(given.root))
    text = "\n".join([*report.details(), "", *report.lines()])
    (given.root / ".cache" / "mutants" / "report.txt").write_text(text + "\n")
    print(text)
    return 0 if report.rate >= given.at_least and not report.stale else 1


if __name__ == "__main__":
    sys.exit(main())
