"""The kinds of replicas that a machine can have: degrees that share the model, stages, and what memory allows. No numpy."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from msgspec.structs import replace

from coxswain.config import ModelConfig
from coxswain.cost.memory import RESERVED, Recompute, Shares, Spot, replica_spots, spots_of
from coxswain.flops import loss_layers
from coxswain.holdings import ParameterSpec, tensor_faults
from coxswain.models import parameter_specs
from coxswain.plan.strategy.values import Alternative, Counts, Kind, Machine, Refusal, kind_of, layout_of

PIPELINES = (1, 2, 4, 8, 16)
OTHER_PIPELINES = (3, 5, 6, 7, *range(9, 16))
UNIT = 256  # tokens
MOST_UNITS = 2**13
KNOWN_MODELS = 8  # that are remembered: the operator judges all jobs, as long as it runs
KNOWN_KINDS = 512  # likewise: some fifty of a machine, in each of three modes
_GIB = 2**30


def kinds_of(machine: Machine) -> tuple[list[Kind], list[Refusal]]:
    """Kinds that the machine can have, whatever memory they need, and degrees that it cannot have.

    Where memory holds none of them in any mode, those of other numbers of stages that it holds are added.
    """
    kinds, refused = _of_stages(machine, PIPELINES)
    if not held(machine, kinds, machine.recompute):
        kinds += held(machine, _of_stages(machine, OTHER_PIPELINES)[0], machine.recompute)
    return kinds, refused


def held(machine: Machine, kinds: list[Kind], modes: Iterable[Recompute]) -> list[Kind]:
    """The kinds that memory holds in one of these modes."""
    tight = [memory_refusals(machine, kinds, mode) for mode in modes]
    return [kind for kind in kinds if not all(kind in refusals for refusals in tight)]


def _of_stages(machine: Machine, pipelines: Iterable[int]) -> tuple[list[Kind], list[Refusal]]:
    kinds, refused = list[Kind](), list[Refusal]()
    for tensor in (t for t in range(1, machine.node + 1) if machine.node % t == 0):
        if why := _tensor_fault(machine, tensor):
            refused.append(Refusal(f"tp{tensor}", why))
            continue
        for stages in pipelines:
            if stages <= machine.model.layers and tensor * stages <= machine.devices:
                kinds.append(Kind(tensor, balanced(machine.model, stages)))
    return [kind for kind in kinds if most(machine, kind)], refused


def _tensor_fault(machine: Machine, tensor: int) -> str:
    """Why no tensor group may have this degree; empty: it may."""
    if tensor > 1 and machine.whole_matrices:
        return "Muon needs whole matrices"
    faults = tensor_faults(_one_layer(machine.model), [tensor])
    return faults[0] if faults else ""


@lru_cache(maxsize=KNOWN_MODELS)
def _one_layer(model: ModelConfig) -> tuple[ParameterSpec, ...]:
    return parameter_specs(replace(model, layers=1), model.vocabulary)


def balanced(model: ModelConfig, stages: int) -> tuple[int, ...]:
    """Layers of each stage: the last has fewer, by what the head and the loss are, so that all take about as long."""
    layers = model.layers
    last = round((layers + loss_layers(model)) / stages - loss_layers(model)) if stages > 1 else layers
    last = max(1, min(last, layers // stages))
    rest = stages - 1
    return (*((layers - last + s) // rest for s in range(rest)), last)


def peak_bytes(machine: Machine, kind: Kind, replicas: int, recompute: Recompute, tokens: int = 0) -> int:
    """Bytes that the fullest device of a replica needs for tensors, with `replicas` in all. `tokens`: 0: of a full task."""
    work = machine.workload(tokens or capacity_of(machine, kind, recompute, replicas), recompute)
    return max(spot.peak(replicas, work).total for spot in _spots(machine.model, kind))


@lru_cache(maxsize=KNOWN_KINDS)
def _spots(model: ModelConfig, kind: Kind) -> tuple[Spot, ...]:
    """What the devices of a replica hold: neither its tokens nor the number of replicas changes it."""
    return replica_spots(shares_of(model), kind.replica())


@lru_cache(maxsize=KNOWN_MODELS)
def shares_of(model: ModelConfig) -> Shares:
    """What ranks hold of a model with its vocabulary."""
    return Shares(model, parameter_specs(model, model.vocabulary))


@lru_cache(maxsize=KNOWN_KINDS)
def capacity_of(machine: Machine, kind: Kind, recompute: Recompute, replicas: int) -> int:
    """Tokens of a task, with `replicas` in all: the machine's number, or where that is 0 what memory holds, in units of 256.

    A machine that allows kinds to have less gives those that have not the memory for its number what they hold.
    """
    whole = machine.capacity
    if whole and (not machine.least or fits(machine, peak_bytes(machine, kind, replicas, recompute, whole))):
        return whole
    low, high = 1, whole // UNIT if whole else MOST_UNITS
    while low < high:
        middle = (low + high + 1) // 2
        peak = peak_bytes(machine, kind, replicas, recompute, middle * UNIT)
        low, high = (middle, high) if fits(machine, peak) else (low, middle - 1)
    return low * UNIT


def fits(machine: Machine, peak: int) -> bool:
    return not machine.memory or peak + RESERVED <= machine.memory


def most(machine: Machine, kind: Kind) -> int:
    """Replicas of this kind that the machine's devices make."""
    return sum(each // kind.tensor for each in machine.trainers) // len(kind.layers)


def memory_refusals(machine: Machine, kinds: list[Kind], recompute: Recompute) -> dict[Kind, Refusal]:
    """The kinds that do not fit even where all devices are replicas of theirs, so that most share the optimizer's state."""
    found = {}
    for kind in kinds:
        count = most(machine, kind)
        tokens = max(capacity_of(machine, kind, recompute, count), machine.least)
        peak = peak_bytes(machine, kind, count, recompute, tokens)
        if not fits(machine, peak):
            need, limit = (peak + RESERVED) / _GIB, machine.memory / _GIB
            why = f"a device needs {need:.1f} GiB with recompute {recompute}, it has {limit:.1f} GiB"
            found[kind] = Refusal(kind.name, why)
    return found


def fullest(machine: Machine, counts: Counts, recompute: Recompute) -> int:
    """Bytes of the fullest device of a layout."""
    replicas = sum(count for _, count in counts)
    if machine.workload(1, recompute).copies:
        return _fullest_with_wards(machine, counts, recompute, replicas)
    return max(peak_bytes(machine, kind, replicas, recompute) for kind, _ in counts)


def _fullest_with_wards(machine: Machine, counts: Counts, recompute: Recompute, replicas: int) -> int:
    """With the copies that each device keeps of its ward, which may be of another kind."""
    layout = layout_of(counts, machine.trainers)
    tokens = [capacity_of(machine, kind, recompute, replicas) for kind, count in counts for _ in range(count)]
    spots = spots_of(shares_of(machine.model), layout, copies=True, nodes=machine.nodes)
    pairs = {(spot, tokens[seat.replica]) for spot, seat in zip(spots, layout.ranks(), strict=True)}
    return max(spot.peak(replicas, machine.workload(each, recompute)).total for spot, each in pairs)


def still_fits(machine: Machine, chosen: Alternative) -> bool:
    """Whether devices have the memory for what was chosen for them, on these nodes as well."""
    counts = tuple((kind_of(shape), shape.count) for shape in chosen.replicas)
    return not machine.memory or fits(machine, fullest(machine, counts, chosen.recompute))


def by_tensor(pools: dict[Kind, int]) -> Counts:
    """Replicas of each kind in the order in which a layout finds room for them."""
    return tuple(sorted(((k, n) for k, n in pools.items() if n), key=lambda pool: (-pool[0].tensor, pool[0].layers)))
