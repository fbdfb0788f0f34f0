"""How much memory each device of a layout needs at its peak: a sum of what the engine holds, by shapes alone.

Counted are tensors, not what an allocator loses between them; a device keeps `RESERVED` bytes for that, for its context
and for the buffers of its communicators. Activations are those of the Llama family's layers as `coxswain_train` computes
them; a comparison with torch's allocator is in the tests.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from coxswain.config import ModelConfig
from coxswain.copies import wards_of
from coxswain.holdings import ParameterSpec, Place, is_on
from coxswain.layout import Layout, Replica, Seat, Stage

Recompute = Literal["None", "Selective", "Full"]

MASTER = 4  # bytes of an element of masters, moments, sums of gradients, and what is computed in at least fp32
STATES = 3  # master copy and two moments, on the owner
BUCKETS = 100 << 20  # of gradients on their way to owners: two of 25 MiB, each sent and received
LOSS_ROWS = 1024  # whose logits exist at one time
RESERVED = (
    2 << 30
)  # of a device: its context, its communicators, and gaps between tensors. Not measured by this project.


@dataclass(frozen=True, slots=True)
class Workload:
    """What does not depend on the place: bytes of a parameter or activation (2: bf16, 4: fp32), and the tokens of a task.

    `offload`: the share of a task's activations that is in host memory until backward. `exchanges`: whether members of its
    ring exchange heads. `copies`: each device keeps one of another device's part of the optimizer state. `buckets`: bytes of
    gradients on their way to owners, which a small model does not fill.
    """

    element: int
    tokens: int
    recompute: Recompute = "None"
    offload: float = 0.0
    exchanges: bool = False
    copies: bool = False
    buckets: int = BUCKETS


@dataclass(frozen=True, slots=True)
class Peak:
    """Bytes of one device at the moment of a step when it holds most."""

    parameters: int
    gradients: int
    optimizer: int
    activations: int  # kept for backward, of all graphs in flight
    transient: int  # of the one layer, or the loss, that is being computed
    reduction: int  # beside the gradients while these go to their owners: there are no activations then

    @property
    def total(self) -> int:
        states = self.parameters + self.gradients + self.optimizer
        return states + max(self.activations + self.transient, self.reduction)


@dataclass(frozen=True, slots=True)
class Widths:
    """Elements of each token on one device: hidden is whole in every tensor group, the others are its part."""

    hidden: int
    query: int
    key: int
    inner: int
    heads: int
    rows: int  # of the embedding, and so of the head
    normed: bool = False  # whether queries and keys have norms

    @property
    def head(self) -> int:
        return self.query // self.heads


@dataclass(frozen=True, slots=True)
class StagePlace:
    """A stage's layers, and its place in the pipeline: `depth` is the number of stages from it to the last one."""

    layers: int
    first: bool
    depth: int


@dataclass(frozen=True, slots=True)
class Spot:
    """What is the same on equal ranks. `elements`: of its parameters; `ward`: of those of whose shard it holds a copy."""

    elements: int
    widths: Widths
    place: StagePlace
    ward: int = 0

    def peak(self, replicas: int, work: Workload) -> Peak:
        """Where `replicas` share the optimizer's state."""
        return stage_peak(self.elements, self.widths, self.place, replicas, work, self.ward)


def peaks(
    model: ModelConfig, specs: Sequence[ParameterSpec], layout: Layout, work: Workload, replicas: int = 0
) -> dict[tuple[int, int, int], Peak]:
    """The peak of each (replica, stage, tensor). The owners of the optimizer's state are all replicas alike.

    `replicas`: of the whole layout, where this one stands for a larger one; 0: its own. Equal ranks are summed up once.
    """
    spots, owners = spots_of(Shares(model, specs), layout, work.copies), replicas or len(layout.replicas)
    found = {spot: spot.peak(owners, work) for spot in set(spots)}
    return {(s.replica, s.stage, s.tensor): found[spot] for s, spot in zip(layout.ranks(), spots, strict=True)}


