"""What an older world, a killed process or a damaged store cannot do to a coordinator."""

from __future__ import annotations

import asyncio
import io
import threading

import numpy as np
import pytest

from coxswain import wire
from coxswain.errors import Refused, Retryable, Stale
from coxswain.index import BlockIndex, encode, object_key
from coxswain.layout import Device, uniform_layout
from coxswain.planlog import generation_key
from coxswain_coordinator.index.store import IndexStore
from coxswain_coordinator.planning.plan_log import PlanLog
from coxswain_coordinator.state.job_state import JobState
from coxswain_coordinator.store_executor import StoreExecutor
from coxswain_link.metrics import build
from tests.unit.coordinator_fakes import SAMPLES, block_of, make_job, store_of
from tests.unit.coordinator_lead import leading, small
from tests.unit.test_coordinator_checkpoints import manifest, store_with


def test_a_replaced_trainer_counts_as_registered_and_the_others_must_register_again(tmp_path):
    run = JobState(make_job(tmp_path), build("coordinator"), None, lambda: 0.0)
    for i in range(2):
        run.register(trainer(i, "old"))
    run.session = AnySession()
    run.register(trainer(1, "new"))
    assert run.session.lost
    assert run.registry.missing("trainer", 2) == ["trainer-0"]


def trainer(index: int, instance: str, config: str = "", pod: str = "pod") -> wire.Register:
    return wire.Register("trainer", f"trainer-{index}", pod, instance, "127.0.0.1", 0, 1, config=config)


def test_a_replaced_pod_whose_node_the_cluster_has_lost_is_refused_and_does_not_end_the_world_of_its_successor(
    tmp_path,
):
    """Its agent still registers before each poll: the two would end each other's worlds in turn."""
    run = JobState(make_job(tmp_path), build("coordinator"), None, lambda: 0.0)
    run.register(trainer(1, "two", pod="demo-trainer-1-10"))
    run.session = AnySession()
    with pytest.raises(Stale, match="pod demo-trainer-1-9 was replaced by demo-trainer-1-10, which has registered"):
        run.register(trainer(1, "one", pod="demo-trainer-1-9"))
    assert (run.session.lost, run.registry.knows("two")) == ("", True)


@pytest.mark.parametrize("pod", ["demo-trainer-1-9", "demo-trainer-1-10", "demo-trainer-1-x", "another-trainer-1-8"])
def test_a_pod_that_is_not_known_to_be_an_earlier_one_replaces_the_member(tmp_path, pod):
    run = JobState(make_job(tmp_path), build("coordinator"), None, lambda: 0.0)
    run.register(trainer(1, "one", pod="demo-trainer-1-9"))
    run.register(trainer(1, "two", pod=pod))
    assert (run.registry.knows("one"), run.registry.knows("two")) == (False, True)


@pytest.mark.parametrize(
    ("own", "theirs"), [("demo-config-1", "demo-config-1"), ("", "demo-config-1"), ("demo-config-1", "")]
)
def test_a_member_of_the_same_configuration_or_of_a_release_that_does_not_say_it_registers(tmp_path, own, theirs):
    run = JobState(make_job(tmp_path), build("coordinator"), None, lambda: 0.0)
    run.config = own
    run.register(trainer(0, "one", theirs))
    assert run.registry.missing("trainer", 1) == []


def test_a_pod_that_has_read_another_configuration_is_refused_by_name_and_replaces_no_member(tmp_path):
    run = JobState(make_job(tmp_path), build("coordinator"), None, lambda: 0.0)
    run.config = "demo-config-2"
    run.register(trainer(0, "one", "demo-config-2"))
    with pytest.raises(Stale, match="pod pod has read ConfigMap demo-config-1, and this attempt has demo-config-2"):
        run.register(trainer(0, "two", "demo-config-1"))
    assert run.registry.knows("one")


class AnySession:
    """A world that is not lost."""

    lost, saved_end, hung, planned = "", False, False, False
    world = wire.World(1, 0, uniform_layout([Device(t, 0) for t in range(2)], 1), (), ("trainer-0", "trainer-1"), ())

    class record:
        generation = 1

    def works(self, trainer: str) -> bool:
        return trainer in self.world.trainers


def test_a_file_whose_name_is_no_generation_is_ignored_by_the_plan_log(tmp_path):
    store = store_of(make_job(tmp_path))
    store.put(generation_key(3), b"x")
    store.put("log/generations/notes.txt", b"x")
    assert PlanLog(store).last_generation() == 3


def npz(**arrays: np.ndarray) -> bytes:
    out = io.BytesIO()
    np.savez(out, **arrays)
    return out.getvalue()


ONE, MORE = np.arange(1), np.arange(SAMPLES + 1)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"PK torn",
        npz(at=ONE),
        npz(at=ONE, lengths=np.array([{}] * 20), rejected=ONE),  # pickled
        encode(BlockIndex(ONE, ONE, ONE)),
        encode(BlockIndex(MORE, MORE, ONE)),
    ],
)
def test_a_damaged_index_object_is_refused_by_its_name(tmp_path, content):
    store, block = store_of(make_job(tmp_path)), block_of("code", 0)
    store.put(object_key(block.key), content)
    with pytest.raises(
        Refused, match=f"{object_key(block.key)} .*; delete the object to have it indexed again"
    ) as caught:
        IndexStore(store).lengths(block)
    assert caught.value.reason == "IndexCorrupt"


async def test_blocking_work_that_does_not_end_is_abandoned_at_the_deadline():
    release = threading.Event()
    try:
        with pytest.raises(Retryable, match=r"did not end within 0\.1 s"):
            await StoreExecutor(deadline=0.1)(release.wait)
    finally:
        release.set()


@pytest.mark.looptime
async def test_a_job_whose_sources_have_changed_since_its_checkpoint_ends_before_its_first_world(tmp_path):
    job = small(tmp_path)
    store_with(job, manifest(job, 3))  # over an index of other objects
    async with leading(job) as lead:
        lead.index()
        lead.arrive()
        assert (await asyncio.wait_for(lead.work, 60)).reason == "SourceChanged"
        assert lead.keys("log/generations/") == []
