"""What a run found: a line for each module, the survivors, and entries that accept nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tests.mutants.orders import Result
from tests.mutants.table import Accepted

if TYPE_CHECKING:
    from tests.mutants.driver import Plan


@dataclass(frozen=True)
class Report:
    """Of a sample, entries of mutants that were not tried count as neither used nor stale."""

    results: dict[str, list[Result]]  # module -> mutants that were tried and differ in meaning
    accepted: list[Accepted]
    sources: dict[str, str]

    @property
    def survivors(self) -> list[tuple[str, Result]]:
        """Those that are not accepted, by module and line."""
        known = {(entry.module, entry.before, entry.after) for entry in self.accepted}
        found = [(m, r) for m, results in self.results.items() for r in results if r.verdict == "survived"]
        return sorted(
            ((m, r) for m, r in found if (m, r.before, r.after) not in known), key=lambda f: (f[0], f[1].line)
        )

    @property
    def stale(self) -> list[Accepted]:
        """Entries whose lines are gone, and those whose mutants are all killed by now."""
        verdicts: dict[tuple[str, str, str], set[str]] = {}
        for module, results in self.results.items():
            for result in results:
                verdicts.setdefault((module, result.before, result.after), set()).add(result.verdict)
        return [
            entry
            for entry in self.accepted
            if self._is_gone(entry)
            or "survived" not in verdicts.get((entry.module, entry.before, entry.after), {"survived"})
        ]

    def _is_gone(self, entry: Accepted) -> bool:
        source = self.sources.get(entry.module)
        return source is not None and entry.before not in "\n".join(line.strip() for line in source.splitlines())

    @property
    def rate(self) -> float:
        """Killed mutants, among those that are not accepted survivors."""
        caught = sum(_caught(results) for results in self.results.values())
        return caught / max(1, caught + len(self.survivors) + sum(_count(r, "error") for r in self.results.values()))

    def lines(self) -> Iterator[str]:
        yield f"{'module':60} mutants killed timeout survived accepted error   rate"
        left = Counter(module for module, _ in self.survivors)
        for module, results in self.results.items():
            if not results:
                continue
            accepted = _count(results, "survived") - left[module]
            judged = max(1, len(results) - accepted)
            yield (
                f"{module:60} {len(results):7} {_count(results, 'killed'):6} {_count(results, 'timeout'):7} "
                f"{left[module]:8} {accepted:8} {_count(results, 'error'):5} {_caught(results) / judged:6.1%}"
            )
        mutants = sum(map(len, self.results.values()))
        yield f"{mutants} mutants, {len(self.survivors)} survivors that are not accepted, {self.rate:.1%} killed"

    def details(self) -> Iterator[str]:
        for module, result in self.survivors:
            yield f"{module}:{result.line}  {result.key}"
            yield from (f"  - {line}" for line in result.before.splitlines())
            yield from (f"  + {line}" for line in result.after.splitlines())
        for entry in self.stale:
            yield f"accepted, but gone or killed by now: {entry.module}: {entry.before!r} -> {entry.after!r}"


def report_of(root: Path, plans: list[Plan], accepted: list[Accepted]) -> Report:
    from tests.mutants.driver import results_of  # it imports cosmic_ray, which tests of reports do not need

    results = {}
    for plan in plans:
        found = results_of(plan)
        tried = [found[mutant.key] for mutant in plan.mutants if mutant.key in found]
        results[plan.module] = [result for result in tried if result.verdict != "same"]
    return Report(results, accepted, {plan.module: (root / plan.module).read_text() for plan in plans})


def _count(results: list[Result], verdict: str) -> int:
    return sum(result.verdict == verdict for result in results)


def _caught(results: list[Result]) -> int:
    return _count(results, "killed") + _count(results, "timeout")
