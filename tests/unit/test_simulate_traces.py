"""Traces of slow and lost devices: as they are written, read and drawn."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from contextlib import nullcontext
from itertools import pairwise
from statistics import mean, stdev

import pytest

from coxswain.errors import Refused
from coxswain.simulate.generate import KINDS, generate
from coxswain.simulate.traces import FALSE_POSITIVES, SLOWING, Event, place, read_trace


def test_a_trace_reads_back_as_it_was_written() -> None:
    drawn = generate("all", 8, 8, 86400.0, 3)
    assert read_trace(drawn.encode(), "trace") == drawn
    assert {e.kind for e in drawn.events} >= {"flapping", "ramp", "armed", "drift", "pauses", "long", "coordinator"}


ON = b'{"t": 1.5, "component": "n0/1", "kind": "sick"'
HEADER = b'{"nodes": 2, "devices": 4, "seconds": 60, "seed": 0}\n'


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b"", "no lines"),
        (b"{}", "line 1: Object missing required field `nodes`"),
        (b'{"nodes": 0, "devices": 4, "seconds": 60}', "nodes is 0; it must be above 0"),
        (b'{"nodes": 100001, "devices": 4, "seconds": 60}', "nodes is 100001; it must be above 0 and at most 100000"),
        (b'{"nodes": 12501, "devices": 8, "seconds": 60}', "12501 nodes of 8 devices have 100008; they may have 100000"),
        (b'{"nodes": 2, "devices": 4, "seconds": 1e300}', "seconds is 1e+300; it must be above 0 and at most 36000000"),
        (HEADER + b'{"t": 1, "component": "n0", "kind": "hot"}', "line 2: Invalid enum value 'hot'"),
        (HEADER + b'{"t": 1, "component": "x", "kind": "sick"}', "component is 'x'; use n3, n3/5, fleet or coordinator"),
        (HEADER + b'{"t": 1, "component": "n0", "kind": "sick"}', "sick befalls a device"),
        (HEADER + b'{"t": 1, "component": "n2/0", "kind": "sick"}', "the cluster has 2 nodes of 4 devices"),
        (HEADER + b'{"t": 1, "component": "n0/4", "kind": "sick"}', "the cluster has 2 nodes of 4 devices"),
        (HEADER + b'\n{"t": -1, "component": "n0/1", "kind": "sick"}', "line 3: t is -1"),
        (HEADER + b'{"t": 1, "component": "n0/1", "kind": "sick", "duration": 0}', "duration above 0 or null"),
        (HEADER + b'{"t": 1, "component": "n0/1", "kind": "sick", "magnitude": 0.5}', "magnitude is 0.5; of sick it must be 1"),
        (HEADER + b'{"t": 1, "component": "n0", "kind": "bandwidth", "magnitude": 2}', "of bandwidth it must be 0.01 to 1"),
        (HEADER + b'{"t": 60, "component": "n0/1", "kind": "sick"}', "line 2: t is 60; the trace ends at second 60"),
        (HEADER + b'{"t": 1, "component": "n0/1", "kind": "sick", "for": 2}', "line 2: Object contains unknown field `for`"),
        (HEADER + b'{"t": "soon", "component": "n0/1", "kind": "sick"}', "line 2: Expected `float`, got `str` - at `$.t`"),
        (HEADER + b'sick', "line 2: JSON is malformed"),
        (HEADER + b'{"t": 1, "component": "n0/1\xff", "kind": "sick"}', "utf-8"),
        (b'{"nodes": 2, "devices": 4, "seconds": 60, "seed": -1}', "line 1: seed is -1; it must be 0 to 2^63 - 1"),
        (HEADER + ON + b', "duration": 9}\n' + ON.replace(b"1.5", b"9.5") + b'}',
         "line 3: sick of n0/1 begins at t 9.5, and that of line 2 lasts until second 10.5; end the first one before"),
        (HEADER + ON.replace(b"1.5", b"9.5") + b'}\n\n' + ON + b'}',
         "line 2: sick of n0/1 begins at t 9.5, and that of line 4 lasts until the end"),
    ],
)  # fmt: skip
def test_a_bad_trace_is_refused_with_its_line_and_field(raw: bytes, words: str) -> None:
    with pytest.raises(Refused) as refused:
        read_trace(raw, "trace")
    assert words.casefold() in refused.value.message.casefold() and refused.value.reason == "BadTrace"


def test_events_of_one_kind_on_one_component_may_follow_each_other_and_other_kinds_may_overlap() -> None:
    lines = ON + b', "duration": 8}\n', ON.replace(b"1.5", b"9.5") + b"}\n", ON.replace(b"sick", b"thermal") + b"}\n"
    assert len(read_trace(HEADER + b"".join(lines), "trace").events) == 3


@pytest.mark.parametrize("kind", KINDS)
def test_a_drawn_trace_depends_on_its_seed_alone_and_can_be_read(kind: str) -> None:
    first, again, other = (generate(kind, 8, 8, 20 * 86400.0, seed) for seed in (0, 0, 1))
    assert first == again and read_trace(first.encode(), "trace") == first
    assert first.events and (first.events != other.events or kind == "quiet")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("nodes", "devices"), [(1, 1), (1, 2), (2, 1)])
def test_a_trace_of_a_very_small_cluster_can_be_drawn_and_read(nodes: int, devices: int, kind: str) -> None:
    """There may be no second device, or no second node, for what befalls two."""
    drawn = generate(kind, nodes, devices, 20 * 86400.0, 0)
    assert read_trace(drawn.encode(), "trace") == drawn
    seconds = {e.component for e in drawn.events if e.kind == "armed"}
    assert bool(seconds) == (kind in ("change", "all") and nodes * devices > 1)


def test_drawn_events_are_as_slow_as_the_page_says() -> None:
    most = {"contention": (1.05, 1.28), "thermal": (1.1, 1.3), "sick": (2.57, 12.53), "node": (2.57, 6.87),
            "bandwidth": (0.25, 0.5), "congestion": (0.2, 0.75), "drift": (1.01, 1.02), "pauses": (0.1, 0.5)}  # fmt: skip
    events = generate("all", 8, 8, 20 * 86400.0, 0).events
    for kind, (least, greatest) in most.items():
        drawn = [e.magnitude for e in events if e.kind == kind]
        assert drawn and least <= min(drawn) <= max(drawn) <= greatest, kind
    assert {e.duration for e in events if e.kind == "drift"} == {43200.0}


DAYS = 200  # of 64 nodes of 8 devices


@pytest.mark.parametrize(
    ("kind", "a_day", "minutes"),
    [
        ("contention", 2 * 0.01 * 64 * 18, 10.0),  # twice 1 % of nodes in 80 minutes
        ("thermal", 0.005 * 512 * 36, 40.0),  # 0.5 % of devices at a time
        ("sick", 8.0, 72.0),
        ("node", 8 / 3, 120.0),
        ("bandwidth", 8 / 7, 480.0),
        ("congestion", 32.0, 24.0),
        ("lost", 512 / 8 / 47.7, 120.0),
    ],
)
def test_drawn_events_are_as_frequent_and_as_long_as_the_page_says(kind: str, a_day: float, minutes: float) -> None:
    events = generate(kind, 64, 8, DAYS * 86400.0, 0).events
    assert len(events) == pytest.approx(a_day * DAYS, rel=0.25)
    assert sum(e.duration or 0.0 for e in events) / len(events) / 60 == pytest.approx(minutes, rel=0.25)


def test_each_fourth_loss_takes_a_node_and_two_at_once_are_on_two_nodes() -> None:
    lost = [place(e.component)[0] for e in generate("lost", 64, 8, DAYS * 86400.0, 0).events]
    assert lost.count("node") == pytest.approx(len(lost) / 4, rel=0.1)
    nodes = defaultdict[float, list[int]](list)
    for event in generate("two", 3, 8, DAYS * 86400.0, 0).events:
        nodes[event.t].append(place(event.component)[1])
    assert len(nodes) > 200 and all(len(set(pair)) == len(pair) for pair in nodes.values())
    assert sum(len(pair) == 2 for pair in nodes.values()) > 0.9 * len(nodes)


def test_the_false_positive_set_slows_no_device_down() -> None:
    assert {e.kind for e in generate("quiet", 8, 8, 86400.0, 0).events} == set(FALSE_POSITIVES)
    assert not set(FALSE_POSITIVES) & set(SLOWING)


def test_an_unknown_kind_of_trace_is_refused() -> None:
    with pytest.raises(Refused, match="--generate is 'hot'"):
        generate("hot", 8, 8, 60.0, 0)


@pytest.mark.parametrize("field", ["nodes", "devices"])
def test_the_largest_cluster_and_the_longest_trace_are_those_that_a_refusal_names(field: str) -> None:
    most = {"nodes": 1, "devices": 1, "seconds": 36_000_000, "seed": 2**63 - 1, field: 100_000}
    assert read_trace(json.dumps(most).encode(), "trace").seed == 2**63 - 1
    for name in (field, "seconds", "seed"):
        with pytest.raises(Refused, match=f"line 1: {name} is"):
            read_trace(json.dumps(most | {name: most[name] + 1}).encode(), "trace")
    with pytest.raises(Refused, match=f"{field} is 0; it must be above 0"):
        read_trace(json.dumps(most | {field: 0}).encode(), "trace")


@pytest.mark.parametrize(
    ("kind", "component", "low", "high"),
    [
        ("sick", "n0/1", 1.0, 1000.0),
        ("contention", "n0", 1.0, 1000.0),
        ("armed", "n0/1", 1.0, 1000.0),
        ("drift", "fleet", 1.0, 1000.0),
        ("coordinator", "coordinator", 1.0, 1000.0),
        ("bandwidth", "n0", 0.01, 1.0),
        ("congestion", "n0", 0.01, 1.0),
        ("pauses", "fleet", 0.0, 60.0),
    ],
)
def test_a_magnitude_is_allowed_up_to_its_bounds(kind: str, component: str, low: float, high: float) -> None:
    event = {"t": 0, "component": component, "kind": kind}
    for magnitude, allowed in ((low, True), (high, True), (low - 0.001, False), (high + 0.001, False)):
        raw = HEADER + json.dumps(event | {"magnitude": magnitude}).encode()
        with nullcontext() if allowed else pytest.raises(Refused, match=f"of {kind} it must be {low:g} to {high:g}"):
            read_trace(raw, "trace")


def test_an_event_may_begin_where_one_of_its_kind_ends_but_for_rounding_and_no_sooner() -> None:
    for begin, allowed in ((9.5, True), (9.5 - 1e-7, True), (9.5 - 1e-5, False)):
        raw = HEADER + ON + b', "duration": 8}\n' + ON.replace(b"1.5", repr(begin).encode()) + b"}"
        with nullcontext() if allowed else pytest.raises(Refused, match="line 3: sick of n0/1 begins"):
            read_trace(raw, "trace")


def test_events_are_read_by_time_whatever_the_order_of_their_lines() -> None:
    lines = [ON.replace(b"1.5", str(t).encode()) + b', "duration": 1}' for t in (30, 10, 20)]
    assert [e.t for e in read_trace(HEADER + b"\n".join(lines), "trace").events] == [10, 20, 30]


MINUTE, HOUR, DAY = 60.0, 3600.0, 86400.0


def drawn(kind: str, days: float = 20, devices: int = 8, seed: int = 0) -> dict[str, list[Event]]:
    """By component, in order of time."""
    found = defaultdict[str, list[Event]](list)
    for event in generate(kind, 8, devices, days * DAY, seed).events:
        found[event.component].append(event)
    return found


@pytest.mark.parametrize("kind", ["contention", "thermal", "bandwidth", "congestion", "ramp", "flapping"])
def test_what_befalls_a_cluster_is_the_same_whatever_else_is_drawn(kind: str) -> None:
    alone, among = generate(kind, 8, 8, 5 * DAY, 3), generate("all", 8, 8, 5 * DAY, 3)
    assert alone.events == tuple(e for e in among.events if e.kind == kind)


def test_a_nodes_contention_comes_in_two_bursts_that_begin_33_minutes_apart() -> None:
    begins = [e.t for e in generate("contention", 512, 8, 2 * DAY, 0).events]
    pairs = sum(any(abs(other - t - 33 * MINUTE) < 1e-3 for other in begins) for t in begins if t < 2 * DAY - HOUR)
    assert pairs == pytest.approx(len(begins) / 2, rel=0.1)


def test_the_fleet_drifts_in_the_middle_of_each_day_and_has_long_sequences_in_six_of_twelve_hours() -> None:
    fleet = drawn("quiet", 3)["fleet"]
    assert [(e.t, e.end) for e in fleet if e.kind == "drift"] == [
        ((d + 0.25) * DAY, (d + 0.75) * DAY) for d in range(3)
    ]
    assert [(e.t, e.end) for e in fleet if e.kind == "long"] == [(h * HOUR, (h + 6) * HOUR) for h in range(0, 72, 12)]
    assert [(e.t, e.end) for e in fleet if e.kind == "pauses"] == [(0.0, math.inf)]


def test_a_flapping_device_is_slow_and_well_by_turns_of_30_to_120_seconds_for_two_hours() -> None:
    (events,) = drawn("flapping", 0.25).values()
    assert 5 * MINUTE <= events[0].t <= 10 * MINUTE
    assert 2 * HOUR - 4 * MINUTE <= events[-1].t - events[0].t < 2 * HOUR
    assert len({e.magnitude for e in events}) == 1
    for one, other in pairwise(events):
        assert one.duration is not None and 30 <= one.duration <= 120 and 30 <= other.t - one.end <= 120


def test_a_ramp_is_one_percent_a_minute_up_to_twice_as_slow_for_an_hour() -> None:
    (events,) = drawn("ramp", 0.1).values()
    assert [round(e.magnitude, 2) for e in events] == [round(1 + n / 100, 2) for n in range(1, 101)]
    steps = [other.t - one.t for one, other in pairwise(events)]
    assert steps == pytest.approx([MINUTE] * 99) and [e.duration for e in events] == [MINUTE] * 99 + [HOUR]


def test_while_its_host_is_slow_the_coordinator_has_a_sick_device_to_plan_for() -> None:
    events = generate("coordinator", 8, 8, 10 * DAY, 0).events
    hosts = [e for e in events if e.kind == "coordinator"]
    assert len(hosts) >= 5 and {(e.component, e.magnitude, e.duration) for e in hosts} == {("coordinator", 10.0, HOUR)}
    assert {e.t + MINUTE for e in hosts} <= {e.t for e in events if e.kind == "sick"}


def test_the_second_device_of_a_change_is_another_one_and_is_armed_as_the_first_one_gets_sick() -> None:
    events = generate("change", 8, 8, 60 * DAY, 0).events
    first, second = ({e.t: e.component for e in events if e.kind == kind} for kind in ("sick", "armed"))
    assert len(first.keys() & second.keys()) > 100
    assert all(first[t] != second[t] for t in first.keys() & second.keys())
    assert len(set(first.values())) > 45 < len(set(second.values())), "any device may be one of them"


def test_an_event_that_would_begin_while_one_of_its_kind_lasts_on_its_component_is_left_out() -> None:
    """Also where another one was left out in between."""
    events = generate("congestion", 1, 512, 20 * DAY, 0).events
    gaps = [other.t - one.end for one, other in pairwise(events)]
    assert min(gaps) >= 0 and len(gaps) > 200


def test_what_would_begin_at_the_end_of_a_trace_is_none_of_it() -> None:
    ends_as_drift_begins = generate("quiet", 1, 1, DAY / 4, 0)
    assert {e.kind for e in ends_as_drift_begins.events} == {"pauses", "long"}
    assert read_trace(ends_as_drift_begins.encode(), "trace") == ends_as_drift_begins


def test_losses_come_at_any_time_after_one_another() -> None:
    """Poisson: the gaps spread as widely as they are long."""
    begins = [e.t for e in generate("lost", 64, 8, DAYS * DAY, 0).events]
    gaps = [other - one for one, other in pairwise(begins)]
    assert stdev(gaps) == pytest.approx(mean(gaps), rel=0.2)