def replica_spots(shares: Shares, replica: Replica) -> tuple[Spot, ...]:
    """Those of one replica, equal ones once. Its ward is one of its equals."""
    spots = spots_of(shares, Layout((replica,)), copies=False)
    return tuple(replace(spot, ward=spot.elements) for spot in dict.fromkeys(spots))


def spots_of(shares: Shares, layout: Layout, copies: bool, nodes: Sequence[str] = ()) -> list[Spot]:
    """By rank. `nodes`: of each trainer, on which it depends whose copy a device holds; one that is not known is of its own."""
    seats, known = layout.ranks(), dict[tuple[int, ...], Spot]()
    alone = [_spot(shares, layout, seat, known) for seat in seats]
    if not (copies and (wards := wards_of(seats, nodes))):
        return alone
    pairs = [(spot, alone[ward].elements) for spot, ward in zip(alone, wards, strict=True)]
    kept = {pair: replace(pair[0], ward=pair[1]) for pair in set(pairs)}
    return [kept[pair] for pair in pairs]


def _spot(shares: Shares, layout: Layout, seat: Seat, known: dict[tuple[int, ...], Spot]) -> Spot:
    """`known`: those of equal ranks."""
    stages = layout.replicas[seat.replica].stages
    stage = stages[seat.stage]
    key = len(stages) - seat.stage, stage.start, stage.stop, seat.tensor, len(stage.devices)
    if key not in known:
        place = StagePlace(stage.stop - stage.start, seat.stage == 0, len(stages) - seat.stage)
        known[key] = Spot(*shares.of(stage, seat.tensor), place)
    return known[key]


class Shares:
    """What the ranks of tensor groups hold. Places with parameters of the same shapes, such as layers, are summed up once: a
    model may have a thousand layers, and a layout as many ranks.
    """

    def __init__(self, model: ModelConfig, specs: Sequence[ParameterSpec]) -> None:
        self._model, self._places = model, defaultdict[Place, list[ParameterSpec]](list)
        for spec in specs:
            self._places[spec.place].append(spec)
        first = dict[object, Place]()
        self._like = {place: first.setdefault(_shapes(mine), place) for place, mine in self._places.items()}
        self._kinds = list({spec.name.split(".")[-2]: spec for spec in specs}.values())
        self._known: dict[tuple[int, int], tuple[dict[Place, int], Widths]] = {}
        self._stages: dict[tuple[int, int], Counter[Place]] = {}

    def of(self, stage: Stage, tensor: int) -> tuple[int, Widths]:
        """Elements and widths of a rank."""
        group = tensor, len(stage.devices)
        if group not in self._known:
            self._known[group] = self._sums(*group), widths_of(self._model, self._kinds, *group)
        sums, widths = self._known[group]
        return sum(sums[like] * number for like, number in self._numbers(stage).items()), widths

    def _numbers(self, stage: Stage) -> Counter[Place]:
        """How many places of each kind a stage has."""
        layers = stage.start, stage.stop
        if layers not in self._stages:
            others: tuple[Place, ...] = ("first", "last", "ends")
            ends = (place for place in others if is_on(place, stage, self._model.layers))
            self._stages[layers] = Counter(self._like[p] for p in (*range(*layers), *ends) if p in self._like)
        return self._stages[layers]

    def _sums(self, tensor: int, degree: int) -> dict[Place, int]:
        """Elements of a place of each kind."""
        alike = set(self._like.values())
        return {place: sum(spec.box(tensor, degree).elements for spec in self._places[place]) for place in alike}


def _shapes(specs: Sequence[ParameterSpec]) -> object:
    return tuple((s.shape, s.split, s.heads, s.partial) for s in specs)


