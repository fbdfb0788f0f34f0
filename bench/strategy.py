"""Strategies for the published settings of FlexSP and Hydraulis: the chosen layout beside all homogeneous ones and FlexSP's way.

    python -m bench.strategy [--seeds 5] [--only hydraulis] [--write]

Predicted seconds, by the cost models named below; nothing here was run on a GPU. Prints one JSON object, then a line of
text per setting.

FlexSP (arXiv 2412.01523, 6.1): 64 A100-40GB, 512 sequences a step, GPT 7B, 13B and 30B, at most 192K tokens. Its
constants are those of its code, one a device. "FlexSP's way" is its planner on 64 replicas of one device, with the 28 GB
for activations that its code has: its states are sharded over all devices (ZeRO-3), whose gathers are not charged here.

Hydraulis (arXiv 2412.07894): 7B on 64 A100-40GB, context 32K, four strategies of eight devices with the coefficients that its
code has; sequences are not split, and a strategy holds what its memory formula gives. Its batches are not known here: steps
of one and of four million tokens.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from bench.recorded import keep
from coxswain.cost import load_constants
from coxswain.cost.constants import MODELS, Constants, device_memory
from coxswain.cost.model import CostModel
from coxswain.errors import Refused
from coxswain.plan.lengths import SETS, draw_lengths
from coxswain.plan.strategy.choose import choose
from coxswain.plan.strategy.costs import KindCost
from coxswain.plan.strategy.judge import Trial, step_seconds, trial_of
from coxswain.plan.strategy.kinds import by_tensor
from coxswain.plan.strategy.pool import histogram, propose, tables
from coxswain.plan.strategy.values import Alternative, Kind, Machine, name_of

Ints = NDArray[np.int64]
K = 1024
TRAINERS = (8,) * 8
SEQUENCES = 512

# FlexSP's code: ms per token squared, ms per token, MB of activations per token; a device that has the whole model.
FLEXSP = {
    "llama-7b": (5.128e-6, 0.18396, 4.48),
    "llama-13b": (9.285e-6, 0.30602, 4.22),
    "llama-30b": (15.426e-6, 0.80357, 3.42),
}
NONE = "none: no layout holds the longest sequence"
MILP = {("llama-7b", 192 * K)}  # settings of which FlexSP's planner places one step: that takes minutes
FLEXSP_BYTES = 28e9  # of activations

# Hydraulis' code, 7B on A100-40GB, ms of a sequence on one replica of eight devices: tensor -> (squared, linear, constant).
HYDRAULIS = {1: (4.6e-7, 0.0246, 7.0), 2: (4.2e-7, 0.0263, 12.3), 4: (4.6e-7, 0.0283, 26.2), 8: (5.1e-7, 0.0327, 59.7)}
HYDRAULIS_BYTES = {1: 36.0, 2: 39.5, 4: 43.0, 8: 46.5}  # of activations a token, hidden and layer; 36 to 50 in its code
HYDRAULIS_SYNC = 0.3  # seconds: gradients of replicas that differ
HYDRAULIS_LEAST = {1: 1280, 2: 2304, 4: 3072, 8: 4352}  # tokens of a micro-batch


@dataclass(frozen=True, slots=True)
class Row:
    """One setting: predicted seconds by the mean of the seeds."""

    setting: str
    lengths: str
    context: int
    chosen: str
    seconds: float
    homogeneous: dict[str, float]  # that fit
    flexsp_over_chosen: float | None = None  # of the first step
    choose_seconds: float = 0.0

    def figures(self) -> dict[str, Any]:
        found = sorted(self.homogeneous.values())
        over = {
            "best_homogeneous_over_chosen": found[0] / self.seconds if found else None,
            "worst_homogeneous_over_chosen": found[-1] / self.seconds if found else None,
            "flexsp_over_chosen": self.flexsp_over_chosen,
        }
        fields = {name: getattr(self, name) for name in self.__slots__}
        return {**fields, **{name: value and round(value, 3) for name, value in over.items()}}


def batch(name: str, context: int, seed: int) -> Ints:
    """512 sequences of at most `context` tokens."""
    return draw_lengths(name, context=context, tokens=SEQUENCES * 16 * K, seed=seed)[:SEQUENCES]


# --- FlexSP's settings -------------------------------------------------------------------------------------------------


def flexsp_machine(model: str) -> Machine:
    squared, linear, _ = FLEXSP[model]
    plain = load_constants("a100-40g", model)
    constants = msgspec.structs.replace(plain, attention_ns_per_token2=squared * 1e6, linear_us_per_token=linear * 1e3)
    return Machine(
        trainers=TRAINERS, model=MODELS[model], constants=constants, capacity=8 * K, max_degree=64,
        memory=device_memory("a100-40g"), recompute=("None", "Selective", "Full"),
    )  # fmt: skip


def flexsp_row(model: str, lengths: str, context: int, seeds: int) -> Row:
    """Our choice may hold 8K, 16K or 32K tokens a replica, the fastest of them."""
    steps, machine = [batch(lengths, context, seed) for seed in range(seeds)], flexsp_machine(model)
    began, homogeneous = time.process_time(), dict[str, float]()
    best: tuple[Alternative, Machine] | None = None
    for capacity in (8 * K, 16 * K, 32 * K):
        try:
            found = choose(replace(machine, capacity=capacity), steps, placed=6)
        except Refused:
            continue
        for each in (found.chosen, *found.alternatives):
            if len(each.replicas) == 1:
                homogeneous[each.summary] = min(each.seconds, homogeneous.get(each.summary, np.inf))
        if best is None or found.chosen.seconds < best[0].seconds:
            best = found.chosen, replace(machine, capacity=capacity)
    if best is None:
        return Row(f"FlexSP {model}", lengths, context, NONE, 0.0, {})
    took, (chosen, held) = time.process_time() - began, best
    rival = None
    if (model, context) in MILP:
        rival = flexsp_way(model, steps[:1]) / step_seconds(held, trial_of_chosen(held, chosen), steps[:1], "makespan")
    return Row(f"FlexSP {model}", lengths, context, chosen.summary, chosen.seconds, homogeneous, rival, took)


def trial_of_chosen(machine: Machine, chosen: Alternative) -> Trial:
    shapes = chosen.replicas
    counts = tuple((Kind(s.stages[0].tensor, tuple(stage.layers for stage in s.stages)), s.count) for s in shapes)
    return trial_of(machine, counts, chosen.recompute)


def flexsp_way(model: str, steps: Sequence[Ints]) -> float:
    """Its planner over single devices: whole sequences over aligned groups of powers of two, one micro-batch after another."""
    capacity = int(FLEXSP_BYTES / (FLEXSP[model][2] * 1e6))
    machine = replace(flexsp_machine(model), capacity=capacity, memory=0)
    counts = ((Kind(1, (machine.model.layers,)), machine.devices),)
    return step_seconds(machine, trial_of(machine, counts, "None"), steps, "flexsp")


# --- Hydraulis' setting ------------------------------------------------------------------------------------------------


def hydraulis_row(lengths: str, tokens: int, seeds: int) -> Row:
    """Its four strategies and the pools that the dynamic program makes of them, for steps of so many tokens."""
    context = 32 * K
    steps = [draw_lengths(lengths, context=context, tokens=tokens, seed=seed) for seed in range(seeds)]
    machine = hydraulis_machine()
    kinds = {tensor: Kind(tensor, (32 * tensor // 8,) * (8 // tensor)) for tensor in HYDRAULIS}
    found = {
        name_of(counts): hydraulis_seconds(machine, counts, steps, shared)
        for counts, shared in hydraulis_pools(kinds, steps, machine)
    }
    fits = {name: seconds for name, seconds in found.items() if seconds < np.inf}
    best = min(fits, key=lambda name: fits[name])
    equal = {name: seconds for name, seconds in fits.items() if "+" not in name}
    return Row(f"Hydraulis 7B, {tokens // K // K}M", lengths, context, best, fits[best], equal)


def hydraulis_machine() -> Machine:
    """The planner's view: one device of the strategy with stages only, which moves least."""
    plain = load_constants("a100-40g", "llama-7b")
    squared, linear, constant = HYDRAULIS[1]
    constants = msgspec.structs.replace(
        plain, attention_ns_per_token2=8e6 * squared, linear_us_per_token=8e3 * linear, task_ms=8 * constant
    )
    return Machine(trainers=TRAINERS, model=MODELS["llama-7b"], constants=constants, capacity=0, max_degree=1)


