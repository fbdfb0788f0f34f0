"""`decide`: the rung for one view. The same view gives the same rung.

It is ski rental: a change is made when what it would have saved, had it been made at once, reaches what it costs. So it
costs at most twice what knowing the future would. Each change for the sake of one device doubles what the next one for
its sake must save, and how long it must wait: flapping makes ever fewer changes.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable

from coxswain.ladder.drag import dragged, slowest
from coxswain.ladder.values import (
    LEAST_GAIN,
    Change,
    Keep,
    Option,
    Options,
    Plan,
    Relayout,
    ReplaceNode,
    Rung,
    Speeds,
    View,
    speed_in,
)
from coxswain.layout import Device, Layout

ALIKE = 1.04  # speeds within this factor are the same to a layout
DWELL = 8  # steps between two changes for the sake of one device; doubled each time
FORGET = 4096  # steps after which a change no longer counts against the next one


def decide(view: View) -> Rung:
    """The cheapest rung that is due and allowed: layouts, then a node. Plans follow speeds by themselves (`lead.py`)."""
    if view.action not in ("Migrate", "ReplaceNode") or not _unsettled(view):
        return Keep()
    if not _answers(view.options, view):
        return Plan(view.speeds)
    assert view.options
    return _relayout(view, view.options) or _replacement(view, view.options) or Keep()


def differing(a: Speeds, b: Speeds) -> frozenset[Device]:
    """Devices whose speed in `a` is not that in `b`."""
    pairs = ((device, speed_in(a, device), speed_in(b, device)) for device in {**a, **b})
    return frozenset(device for device, x, y in pairs if max(x, y) > ALIKE * min(x, y))


def slow(speeds: Speeds) -> frozenset[Device]:
    return differing(speeds, {})


def _unsettled(view: View) -> bool:
    """A device is slow, or is no longer as the layout was chosen for."""
    return bool(slow(view.speeds) or differing(view.speeds, view.planned))


def _answers(options: Options | None, view: View) -> bool:
    return options is not None and options.current == view.layout and options.speeds == view.speeds


def _relayout(view: View, options: Options) -> Relayout | None:
    """Of the changes that are due, the one that would have cost least since the onset."""
    devices = differing(view.speeds, view.planned) or slow(view.speeds)
    steps, factor = _steps_since(view, devices), _back_off(view.changes, devices, view.step)
    back = any(view.planned.get(d) == 0 for d in devices)  # lost, and there again: taken in as soon as that gains
    if math.isfinite(options.stay) and not back and not _rested(view, devices, factor):
        return None
    due = [o for o in options.layouts if _due(o, options, view, math.inf if back else steps, factor)]
    if not due:
        return None
    best = min(due, key=lambda o: _cost_so_far(o, options, view, steps))
    return Relayout(best.kind, best.layout, _gain(best, options, view), best.change, devices)


def _due(option: Option, options: Options, view: View, steps: float, factor: int) -> bool:
    gain = _gain(option, options, view)
    if math.isinf(gain):
        return True
    return gain > 0 and gain >= view.least_gain * view.seconds and steps * gain >= factor * option.change


def _gain(option: Option, options: Options, view: View) -> float:
    """Seconds a step: the planner's ratio, of the tasks as they are, and what slow devices drag no more, or begin to drag.

    Infinite where staying is impossible.
    """
    if math.isinf(options.stay):
        return math.inf
    tasks = (view.seconds - view.beside) * (1 - option.seconds / options.stay)
    return tasks + view.beside - _beside_in(option.layout, view)


def _beside_in(layout: Layout, view: View) -> float:
    """Seconds of a step besides tasks in another layout."""
    now, then = (dragged(view.drag, slowest(each, view.speeds)) for each in (view.layout, layout))
    return view.beside * then / now


def _cost_so_far(option: Option, options: Options, view: View, steps: int) -> float:
    after = option.seconds if math.isinf(options.stay) else view.seconds - _gain(option, options, view)
    return max(1, steps) * after + option.change


def _steps_since(view: View, devices: Iterable[Device]) -> int:
    """In the present layout, with one of these devices as slow as at present."""
    onset = min((view.since.get(device, view.step) for device in devices), default=view.step)
    return view.step - max([onset, *(change.step for change in view.changes)])


def _earlier(changes: Iterable[Change], devices: frozenset[Device], step: int) -> list[Change]:
    return [c for c in changes if c.devices & devices and step - c.step <= FORGET]


def _back_off(changes: Iterable[Change], devices: frozenset[Device], step: int) -> int:
    """2 to the number of changes so far for the sake of the one of these devices that had most."""
    earlier = _earlier(changes, devices, step)
    return 1 << max((sum(d in c.devices for c in earlier) for d in devices), default=0)


def _rested(view: View, devices: frozenset[Device], factor: int) -> bool:
    earlier = _earlier(view.changes, devices, view.step)
    return not earlier or view.step - max(c.step for c in earlier) >= DWELL * factor // 2


def _replacement(view: View, options: Options) -> ReplaceNode | None:
    """The node that costs most, where its part of the loss since its onset reaches the seconds of replacing it."""
    if view.action != "ReplaceNode" or view.replace is None:
        return None
    rows: dict[str, list[Device]] = defaultdict(list)
    for device in sorted(slow(view.speeds)):
        if device in view.nodes:
            rows[view.nodes[device]].append(device)
    lost = {node: sum(1 - view.speeds[d] for d in mine) for node, mine in rows.items()}
    if not lost:
        return None
    node = max(lost, key=lambda n: (lost[n], n))
    whole = sum(1 - view.speeds[d] for d in slow(view.speeds))  # also of devices that another node would not bring back
    return _of_node(view, options, node, rows[node], lost[node] / whole)


def _of_node(view: View, options: Options, node: str, devices: list[Device], share: float) -> ReplaceNode | None:
    assert view.replace is not None
    gain = share * view.seconds * (1 - options.healthy / options.stay)
    steps = view.step - min(view.since.get(d, view.step) for d in devices)
    replaced = [c for c in view.changes if c.kind == "ReplaceNode"]
    factor = _back_off(replaced, frozenset(devices), view.step)
    if gain < LEAST_GAIN * view.seconds or steps * gain < factor * view.replace:
        return None
    evidence = tuple((d, 1 / view.speeds[d] if view.speeds[d] else math.inf) for d in devices)
    return ReplaceNode(node, gain, view.replace, evidence)
