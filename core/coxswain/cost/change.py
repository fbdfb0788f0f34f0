"""Memory while a world changes: a device holds its part of the old layout beside that of the new one until all have swapped."""

from __future__ import annotations

from collections.abc import Sequence

from coxswain.config import ModelConfig
from coxswain.cost.memory import Workload, peaks
from coxswain.holdings import ParameterSpec
from coxswain.layout import Device, Layout

WINDOWS = 2 * (64 << 20)  # bytes on their way: of the two rounds under way, sent and received


def change_peak(
    model: ModelConfig, specs: Sequence[ParameterSpec], before: Layout, after: Layout, element: int, copies: bool
) -> tuple[Device, int]:
    """The device of the new layout that holds most, and its bytes: weights, optimizer state and copies of both layouts.

    At most so many: state that stays in its boxes is held once, and counts twice here.
    """
    old, new = (_held(model, specs, layout, element, copies) for layout in (before, after))
    sums = {device: size + old.get(device, 0) + WINDOWS for device, size in new.items()}
    return max(sums.items(), key=lambda item: item[1])


def _held(
    model: ModelConfig, specs: Sequence[ParameterSpec], layout: Layout, element: int, copies: bool
) -> dict[Device, int]:
    """What each device holds between two steps. Gradients and activations are gone."""
    work = Workload(element, 1, copies=copies)
    each = peaks(model, specs, layout, work).values()
    return {s.device: p.parameters + p.optimizer for s, p in zip(layout.ranks(), each, strict=True)}