def hydraulis_cost(machine: Machine, kind: Kind) -> KindCost:
    squared, linear, constant = HYDRAULIS[kind.tensor]
    own: Constants = msgspec.structs.replace(
        machine.constants, attention_ns_per_token2=1e6 * squared, linear_us_per_token=1e3 * linear, task_ms=constant
    )
    return KindCost(CostModel(own), len(kind.layers), HYDRAULIS_SYNC)


def hydraulis_holds(kind: Kind) -> int:
    """Tokens: (memory - states - 2 GiB) / (layers x hidden / tensor x bytes). States: 6 bytes on eight devices, 12 on 64."""
    elements, gib = 6.74e9, 2**30
    left = 38 * gib - elements * (6 / 8 + 12 / 64)
    return int(left / (32 * 4096 / kind.tensor * HYDRAULIS_BYTES[kind.tensor]))


def hydraulis_pools(
    kinds: dict[int, Kind], steps: Sequence[Ints], machine: Machine
) -> Iterator[tuple[Any, dict[Kind, int]]]:
    """Eight equal replicas of each strategy, and the proposal of the dynamic program; with the longest sequence of each."""
    longest = max(int(lengths.max()) for lengths in steps)
    for kind in kinds.values():
        yield ((kind, 8),), {kind: longest}
    every = list(kinds.values())
    costs, held = [hydraulis_cost(machine, kind) for kind in every], [hydraulis_holds(kind) for kind in every]
    bins = histogram(steps)
    pools = propose(tables(every, costs, bins, [8] * len(every), held, max_degree=1, node=8), 64)
    counts, reach = dict[Kind, int](), dict[Kind, int]()
    for pool in pools:
        kind = every[pool.kind]
        counts[kind] = counts.get(kind, 0) + pool.replicas
        reach[kind] = int(bins.longest[pool.stop - 1])
    counts[every[pools[-1].kind]] += 8 - sum(counts.values())
    yield by_tensor(counts), reach


