"""The targets of step placement, and what samples say of each: pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

import numpy as np

from bench.balance.cases import FEW, LARGEST, MOSTLY_LONG, K, size
from bench.balance.measure import Sample

OURS = "makespan"
QUARTER = 0.25  # of the mean step: from there on a sequence at its least degree is long


@dataclass(frozen=True, slots=True)
class Target:
    """`value` of every sample of the cases chosen by `of`; None: the sample says nothing of the target.

    Reached if the median of each case keeps the limit. `best`: the value that a plan at the lower bound would have.
    """

    what: str
    of: Callable[[Sample], bool]
    value: Callable[[Sample], float | None]
    limit: float
    least: bool = False  # the limit is the least, not the most
    best: Callable[[Sample], float | None] | None = None
    p95: bool = False  # the 95th percentile is judged, not the median


@dataclass(frozen=True, slots=True)
class Row:
    """What was found of a target: the case that is farthest from the limit, and the farthest step of all."""

    what: str
    limit: str
    reached: bool
    median: float
    worst: float
    where: str
    samples: int
    best: float | None = None

    def as_json(self) -> dict[str, Any]:
        return {k: round(v, 4) if isinstance(v, float) else v for k, v in asdict(self).items() if v is not None}


def over_bound(sample: Sample) -> float:
    return sample.balances[OURS].makespan / sample.bound


def over_ours(rival: str) -> Callable[[Sample], float | None]:
    """How many times longer the rival's plan takes."""
    return lambda s: s.balances[rival].makespan / s.balances[OURS].makespan if rival in s.balances else None


def unbarred_over_ours(rival: str) -> Callable[[Sample], float | None]:
    return lambda s: s.balances[rival].unbarred / s.balances[OURS].makespan if rival in s.balances else None


def over(rival: str) -> Callable[[Sample], float | None]:
    """What `over_ours` would be if our plan ended at the bound."""
    return lambda s: s.balances[rival].makespan / s.bound if rival in s.balances else None


def bytes_of_static(sample: Sample) -> float | None:
    static = sample.balances.get("static")
    return sample.balances[OURS].bytes_between / static.bytes_between if static and static.bytes_between else None


def longest_is_long(value: Callable[[Sample], float | None]) -> Callable[[Sample], float | None]:
    return lambda s: value(s) if s.longest_of_mean > QUARTER else None


def cpu(sample: Sample) -> float:
    return sample.balances[OURS].cpu


def equal_speeds(replicas: int) -> Callable[[Sample], bool]:
    return lambda s: s.case.replicas == replicas and s.case.speeds == "equal"


def of(
    *families: str, replicas: Sequence[int], context: int | None = None, speeds: str = "equal"
) -> Callable[[Sample], bool]:
    return lambda s: (
        s.case.family in families and s.case.replicas in replicas and s.case.speeds == speeds
        and context in (None, s.case.context)
    )  # fmt: skip


