"""Members, files, notifications and the store of a coordinator, with made-up data."""

from __future__ import annotations

import asyncio
import pickle
import tracemalloc

import msgspec
import pytest
from msgspec.structs import replace

from coxswain.errors import Refused, Retryable
from coxswain.wire import Fault, LoaderAddress, Register, StopRequest
from coxswain_coordinator import termination
from coxswain_coordinator.state.event_log import EventLog
from coxswain_coordinator.state.jsonl import JsonlWriter
from coxswain_coordinator.state.notifier import Notifier, Topic
from coxswain_coordinator.state.registry import MemberRegistry, join
from coxswain_coordinator.store_executor import StoreExecutor
from tests.unit.coordinator_fakes import make_job
from tests.unit.coordinator_samples import agents, session


def test_processes_that_were_replaced_leave_nothing_in_the_registry():
    """A trainer whose pod is replaced again and again, or an agent that is expected again, for weeks."""
    registry, [agent], sizes = MemberRegistry(), agents(1), list[int]()
    for number in range(100, 300):
        registry.register(replace(agent, instance=f"instance {number}"))
        registry.expect_again("trainer")
        registry.register(replace(agent, instance=f"instance {number}"))
        sizes.append(len(pickle.dumps(registry)))
    assert sizes[-1] == sizes[100], "its counter has as many digits by then"
    assert registry.knows("instance 299") and not registry.knows("instance 298")


def test_after_a_loss_a_trainer_is_missing_until_it_registers_again():
    registry = MemberRegistry()
    for agent in agents(2):
        registry.register(agent)
    registry.expect_again("trainer")
    registry.register(agents(2)[1])
    assert registry.missing("trainer", 2) == ["trainer-0"]


def test_members_of_a_role_are_ordered_by_number_and_only_the_first_so_many_count():
    registry, [agent] = MemberRegistry(), agents(1)
    for name in ("trainer-10", "trainer-2", "trainer-3"):
        registry.register(replace(agent, name=name, instance=name))
    registry.register(replace(agent, role="constructor", name="trainer-0", instance="c"))
    assert [m.name for m in registry.of("trainer")] == ["trainer-2", "trainer-3", "trainer-10"]
    assert [m.name for m in registry.of("trainer", 3)] == ["trainer-2"]
    assert registry.missing("trainer", 3) == ["trainer-0", "trainer-1"]
    assert registry.instances(11) == {"trainer-10", "trainer-2", "trainer-3", "c"}
    assert registry.instances(3) == {"trainer-2", "c"}
    assert registry.instances(0) == set()


def test_a_process_is_known_until_its_role_is_expected_again():
    registry, [agent] = MemberRegistry(), agents(1)
    registry.register(agent)
    registry.register(replace(agent, role="loader", name="loader-0", instance="two", port=7))
    registry.expect_again("trainer")
    assert [registry.knows(instance) for instance in ("one", "two", "three")] == [False, True, False]
    assert registry.loader_addresses() == (LoaderAddress("loader-0", "h", 7, "two"),)
    registry.register(agent)
    assert registry.knows("one")


def test_more_than_four_names_are_counted():
    assert (join("abcd"), join("abcdef"), join([])) == ("a, b, c, d", "a, b, c, d and 2 more", "")


def test_another_instance_of_a_name_replaces_the_one_before():
    registry, [agent] = MemberRegistry(), agents(1)
    assert [registry.register(a) for a in (agent, agent, replace(agent, instance="two"))] == ["new", "same", "replaced"]


def test_a_name_without_a_number_is_refused():
    with pytest.raises(Refused, match="'trainer': expected ROLE-NUMBER"):
        MemberRegistry().register(replace(agents(1)[0], name="trainer"))


@pytest.mark.parametrize("torn", [b"", b'{"st', b'{"st' * 700_000])
@pytest.mark.parametrize("whole", [b"", b'{"step":0}\n'])
def test_half_a_line_of_a_killed_writer_is_dropped(tmp_path, whole, torn):
    (tmp_path / "steps.jsonl").write_bytes(whole + torn)
    JsonlWriter(tmp_path, "steps.jsonl").append({"step": 1})
    assert (tmp_path / "steps.jsonl").read_bytes() == whole + b'{"step":1}\n'


def test_a_restart_beside_a_large_file_does_not_take_it_into_memory(tmp_path):
    (tmp_path / "timings.jsonl").write_bytes((b"x" * 8191 + b"\n") * 2048 + b"torn")
    tracemalloc.start()
    try:
        JsonlWriter(tmp_path, "timings.jsonl")
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()
    assert (tmp_path / "timings.jsonl").stat().st_size == 16 << 20


def test_a_limited_file_keeps_the_newest_lines_whole_and_stays_within_its_limit(tmp_path):
    writer, path = JsonlWriter(tmp_path, "timings.jsonl", most=1000), tmp_path / "timings.jsonl"
    for step in range(500):
        writer.append({"step": step, "filler": "x" * (step % 50)})
        found = [msgspec.json.decode(line)["step"] for line in path.read_bytes().splitlines()]
        assert found == list(range(step + 1 - len(found), step + 1))
        assert path.stat().st_size <= 1000
    assert path.stat().st_size > 300
    assert [p.name for p in tmp_path.iterdir()] == ["timings.jsonl"]


