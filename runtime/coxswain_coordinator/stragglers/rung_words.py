"""What the ladder says of its rungs: changes of layout, and nodes that it asks for. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from coxswain.ladder.values import Relayout, ReplaceNode
from coxswain.layout import Device, Layout
from coxswain_coordinator.capacity import device_name
from coxswain_coordinator.stragglers.rung_history import Expected


def because(devices: frozenset[Device], lost: frozenset[Device]) -> str:
    """Slow devices by name, lost ones by their trainers."""
    gone = sorted({device.trainer for device in devices & lost})
    losses = [f"the loss of {', '.join(f'trainer-{index}' for index in gone)}"] if gone else []
    return " and ".join([*map(device_name, sorted(devices - lost)), *losses])


def requested(rung: Relayout, why: str, seconds: float, current: Layout) -> str:
    """`why`: as `because` says it. `seconds`: of a step in the current layout."""
    return (
        f"because of {why}: {rung.layout.summary()} is predicted to save {rung.gain:.3f} of {seconds:.3f} s of "
        f"each step, for {rung.cost:.1f} s once{_put_aside(rung.layout, current)}"
    )


def _put_aside(layout: Layout, current: Layout) -> str:
    """What becomes of devices that go on standby."""
    idle = sorted(set(layout.standby) - set(current.standby))
    if not idle:
        return ""
    names = " and ".join(map(device_name, idle))
    return f"; {names} goes on standby: probed now and then, and planned with again once it is well"


def measured(change: Expected, now: float) -> str:
    """`now`: seconds of a step in the layout that was changed to."""
    return (
        f"the layout that changed because of {change.because}: a step takes {now:.3f} s and took "
        f"{change.before:.3f} s; it gains {change.before - now:.3f} s, predicted were {change.gain:.3f} s"
    )


def evidence(rung: ReplaceNode, since: Mapping[Device, int]) -> str:
    """Why another node is wanted. `since`: by device, the first step at its present speed."""
    slow = " and ".join(
        f"{device_name(device)} computes {slowdown:.2f} x as long as its peers since step {since[device]}"
        for device, slowdown in rung.evidence
    )
    return f"{slow}; it costs {rung.gain:.3f} s of each step"