BOTH = ("byted", "github")
TARGETS = (
    Target("makespan / bound, Byted- and GitHub-like, 256 replicas", of(*BOTH, replicas=[256]), over_bound, 1.05),
    Target("makespan / bound, Byted- and GitHub-like, 1,024 replicas", of(*BOTH, replicas=[K]), over_bound, 1.08),
    Target("makespan / bound, Wikipedia-like", of("wikipedia", replicas=[256, K]), over_bound, 1.12),
    Target("makespan / bound, nearly all sequences long", of(*MOSTLY_LONG, replicas=[64, 256, K]), over_bound, 1.06),
    Target("makespan / bound, one huge sequence", of("huge", replicas=[64, 256, K]), over_bound, 1.05),
    Target("makespan / bound, Byted- and GitHub-like, 12,288 replicas", of(*BOTH, replicas=[LARGEST]), over_bound, 1.05),
    Target("makespan / bound, Wikipedia-like, 12,288 replicas", of("wikipedia", replicas=[LARGEST]), over_bound, 1.10),
    *(
        Target(
            f"static / makespan, {words}-like, {size(context)}", of(family, replicas=[K], context=context),
            over_ours("static"), limit, True, over("static"),
        )
        for words, family, context, limit in (
            ("Byted", "byted", 256 * K, 2.3), ("Byted", "byted", 2 * K * K, 4.5),
            ("GitHub", "github", 256 * K, 2.7), ("GitHub", "github", 2 * K * K, 9.0),
        )
    ),
    Target("naive / makespan", of(*BOTH, replicas=[K]), over_ours("naive"), 2.1, True, over("naive")),
    Target(
        "bytescale / makespan, longest sequence beyond a quarter of the mean step", of(*BOTH, "wikipedia", replicas=[K]),
        longest_is_long(over_ours("bytescale")), 1.25, True, longest_is_long(over("bytescale")),
    ),
    Target("ring bytes of sequences that fit one replica", lambda s: True, lambda s: s.balances[OURS].bytes_of_short, 0),
    Target("ring bytes between nodes / static's, GitHub-like", of("github", replicas=[K]), bytes_of_static, 0.15),
    Target("ring bytes between nodes / static's, Byted-like", of("byted", replicas=[K]), bytes_of_static, 0.36),
    *(
        Target(
            f"makespan / bound, {words}, {name}", of(*families, replicas=sizes, context=256 * K, speeds=speeds),
            over_bound, limit,
        )
        for words, speeds in (("one replica 1.3 x slow", "one slow"), ("speeds between 0.7 and 1", "unequal"))
        for name, families, sizes, limit in (
            ("Byted- and GitHub-like, 256 replicas", BOTH, [256], 1.05),
            ("Byted- and GitHub-like, 1,024 replicas", BOTH, [K], 1.08),
            ("Wikipedia-like", ("wikipedia",), [256, K], 1.12),
        )
    ),
    Target("planner's CPU seconds, p95, 1,024 replicas", equal_speeds(K), cpu, 0.05, p95=True),
    Target("planner's CPU seconds, p95, 12,288 replicas", equal_speeds(LARGEST), cpu, 1.0, p95=True),
)  # fmt: skip


def judge(targets: Iterable[Target], samples: Sequence[Sample]) -> list[Row]:
    """One row a target of which the samples say anything."""
    return [row for target in targets if (row := _row(target, samples))]


def _row(target: Target, samples: Sequence[Sample]) -> Row | None:
    values = _by_case(target.of, target.value, samples)
    if not values:
        return None
    far = min if target.least else max
    middles = {case: _middle(found, target.p95) for case, found in values.items()}
    where = far(middles, key=middles.__getitem__)
    best = _by_case(target.of, target.best, samples).get(where) if target.best else None
    keeps = middles[where] >= target.limit if target.least else middles[where] <= target.limit
    return Row(
        target.what, f"{'>=' if target.least else '<='} {target.limit:g}", bool(keeps), middles[where],
        far(far(found) for found in values.values()), where, sum(map(len, values.values())),
        None if best is None else median(best),
    )  # fmt: skip


def _middle(values: Sequence[float], p95: bool) -> float:
    return float(np.percentile(values, 95)) if p95 else float(median(values))


def _by_case(
    chosen: Callable[[Sample], bool], value: Callable[[Sample], float | None], samples: Sequence[Sample]
) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    for sample in samples:
        if chosen(sample) and (known := value(sample)) is not None:
            found.setdefault(sample.case.name, []).append(float(known))
    return found


def beside(samples: Sequence[Sample]) -> list[dict[str, Any]]:
    """Per case and balance: medians of makespan over bound, without barriers too where it has some, and of idle time."""
    groups: dict[tuple[str, str], list[Sample]] = {}
    for sample in samples:
        for balance in sample.balances:
            groups.setdefault((sample.case.name, balance), []).append(sample)
    return [_group(balance, group) for (_, balance), group in groups.items()]


def _group(balance: str, group: Sequence[Sample]) -> dict[str, Any]:
    ratios = [s.balances[balance].makespan / s.bound for s in group]
    found = {
        "case": group[0].case.name, "family": group[0].case.family, "replicas": group[0].case.replicas,
        "speeds": group[0].case.speeds, "short": group[0].case.tokens == FEW, "balance": balance,
        "samples": len(group), "over_bound": round(median(ratios), 4), "worst": round(max(ratios), 4),
        "idle": round(median(s.balances[balance].idle for s in group), 4),
    }  # fmt: skip
    if any(s.balances[balance].unbarred < s.balances[balance].makespan for s in group):
        found["unbarred"] = round(median(s.balances[balance].unbarred / s.bound for s in group), 4)
    return found
