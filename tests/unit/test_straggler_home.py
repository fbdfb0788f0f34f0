"""How a world differs from the one before it, as the ladder of stragglers sees it."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from coxswain.layout import Device, uniform_layout
from coxswain.planlog import Generation
from coxswain_coordinator.stragglers.home import Home, kept_devices, lost_devices, seated_devices
from tests.unit.coordinator_fakes import make_job

A, B, C, D = (Device(trainer, 0) for trainer in range(4))
PODS = ("a-0", "b-0", "c-0")


def record(works: list[Device], standby: tuple[Device, ...] = (), pods: tuple[str, ...] = PODS) -> Generation:
    layout = replace(uniform_layout(works, layers=2), standby=standby)
    return Generation(1, "me", 0, layout, pods, ())


def home(before: Generation, lost: frozenset[Device] = frozenset()) -> Home:
    return Home(before, 1, {}, lost)


@pytest.mark.parametrize(
    ("before", "now", "seated"),
    [((B,), (), {B}), ((B, C), (C,), {B}), ((B,), (B,), set()), ((), (B,), set())],
)
def test_a_device_is_seated_where_it_was_on_standby_and_is_no_longer(before, now, seated):
    assert seated_devices(home(record([A], before)), record([A], now)) == seated


def test_no_device_of_the_first_world_is_seated_or_kept():
    assert (seated_devices(None, record([A, B])), kept_devices(None, record([A, B]))) == (set(), set())


def test_a_device_is_kept_where_its_pod_stays_also_on_standby():
    before = home(record([A, B, C]))
    assert kept_devices(before, record([A], standby=(B,), pods=("a-0", "b-0", "c-1"))) == {A, B}
    assert kept_devices(before, record([A, B, C], pods=("a-0", "b-1", "c-0"))) == {A, C}


@pytest.mark.parametrize(
    ("before", "now", "lost"),
    [
        (None, [A, B], {C}),  # a new coordinator: what the job shall have
        (home(record([A, B])), [A, B], set()),  # it never had the third one
        (home(record([A, B, C])), [A], {B, C}),
        (home(record([A]), frozenset({B})), [A], {B}),
        (home(record([A]), frozenset({B})), [A, B], set()),
        (home(record([A, B, C, D])), [A, B, C], set()),  # it is not to have the fourth one any more
    ],
)
def test_a_device_is_lost_that_the_job_had_and_shall_have(tmp_path, before, now, lost):
    assert lost_devices(make_job(tmp_path, trainers=3), before, record(now)) == lost


def test_the_size_that_a_job_was_scaled_to_says_what_it_shall_have(tmp_path):
    before, now = home(record([A, B, C])), replace(record([A]), size=2)
    assert lost_devices(make_job(tmp_path, trainers=3), before, now) == {B}
