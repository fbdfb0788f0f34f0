"""Devices on standby: when they are probed, and when they are back."""

from __future__ import annotations

from coxswain.ladder.standby import EVERY, MOST_DWELL, Standby, Waiting, due
from coxswain.layout import Device
from tests.unit.ladder_views import SLOW


def test_a_standby_device_is_back_after_two_healthy_probes_then_four_at_most_sixty_four() -> None:
    for returns, needed in ((0, 2), (1, 4), (9, MOST_DWELL)):
        one = Waiting(since=0, speed=0.3, returns=returns)
        for number in range(needed):
            assert not one.back, number
            one = one.probed(1.05)
        assert one.back


def test_one_slow_probe_begins_the_dwell_again_and_gives_the_speed() -> None:
    one = Waiting(since=0, speed=0.3).probed(1.0).probed(2.0)
    assert (one.healthy, one.speed) == (0, 0.5)


def test_a_slow_device_waits_on_standby_until_it_is_well_and_longer_after_each_return() -> None:
    standby, took = Standby(), []
    for _ in range(3):
        standby.settle({SLOW: 0.5, Device(1, 1): 0.5}, (SLOW, Device(0, 0)), 7)
        assert list(standby.waiting) == [SLOW] and standby.waiting[SLOW].since == 7
        took.append(next(n for n in range(1, 99) if standby.probed(SLOW, 1.0)))
        assert not standby.waiting
    assert took == [2, 4, 8]


def test_a_device_keeps_what_its_probes_have_said_as_long_as_it_is_slow_and_on_standby() -> None:
    standby = Standby()
    standby.settle({SLOW: 0.5}, (SLOW,), 7)
    standby.probed(SLOW, 1.0)
    standby.settle({SLOW: 0.25}, (SLOW,), 9)
    assert standby.waiting == {SLOW: Waiting(7, 0.25, 1)}
    standby.settle({SLOW: 0.25}, (), 11)
    assert not standby.waiting


def test_the_devices_of_another_pod_have_never_been_back() -> None:
    standby, other = Standby(), Device(1, 1)
    both = {SLOW: 0.5, other: 0.5}
    standby.settle(both, tuple(both), 0)
    for device in (SLOW, SLOW, other, other):
        standby.probed(device, 1.0)
    standby.keep([other])
    standby.settle(both, tuple(both), 9)
    assert [standby.waiting[device].dwell for device in (SLOW, other)] == [2, 4]
    standby.keep([other])
    assert list(standby.waiting) == [other]


def test_standby_devices_are_probed_every_four_steps_each_in_its_own() -> None:
    waiting = {SLOW: Waiting(since=3, speed=0.3), Device(1, 1): Waiting(since=5, speed=0.3)}
    probed = {step: due(waiting, step) for step in range(5, 5 + 3 * EVERY)}
    assert [step for step, mine in probed.items() if SLOW in mine] == [6, 10, 14]
    assert all(len(mine) < 2 for mine in probed.values())
