"""Chooses a strategy: the dynamic program and equal replicas propose layouts, placements of sampled steps decide."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from coxswain.cost.memory import Recompute
from coxswain.errors import Refused
from coxswain.plan.planners import SLOW
from coxswain.plan.strategy.costs import KindCost, kind_cost
from coxswain.plan.strategy.judge import step_seconds, trial_of
from coxswain.plan.strategy.kinds import by_tensor, capacity_of, fits, fullest, held, kinds_of, memory_refusals, most
from coxswain.plan.strategy.pool import NEVER, Histogram, Tables, histogram, propose, tables
from coxswain.plan.strategy.values import Alternative, Counts, Kind, Machine, Refusal, Strategy, layout_of, name_of

Ints = NDArray[np.int64]
Longest = dict[Kind, int]
LEAST_TOKENS = 4096  # of a task, for kernels to be busy
FALL_BACK = "makespan"  # places steps instead of a planner that solves integer programs
PLACED = 8
"""Proposals that are placed: those with the shortest estimates."""


@dataclass(frozen=True, slots=True)
class Proposal:
    counts: Counts
    recompute: Recompute
    seconds: float  # estimate
    peak: int
    capacities: tuple[int, ...]  # tokens of a task, of each kind
    tokens: tuple[int, ...]  # the same where they are not the policy's, else 0

    def alternative(self, seconds: float | None = None) -> Alternative:
        return Alternative(
            summary=name_of(self.counts),
            replicas=tuple(kind.shape(n, c) for (kind, n), c in zip(self.counts, self.tokens, strict=True)),
            seconds=self.seconds if seconds is None else seconds,
            peak_bytes=self.peak,
            recompute=self.recompute,
            placed=seconds is not None,
        )


def choose(machine: Machine, steps: Sequence[Ints], balance: str = "Makespan", placed: int = PLACED) -> Strategy:
    """The fastest of the layouts that the machine can have, by the mean of the sampled steps.

    `steps`: lengths of the sequences of each. Refused ("NoStrategy") where no layout fits memory and the longest sequence.
    """
    kinds, refused = kinds_of(machine)
    refused += _in_no_mode(machine, kinds)
    found = (p for mode in machine.recompute for p in _proposals(machine, kinds, steps, mode, refused))
    proposals = _one_mode(sorted(found, key=lambda p: (p.seconds, p.counts)))
    if not proposals:
        raise Refused("NoStrategy", _nothing(machine, steps, refused))
    own = FALL_BACK if balance.lower() in SLOW else balance
    judged, without = _judged(machine, proposals, steps, own, placed)
    if not judged:  # as a job does with steps that do not fit its balance
        judged, without = _judged(machine, proposals, steps, FALL_BACK, placed)
    judged.sort(key=lambda alternative: alternative.seconds)
    had = {a.summary for a in judged} | {r.summary for r in without}
    rest = [p.alternative() for p in proposals if name_of(p.counts) not in had]
    return Strategy(
        chosen=judged[0],
        alternatives=(*judged[1:], *rest),
        refused=(*_once(refused, proposals), *without),
        memory_bytes=machine.memory,
        steps=len(steps),
        tokens=round(float(np.mean([lengths.sum() for lengths in steps]))),
    )


def _judged(
    machine: Machine, proposals: Sequence[Proposal], steps: Sequence[Ints], balance: str, most: int
) -> tuple[list[Alternative], list[Refusal]]:
    """The first layouts on which the balance places the sampled steps and the longest sequence; before them those without."""
    found, without = list[Alternative](), list[Refusal]()
    for p in proposals:
        if len(found) == most:
            break
        trial = trial_of(machine, p.counts, p.recompute, p.capacities)
        try:
            if machine.longest:
                step_seconds(machine, trial, [np.array([machine.longest])], balance)
            found.append(p.alternative(step_seconds(machine, trial, steps, balance)))
        except Refused as refused:
            if refused.reason != "CapacityLost":
                raise
            without.append(Refusal(name_of(p.counts), f"balance {balance}: {refused.message}"))
    return found, without


def _one_mode(proposals: list[Proposal]) -> list[Proposal]:
    """Each layout once, in the mode with the shortest estimate."""
    found: dict[Counts, Proposal] = {}
    for proposal in proposals:
        found.setdefault(proposal.counts, proposal)
    return list(found.values())


def _once(refused: list[Refusal], proposals: list[Proposal]) -> tuple[Refusal, ...]:
    """Each layout that is refused in every mode, once."""
    had = {name_of(proposal.counts) for proposal in proposals}
    return tuple({r.summary: r for r in refused if r.summary not in had}.values())


def _in_no_mode(machine: Machine, kinds: list[Kind]) -> list[Refusal]:
    """The kinds that memory holds in no mode, with what the thriftiest one needs."""
    kept = held(machine, kinds, machine.recompute)
    return [*memory_refusals(machine, [kind for kind in kinds if kind not in kept], machine.recompute[-1]).values()]


def _proposals(
    machine: Machine, kinds: list[Kind], steps: Sequence[Ints], recompute: Recompute, refused: list[Refusal]
) -> Iterator[Proposal]:
    """Equal replicas of each kind that fits, and the pools of the dynamic program, in one mode of recompute."""
    if not (usable := held(machine, kinds, [recompute])):
        return
    lengths = histogram(steps)
    costs = [kind_cost(machine, kind, recompute) for kind in usable]
    table = _tables(machine, usable, costs, lengths, recompute)
    candidates = dict(_candidates(machine, usable, table, lengths))
    for counts, longest in candidates.items():
        capacities = _capacities(machine, counts, longest, recompute)
        why, peak = _fault(machine, counts, capacities, max(int(lengths.longest[-1]), machine.longest), recompute)
        if why:
            refused.append(Refusal(name_of(counts), why))
        else:
            own = tuple(c if machine.least and c < machine.capacity else 0 for c in capacities)
            yield Proposal(counts, recompute, _estimate(table, usable, counts), peak, capacities, own)


def _capacities(machine: Machine, counts: Counts, longest: Longest, recompute: Recompute) -> tuple[int, ...]:
    """Tokens of a task of each kind: the machine's, or what memory holds but no more than the kind's longest sequence."""
    total = sum(count for _, count in counts)
    held = tuple(capacity_of(machine, kind, recompute, total) for kind, _ in counts)
    if machine.capacity:
        return held
    return tuple(min(h, max(longest[kind], LEAST_TOKENS)) for h, (kind, _) in zip(held, counts, strict=True))


def _tables(
    machine: Machine, kinds: list[Kind], costs: list[KindCost], lengths: Histogram, recompute: Recompute
) -> Tables:
    counts = [most(machine, kind) for kind in kinds]
    held = [capacity_of(machine, kind, recompute, count) for kind, count in zip(kinds, counts, strict=True)]
    return tables(kinds, costs, lengths, counts, held, max_degree=machine.max_degree, node=machine.node)


def _candidates(
    machine: Machine, kinds: list[Kind], table: Tables, lengths: Histogram
) -> Iterator[tuple[Counts, Longest]]:
    """Layouts, each with the longest sequence that every kind is proposed for."""
    whole = int(lengths.longest[-1])
    yield from ((((kind, most(machine, kind)),), {kind: whole}) for kind in kinds)
    pools, longest = dict[Kind, int](), dict[Kind, int]()
    for pool in propose(table, machine.devices):
        kind = kinds[pool.kind]
        pools[kind] = pools.get(kind, 0) + pool.replicas
        longest[kind] = int(lengths.longest[pool.stop - 1])
    if len(pools) > 1:
        yield by_tensor(pools), longest
        yield by_tensor(_filled(machine, pools)), longest


def _filled(machine: Machine, pools: dict[Kind, int]) -> dict[Kind, int]:
    """The pools with replicas of the smallest of their kinds on the devices that are left over."""
    left = machine.devices - sum(kind.devices * count for kind, count in pools.items())
    smallest = min(pools, key=lambda kind: kind.devices)
    return {**pools, smallest: pools[smallest] + left // smallest.devices}


def _fault(
    machine: Machine, counts: Counts, capacities: tuple[int, ...], longest: int, recompute: Recompute
) -> tuple[str, int]:
    """Why this layout cannot be had, and the bytes of its fullest device."""
    layout = layout_of(counts, machine.trainers)
    if not layout.replicas:
        return "its tensor groups find no room on the trainers", 0
    held = max(c * min(machine.max_degree, count) for c, (_, count) in zip(capacities, counts, strict=True))
    if longest > held:
        return f"a sequence of {longest} tokens does not fit: equal replicas hold {held}", 0
    if min(capacities) < machine.least:
        return f"memory holds {min(capacities)} tokens of a task, at least {machine.least} are wanted", 0
    peak = fullest(machine, counts, recompute)
    need = f"{peak / 2**30:.1f} GiB for tensors, with recompute {recompute}"
    return ("" if fits(machine, peak) else f"its fullest device needs {need}"), peak


def _estimate(table: Tables, kinds: list[Kind], counts: Counts) -> float:
    """Seconds of a mean step if work were dealt without loss: all work over all rates, or the longest sequence."""
    rows = np.array([kinds.index(kind) for kind, _ in counts])
    replicas = np.array([count for _, count in counts])
    alone = table.alone[rows, :, replicas - 1]
    drain, after = table.drain[rows, None], table.after[rows, None]
    rate = float((replicas / table.work[rows, -1]).sum())
    behind = float((drain * np.where(alone < NEVER, alone, 0.0) + after).max())
    return max(1 / rate + behind, float((alone + drain * alone + after).min(axis=0).max()))


def _nothing(machine: Machine, steps: Sequence[Ints], refused: list[Refusal]) -> str:
    longest = max(int(lengths.max()) for lengths in steps)
    why = "; ".join(f"{r.summary}: {r.why}" for r in refused[:4])
    return (
        f"no layout of {machine.devices} devices fits the model and sequences of {longest} tokens ({why}); use more devices, "
        "recompute Selective or Full, fewer tokensPerReplica, or shorter sequences"
    )