def hydraulis_seconds(machine: Machine, counts: Any, steps: Sequence[Ints], longest: dict[Kind, int]) -> float:
    """A kind takes tasks no longer than its longest sequence, and no smaller than is useful; inf where one does not fit."""
    costs = [hydraulis_cost(machine, kind) for kind, _ in counts]
    held = [min(hydraulis_holds(k), max(longest[k], HYDRAULIS_LEAST[k.tensor])) for k, _ in counts]
    speeds = [machine.constants.linear_us_per_token / cost.tasks.constants.linear_us_per_token for cost in costs]
    try:
        return step_seconds(machine, Trial(counts, costs, held, speeds), steps, "makespan")
    except Refused:
        return float("inf")


# --- output ------------------------------------------------------------------------------------------------------------


def rows(seeds: int, only: str) -> Iterator[Row]:
    if only in ("", "hydraulis"):
        for lengths in SETS:
            for tokens in (K * K, 4 * K * K):
                yield hydraulis_row(lengths, tokens, seeds)
    if only in ("", "flexsp"):
        for model in FLEXSP:
            for lengths in ("github", "wikipedia"):
                for context in (192 * K,):
                    yield flexsp_row(model, lengths, context, seeds)


def text(row: Row) -> str:
    found = row.figures()
    if not row.homogeneous:
        return f"{row.setting:<17} {row.lengths:<9} {row.context // K:>4}K  {row.chosen}"
    flexsp = f", FlexSP's way {found['flexsp_over_chosen']:.2f} x" if row.flexsp_over_chosen else ""
    return (
        f"{row.setting:<17} {row.lengths:<9} {row.context // K:>4}K  {row.chosen:<36} {row.seconds:>8.2f} s; homogeneous "
        f"{found['best_homogeneous_over_chosen']:.2f} to {found['worst_homogeneous_over_chosen']:.2f} x{flexsp}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3, help="sampled steps of each setting")
    parser.add_argument("--only", default="", choices=["", "flexsp", "hydraulis"])
    parser.add_argument(
        "--write", action="store_true", help="keep the figures of a whole run in docs/results/strategy.json"
    )
    given = parser.parse_args()
    found = list[Row]()
    for row in rows(given.seeds, given.only):
        found.append(row)
        print(text(row), file=sys.stderr, flush=True)
    figures = {"bench": "strategy", "seeds": given.seeds, "results": [row.figures() for row in found]}
    print(json.dumps(figures))
    if given.write:
        on = "predicted by cost models; no accelerator"
        keep("strategy", "Choosing a strategy", "make bench-strategy", figures, on)


if __name__ == "__main__":
    main()
