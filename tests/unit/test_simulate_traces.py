"""Traces of slow and lost devices: as they are written, read and drawn."""

from __future__ import annotations

from collections import defaultdict

import pytest

from coxswain.errors import Refused
from coxswain.simulate.generate import KINDS, generate
from coxswain.simulate.traces import FALSE_POSITIVES, SLOWING, place, read_trace


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
        (HEADER + b'{"t": 1, "component": "n0/1\xff", "kind": "sick"}', "line 2: 'utf-8' codec can't decode byte 0xff"),
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
    assert words in refused.value.message and refused.value.reason == "BadTrace"


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


def test_the_false_positive_set_slows_no_device_down() -> None:
    assert {e.kind for e in generate("quiet", 8, 8, 86400.0, 0).events} == set(FALSE_POSITIVES)
    assert not set(FALSE_POSITIVES) & set(SLOWING)


def test_an_unknown_kind_of_trace_is_refused() -> None:
    with pytest.raises(Refused, match="--generate is 'hot'"):
        generate("hot", 8, 8, 60.0, 0)