def test_event_numbers_go_on_growing_after_a_restart():
    """Also where there were several a second."""
    before, after = EventLog(lambda: 1000.0), EventLog(lambda: 1001.0)
    for book in (before, after):
        for _ in range(64):
            book.add("Resumed", "x")
    assert before.latest()[-1].sequence < after.latest()[0].sequence


def test_events_are_numbered_one_by_one_from_the_milliseconds_of_the_start_and_the_latest_are_kept():
    now = [1000.0]
    book = EventLog(lambda: now[0])
    for minute in range(99):
        now[0] = 1000.0 + 60 * minute
        book.add("Resumed", str(minute))
    found = book.latest()
    assert [(e.sequence - 1_000_000, e.message, e.time) for e in found] == [
        (n, str(n), 1000.0 + 60 * n) for n in range(99 - len(found), 99)
    ]
    assert 32 <= len(found) < 99


def test_an_event_is_a_warning_where_its_caller_says_so():
    book = EventLog(lambda: 0.0)
    book.add("Resumed", "x")
    book.add("PlanLate", "x", True)
    assert [e.warning for e in book.latest()] == [False, True]


def test_a_retryable_fault_exits_with_one_and_another_with_two():
    assert termination.failed(Fault("WorkerCrashLoop", "m", retryable=True)).exit_code == 1
    assert termination.failed(Fault("SourceEmpty", "m")).exit_code == 2


def test_a_stop_at_a_later_step_does_not_end_a_job_without_a_world(tmp_path):
    assert termination.stopped_idle(StopRequest("x", at_step=5), None, None) is None
    assert termination.stopped_idle(StopRequest("x"), session(make_job(tmp_path)), None) is None


@pytest.mark.looptime
async def test_a_notification_wakes_a_waiter_and_a_wait_ends_at_its_deadline(looptime):
    notifier, facts = Notifier(), []
    asyncio.get_running_loop().call_later(5, lambda: (facts.append("yes"), notifier.notify()))
    assert await notifier.wait_until(lambda: facts[0] if facts else None, 10) == "yes"
    assert looptime == 5
    assert await notifier.wait_until(lambda: None, 10) is None
    assert looptime == 15


async def test_work_on_a_store_that_answers_in_time_succeeds():
    answers = [Retryable("away"), Retryable("away"), None]
    executor = StoreExecutor()

    def work() -> str:
        if (answer := answers.pop(0)) is not None:
            raise answer
        return "done"

    assert await executor(work) == "done"
    assert executor.last_error == ""


async def test_a_store_that_stays_unavailable_is_named_in_the_error():
    executor = StoreExecutor(patience=0.3)

    def work() -> None:
        raise Retryable("s3://runs/demo: connection refused")

    with pytest.raises(Retryable, match="connection refused"):
        await executor(work)
    assert executor.last_error == "s3://runs/demo: connection refused"


async def test_only_a_store_that_is_away_is_asked_again():
    calls = []

    def work() -> None:
        calls.append(1)
        raise Refused("IndexCorrupt", "an object is torn")

    with pytest.raises(Refused, match="an object is torn"):
        await StoreExecutor()(work)
    assert len(calls) == 1


async def test_what_the_store_itself_retries_is_its_error_until_it_answers():
    executor, said = StoreExecutor(), ["s3://runs/demo: slow down"]
    executor.watch(lambda: said[0])
    assert executor.last_error == "s3://runs/demo: slow down"
    said[0] = ""
    assert executor.last_error == ""


async def test_a_change_wakes_the_waiters_of_its_topic_and_the_driver_and_no_others():
    notifier, looks = Notifier(), dict.fromkeys(Topic, 0)

    def look(topic: Topic) -> None:
        looks[topic] += 1

    waits = [asyncio.ensure_future(notifier.wait_until(lambda t=topic: look(t), 10, topic)) for topic in Topic]
    await asyncio.sleep(0)
    for topics, woken in (((Topic.ANY,), {Topic.ANY}), ((Topic.PLANS,), {Topic.ANY, Topic.PLANS}), ((), set(Topic))):
        before, count = dict(looks), notifier.count
        notifier.notify(*topics)
        assert notifier.count == count + 1, "by which the driver sees a change that comes while it works"
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert {topic for topic in Topic if looks[topic] > before[topic]} == woken
    for wait in waits:
        wait.cancel()
    await asyncio.gather(*waits, return_exceptions=True)


def test_a_member_of_one_role_does_not_know_the_instances_of_another_that_must_register_again():
    registry = MemberRegistry()
    registry.register(Register("trainer", "trainer-0", "p", "a", "h", 0, 1))
    registry.register(Register("constructor", "trainer-0", "p", "b", "h", 0))
    registry.expect_again("trainer")
    assert (registry.knows("a"), registry.knows("b"), registry.has_all("trainer", 1)) == (False, True, False)
    registry.register(Register("trainer", "trainer-0", "p", "c", "h", 0, 1))
    assert (registry.knows("a"), registry.knows("c"), registry.has_all("trainer", 1)) == (False, True, True)
    assert not registry.has_all("trainer", 2)
