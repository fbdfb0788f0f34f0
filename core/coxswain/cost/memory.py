"""How much memory each device of a layout needs at its peak: a sum of what the engine holds, by shapes alone.

Counted are tensors, not what an allocator loses between them; a device keeps `RESERVED` bytes for that, for its context
and for the buffers of its communicators. Activations are those of the Llama family's layers as `coxswain_train` computes
them; a comparison with torch's allocator is in the tests.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from coxswain.config import ModelConfig
from coxswain.holdings import Holding, ParameterSpec, holdings_of
from coxswain.layout import Layout, Seat

Recompute = Literal["None", "Selective", "Full"]

MASTER = 4  # bytes of an element of masters, moments, sums of gradients, and what is computed in at least fp32
STATES = 3  # master copy and two moments, on the owner
LOSS_ROWS = 1024  # whose logits exist at one time
RESERVED = (
    2 << 30
)  # of a device: its context, its communicators, and gaps between tensors. Not measured by this project.


@dataclass(frozen=True, slots=True)
class Workload:
    """What does not depend on the place: bytes of a parameter or activation (2: bf16, 4: fp32), and the tokens of a task."""

    element: int
    tokens: int
    recompute: Recompute = "None"
    ring: bool = False  # whether a task may be a part of a ring


@dataclass(frozen=True, slots=True)
class Peak:
    """Bytes of one device at the moment of a step when it holds most."""

    parameters: int
    gradients: int
    optimizer: int
    activations: int  # kept for backward, of all graphs in flight
    transient: int  # of the one layer, or the loss, that is being computed

    @property
    def total(self) -> int:
        return self.parameters + self.gradients + self.optimizer + self.activations + self.transient


@dataclass(frozen=True, slots=True)
class Widths:
    """Elements of each token on one device: hidden is whole in every tensor group, the others are its part."""

    hidden: int
    query: int
    key: int
    inner: int
    heads: int
    rows: int  # of the head


def peaks(
    model: ModelConfig, specs: Sequence[ParameterSpec], layout: Layout, work: Workload, replica: int = 0
) -> dict[tuple[int, int], Peak]:
    """The peak of each (stage, tensor) of a replica."""
    replicas = len(layout.replicas)
    return {
        (seat.stage, seat.tensor): _peak(model, specs, layout, seat, work, replicas)
        for seat in layout.ranks()
        if seat.replica == replica
    }


def _peak(
    model: ModelConfig, specs: Sequence[ParameterSpec], layout: Layout, seat: Seat, work: Workload, replicas: int
) -> Peak:
    stages = layout.replicas[seat.replica].stages
    stage = stages[seat.stage]
    held = holdings_of(specs, layout, seat, model.layers)
    elements = sum(holding.box.elements for holding in held)
    widths = _widths(model, specs, held, seat.tensor, len(stage.devices))
    layers, graphs, last = stage.stop - stage.start, len(stages) - seat.stage, seat.stage == len(stages) - 1
    kept = layers * _kept(widths, work) + 2 * work.element * (widths.query // widths.heads) + last * _head(widths, work)
    return Peak(
        parameters=work.element * elements,
        gradients=gradient_bytes(elements, work),
        optimizer=STATES * MASTER * -(-elements // replicas),
        activations=graphs * kept * work.tokens,
        transient=max(_layer_transient(widths, work), _loss_transient(widths, work) if last else 0),
    )


def gradient_bytes(elements: int, work: Workload) -> int:
    """Of the sums of gradients; below fp32 also those of one backward beside them."""
    return elements * (MASTER + (work.element if work.element < MASTER else 0))


def _widths(
    model: ModelConfig, specs: Sequence[ParameterSpec], held: Sequence[Holding], tensor: int, degree: int
) -> Widths:
    """From the boxes of this rank's first layer, so that they follow whatever the model's family does."""
    boxes = {spec.name.rpartition("self_attn.")[2].rpartition("mlp.")[2]: spec.box(tensor, degree) for spec in specs}
    heads = max(1, model.heads // degree)
    head = next((box.shape[0] for name, box in boxes.items() if "lm_head" in name), 0)
    embedding = next((box.shape[0] for name, box in boxes.items() if "embed" in name), 0)
    return Widths(
        hidden=model.hidden,
        query=boxes["q_proj.weight"].shape[0],
        key=boxes["k_proj.weight"].shape[0],
        inner=boxes["up_proj.weight"].shape[0],
        heads=heads,
        rows=head or embedding,
    )


def layer_bytes(widths: Widths, element: int) -> int:
    """Bytes a token that one layer saves for its backward: its input and the middle of its residual stream (widened to fp32),
    each with its normed values before and after the norm's weight; queries, keys, values, the attention's output and
    log-sum-exp; four tensors of the feed-forward block."""
    w, wide = widths, max(element, MASTER)
    stream = 2 * (wide + 2 * element) * w.hidden + 2 * wide
    attention = 2 * element * (w.query + w.key) + wide * w.heads
    return stream + attention + 4 * element * w.inner


def _kept(widths: Widths, work: Workload) -> int:
    """Bytes a token that a layer holds between its forward and its backward."""
    if work.recompute == "None":
        return layer_bytes(widths, work.element)
    kept = work.element * widths.hidden
    if work.recompute == "Selective":
        kept += work.element * widths.query + max(work.element, MASTER) * widths.heads
    return kept


def _head(widths: Widths, work: Workload) -> int:
    """Bytes a token of the last norm, and the gradient that the loss has made in forward."""
    return (max(work.element, MASTER) + 3 * work.element) * widths.hidden


def _loss_transient(widths: Widths, work: Workload) -> int:
    """Logits and probabilities of some rows; the gradient of the head, and that of these rows."""
    wide, rows = max(work.element, MASTER), min(work.tokens, LOSS_ROWS)
    narrow = work.element if work.element < MASTER else 0
    logits = rows * widths.rows * (2 * wide)
    return logits + wide * widths.rows * widths.hidden + narrow * 0


def _layer_transient(widths: Widths, work: Workload) -> int:
    """The layer whose backward begins: what is recomputed, its gradients, and that of its largest matrix."""
    again = layer_bytes(widths, work.element) - work.element * widths.hidden if work.recompute != "None" else 0
    gradients = work.element * (2 * widths.hidden + widths.inner)
    matrix = work.element * widths.hidden * widths.inner
    return work.tokens * (again + gradients) + matrix