def stage_peak(
    elements: int, widths: Widths, place: StagePlace, replicas: int, work: Workload, ward: int | None = None
) -> Peak:
    """The peak of one device of a stage that holds so many elements of parameters. `ward`: those of its ward; None: as many."""
    owned, last = -(-elements // replicas), place.depth == 1
    copied = -(-(elements if ward is None else ward) // replicas) if work.copies else 0
    layer = kept_bytes(widths, work)
    kept = layer * _layers_here(place.layers, work) + _edges(widths, work, not place.first, last)
    return Peak(
        parameters=work.element * elements,
        gradients=MASTER * elements,
        optimizer=STATES * MASTER * (owned + copied),
        activations=int(place.depth * kept * work.tokens),
        transient=max(
            _layer_transient(widths, work) + int(_layers_back(place.layers, work) * layer * work.tokens),
            loss_transient(widths, work) if last else 0,
        ),
        reduction=MASTER * (owned + copied) + work.buckets if replicas > 1 else MASTER * copied,
    )


def widths_of(model: ModelConfig, specs: Sequence[ParameterSpec], tensor: int, degree: int) -> Widths:
    """From the boxes of a rank's matrices, which are alike in all layers."""
    kinds = {spec.name.split(".")[-2]: spec for spec in specs}
    boxes = {kind: spec.box(tensor, degree) for kind, spec in kinds.items()}
    return Widths(
        hidden=model.hidden,
        query=boxes["q_proj"].shape[0],
        key=boxes["k_proj"].shape[0],
        inner=boxes["up_proj"].shape[0],
        heads=max(1, model.heads // degree),
        rows=boxes["embed_tokens"].shape[0],
        normed="q_norm" in boxes,
    )


def _layers_here(layers: int, work: Workload) -> float:
    """Layers whose activations a device keeps until backward: whole tensors go, as far as the share allows, and the last
    layer's stay."""
    others = layers - 1
    if work.recompute == "Full":  # a layer is one tensor
        return layers - int(work.offload * others)
    return layers - work.offload * others


def _layers_back(layers: int, work: Workload) -> float:
    """Layers that have come back beyond the last one's, which has gone by then: one in backward and the next."""
    return max(0.0, min(2, layers - 1) * work.offload - 1)


def layer_bytes(widths: Widths, work: Workload) -> int:
    """Bytes a token that one layer saves for its backward.

    Its input and the middle of its residual stream, widened to fp32 as norms compute, with a scale each; the normed values
    before and after the norm's weight; queries, keys, values, the attention's output and log-sum-exp, and where queries and
    keys have norms, what these save; the output that an exchange of heads brings home; four tensors of the feed-forward block.
    """
    w, element, wide = widths, work.element, max(work.element, MASTER)
    stream = 2 * (wide + 2 * element) * w.hidden + 2 * wide
    attention = 2 * element * (w.query + w.key) + wide * w.heads + work.exchanges * element * w.query
    norms = (wide + element) * (w.query + w.key) + wide * (w.query + w.key) // w.head if w.normed else 0
    return stream + attention + norms + 4 * element * w.inner


def kept_bytes(widths: Widths, work: Workload) -> int:
    """Bytes a token that a layer holds between its forward and its backward."""
    if work.recompute == "None":
        return layer_bytes(widths, work)
    kept = work.element * widths.hidden
    if work.recompute == "Selective":
        kept += work.element * widths.query + max(work.element, MASTER) * widths.heads
    return kept


def _edges(widths: Widths, work: Workload, receives: bool, last: bool) -> int:
    """Bytes a token besides the layers: rotations; of the last stage the last norm and the gradient that the loss has made in
    forward, of others the output; of all but the first the input."""
    wide, element, hidden = max(work.element, MASTER), work.element, widths.hidden
    end = (wide + 3 * element) * hidden if last else element * hidden
    return 2 * element * widths.head + end + receives * element * hidden


def loss_transient(widths: Widths, work: Workload) -> int:
    """The gradient of the head; beside it logits and probabilities of some rows, or later their narrower gradient and the
    product that is added."""
    wide, tokens = max(work.element, MASTER), min(work.tokens, LOSS_ROWS)
    narrow = work.element if work.element < wide else 0
    added = narrow * (tokens + widths.hidden)
    return widths.rows * (wide * widths.hidden + max(2 * wide * tokens, added))


def _layer_transient(widths: Widths, work: Workload) -> int:
    """The layer whose backward begins: what was recomputed, the first gradients, and that of a matrix."""
    again = layer_bytes(widths, work) - work.element * widths.hidden if work.recompute != "None" else 0
    gradients = work.element * (2 * widths.hidden + widths.inner)
    return work.tokens * (again + gradients) + work.element * widths.hidden * widths.inner
