"""All pods of an attempt are made of one configuration: an edit waits for the next attempt, and the job says so."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from coxswain_operator.children import CONTENT
from coxswain_operator.controller import Controller
from coxswain_operator.settings import Settings
from coxswain_operator.views import Manifest
from tests.unit.fake_cluster import (
    NAMESPACE,
    FakeCluster,
    data_mix,
    data_source,
    manifest,
    report,
    report_text,
    training_job,
)
from tests.unit.test_reconcile_lifecycle import RESTART_JOB

SETTINGS = Settings()
MEMBERS = ("coordinator", "loader-0", "trainer-0", "trainer-1")
POLICY = {"hybridData": {"tokensPerReplica": 1024, "maxDegree": 4}}
TOO_SMALL = {"hybridData": {"tokensPerReplica": 8, "maxDegree": 1}}


async def passes(world: FakeCluster, settings: Settings = SETTINGS, count: int = 4) -> None:
    for _ in range(count):
        await Controller(world, world, world.clock, settings).pass_once(NAMESPACE, "demo")
        world.tick()
        world.reap()


async def running(**spec: Any) -> FakeCluster:
    """A job that trains under a policy and a mix of their own."""
    spec = {"parallelism": None, "parallelismRef": {"name": "wide"}, "failurePolicy": {"rules": [RESTART_JOB]}, **spec}
    job = training_job(**spec)
    job["spec"] = {k: v for k, v in job["spec"].items() if v is not None}
    world = FakeCluster(data_source(), data_mix(), manifest("ParallelismPolicy", "wide", POLICY), job)
    await train(world)
    return world


async def train(world: FakeCluster, settings: Settings = SETTINGS) -> None:
    await passes(world, settings)
    world.run_all()
    world.report_now = report("Running", 10)
    await passes(world, settings)


def mounted(world: FakeCluster, pod: Manifest) -> Manifest:
    """The job.json that a pod reads when it starts now."""
    (name,) = [v["configMap"]["name"] for v in pod["spec"]["volumes"] if v["name"] == "job"]
    found: Manifest = json.loads(world.objects["ConfigMap", name]["data"]["job.json"])
    return found


def config_map(world: FakeCluster) -> str:
    return f"demo-config-{world.job['status']['pinned']['hash']}"


def record(world: FakeCluster) -> str:
    return f"demo-attempt-{world.job['status']['pinned']['hash']}"


def images(pod: Manifest) -> dict[str, str]:
    return {c["name"]: c["image"] for c in (*pod["spec"].get("initContainers", ()), *pod["spec"]["containers"])}


async def replaced(world: FakeCluster, member: str, settings: Settings = SETTINGS) -> Manifest:
    """The pod that follows after the member's pod has vanished."""
    world.vanish(world.pod(member))
    await passes(world, settings)
    found = world.pod(member)
    assert found is not None, world.condition("Validated")
    return found


async def restart_all(world: FakeCluster, settings: Settings = SETTINGS) -> None:
    """A rule of the job begins the next attempt."""
    attempt = world.job["status"]["attempt"]
    world.end(world.pod("trainer-0"), 7)
    world.report_now = None
    await passes(world, settings)
    assert world.job["status"]["attempt"] == attempt + 1


def edit_policy(world: FakeCluster) -> None:
    world.edit("ParallelismPolicy", "wide", hybridData={"tokensPerReplica": 2048, "maxDegree": 2})


EDITS: dict[str, tuple[Callable[[FakeCluster], None], str]] = {
    "policy": (edit_policy, "ParallelismPolicy wide: hybridData.maxDegree 4 -> 2, hybridData.tokensPerReplica 1024 -> 2048"),
    "stop": (lambda w: w.edit("TrainingJob", "demo", stop={"steps": 200}), "TrainingJob demo: stop.steps 100 -> 200"),
    "source": (lambda w: w.edit("DataSource", "code", maxRejected=5), "DataSource code: maxRejected 0 -> 5"),
    "optimizer": (  # in one update with a suspension that no pass has seen
        lambda w: w.edit("TrainingJob", "demo", optimizer={"learningRate": "1e-4"}),
        "TrainingJob demo: optimizer.learningRate 3e-4 -> 1e-4",
    ),
    "another stream": (  # by deleting the mix and creating it again
        lambda w: w.edit("DataMix", "mix", seed=8), "DataMix mix: seed 7 -> 8",
    ),
}  # fmt: skip


@pytest.mark.parametrize("edit", EDITS)
@pytest.mark.parametrize("member", MEMBERS)
async def test_a_replaced_pod_reads_what_its_peers_have_read_whatever_was_edited(edit: str, member: str) -> None:
    world = await running()
    before = mounted(world, world.pod(member))
    EDITS[edit][0](world)
    assert mounted(world, await replaced(world, member)) == before
    assert world.job["status"]["attempt"] == 0


@pytest.mark.parametrize("edit", [edit for edit in EDITS if edit != "another stream"])
async def test_an_edit_that_waits_is_said_with_object_and_field_until_the_next_attempt_reads_it(edit: str) -> None:
    world = await running()
    before = mounted(world, world.pod("coordinator"))
    change, words = EDITS[edit]
    change(world)
    await passes(world)
    validated = world.condition("Validated")
    assert (validated["status"], validated["reason"]) == ("True", "EditPending")
    assert words in validated["message"]
    assert [e.message for e in world.events if e.reason == "EditPending"] == [validated["message"]]
    await restart_all(world)
    assert mounted(world, world.pod("coordinator")) != before
    assert world.condition("Validated")["reason"] == "Resolved"


async def test_an_edit_that_is_taken_back_is_not_pending_any_more() -> None:
    world = await running()
    edit_policy(world)
    await passes(world)
    world.edit("ParallelismPolicy", "wide", **POLICY)
    await passes(world)
    assert world.condition("Validated")["reason"] == "Resolved"


@pytest.mark.parametrize("member", MEMBERS)
async def test_a_pod_that_is_replaced_after_an_upgrade_of_the_operator_has_its_peers_images(member: str) -> None:
    world = await running()
    before, upgraded = images(world.pod(member)), Settings(data_image="data:2", train_image="train:2")
    assert images(await replaced(world, member, upgraded)) == before
    said = world.condition("Validated")["message"]
    assert "the operator's image of trainers coxswain-train -> train:2" in said
    world.run_all()
    await restart_all(world, upgraded)
    assert images(world.pod("trainer-0")) == {"constructor": "data:2", "trainer": "train:2"}
    assert world.job["status"]["pinned"]["images"] == {"trainers": "train:2", "data": "data:2"}


async def test_a_template_and_an_image_that_change_in_the_update_that_takes_a_suspension_back_wait_too() -> None:
    world = await running(image="train:1")
    spec = world.job["spec"]
    template = {"spec": {"nodeSelector": {"gpu": "b"}}}
    world.edit("TrainingJob", "demo", image="train:2", trainers={**spec["trainers"], "template": template})
    pod = await replaced(world, "trainer-1")
    assert (images(pod)["trainer"], pod["spec"].get("nodeSelector")) == ("train:1", None)
    words = "TrainingJob demo: image train:1 -> train:2, trainers.template changed"
    assert words in world.condition("Validated")["message"]


@pytest.mark.parametrize("member", MEMBERS)
async def test_with_a_policy_that_does_not_fit_any_more_a_lost_pod_is_replaced_with_the_attempts_own(
    member: str,
) -> None:
    world = await running()
    before = mounted(world, world.pod(member))
    world.edit("ParallelismPolicy", "wide", **TOO_SMALL)
    assert mounted(world, await replaced(world, member)) == before
    assert (world.condition("Validated")["status"], world.condition("Validated")["reason"]) == (
        "False",
        "CapacityTooSmall",
    )


async def test_the_next_attempt_of_a_policy_that_does_not_fit_is_refused_in_words_and_restoring_it_goes_on() -> None:
    world = await running()
    world.edit("ParallelismPolicy", "wide", **TOO_SMALL)
    await restart_all(world)
    await passes(world, count=8)
    assert (world.pods(), world.state) == ([], "Queued")
    assert "a sequence of 1024 tokens does not fit" in world.condition("Succeeded")["message"]
    checkpoint = world.job["status"]["lastCheckpoint"]
    world.edit("ParallelismPolicy", "wide", **POLICY)
    await train(world)
    assert (world.state, world.job["status"]["lastCheckpoint"]) == ("Running", checkpoint)


async def test_an_attempt_of_another_stream_is_refused_in_words_and_restoring_the_mix_goes_on() -> None:
    world = await running()
    world.edit("DataMix", "mix", seed=8)
    await restart_all(world)
    await passes(world, count=8)
    assert (world.pods(), world.state) == ([], "Queued")
    said = "StreamChanged: DataMix mix, or a DataSource that it names, gives another stream than the checkpoint before step 10"
    assert said in world.condition("Succeeded")["message"]
    world.edit("DataMix", "mix", seed=7)
    await train(world)
    assert world.state == "Running"


async def test_before_the_first_checkpoint_a_job_may_get_another_stream() -> None:
    world = await running()
    del world.job["status"]["lastCheckpoint"]
    world.report_now = report("Starting", 0, checkpoint_step=-1)
    world.edit("DataMix", "mix", seed=8)
    await restart_all(world)
    assert mounted(world, world.pod("coordinator"))["mix"]["seed"] == 8


async def test_weights_and_phases_reach_the_running_coordinator_and_nothing_else_does() -> None:
    world = await running()
    coordinator = world.pod("coordinator")
    before = mounted(world, coordinator)
    edit_policy(world)
    world.edit("DataMix", "mix", sources=[{"name": "code", "sourceRef": {"name": "code"}, "weight": 7, "maxPasses": 2}])
    await passes(world)
    now = mounted(world, coordinator)
    assert [(s["weight"], s["max_passes"]) for s in now["mix"]["sources"]] == [(7, 2)]
    assert {k: v for k, v in now.items() if k != "mix"} == {k: v for k, v in before.items() if k != "mix"}


async def test_a_resumed_job_reads_the_spec_as_it_is_now() -> None:
    world = await running()
    world.edit("TrainingJob", "demo", suspend=True)
    await passes(world)
    for pod in world.pods():
        world.end(pod, 3, report_text("Suspended", step=20))
    world.report_now = None
    await passes(world, count=8)
    assert world.state == "Suspended"
    edit_policy(world)
    world.edit("TrainingJob", "demo", suspend=False)
    await train(world)
    assert mounted(world, world.pod("trainer-0"))["parallelism"]["max_degree"] == 2
    assert {name for kind, name in world.objects if kind == "ConfigMap"} == {config_map(world), record(world)}


async def test_pods_that_are_all_lost_at_once_are_replaced_by_what_the_spec_says_now() -> None:
    world = await running()
    edit_policy(world)
    for member in MEMBERS:
        world.vanish(world.pod(member))
    await passes(world)
    assert {mounted(world, p)["parallelism"]["max_degree"] for p in world.pods()} == {2}
    assert len(world.pods()) == 4


async def test_the_config_map_stays_while_a_pod_of_the_earlier_attempt_is_there() -> None:
    world = await running()
    edit_policy(world)
    old = config_map(world)
    world.end(world.pod("trainer-0"), 7)
    world.reap = lambda: None  # type: ignore[method-assign]  # a pod takes its grace period
    await passes(world)
    assert ("ConfigMap", old) in world.objects and config_map(world) != old
    for pod in world.pods():
        if "deletionTimestamp" in pod["metadata"]:
            world.vanish(pod)
    await passes(world)
    assert ("ConfigMap", old) not in world.objects


async def test_a_mix_that_was_edited_and_then_deleted_stays_as_it_was_last() -> None:
    world = await running()
    world.edit("DataMix", "mix", sources=[{"name": "code", "sourceRef": {"name": "code"}, "weight": 7}])
    await passes(world)
    before = mounted(world, world.pod("coordinator"))
    del world.objects["DataMix", "mix"]
    assert mounted(world, await replaced(world, "coordinator")) == before
    assert before["mix"]["sources"][0]["weight"] == 7


async def test_config_maps_that_were_deleted_come_back_as_they_were() -> None:
    world = await running()
    before = {name: world.objects.pop(("ConfigMap", name))["data"] for name in (config_map(world), record(world))}
    await passes(world)
    assert {name: world.objects["ConfigMap", name]["data"] for name in before} == before


async def test_without_its_record_an_edited_job_replaces_no_pod_and_says_what_was_edited() -> None:
    world = await running()
    edit_policy(world)
    del world.objects["ConfigMap", record(world)]
    world.vanish(world.pod("trainer-1"))
    await passes(world)
    assert (world.pod("trainer-1"), world.state) == (None, "Running")
    assert world.condition("Validated")["reason"] == "ConfigurationLost"
    trains = world.condition("Progressing")
    assert (trains["status"], trains["reason"]) == ("True", "Training")
    assert trains["message"].startswith("the pods go on, and none is replaced until this is mended: ")
    world.edit("ParallelismPolicy", "wide", **POLICY)
    await passes(world)
    assert world.pod("trainer-1") is not None and world.condition("Validated")["reason"] == "Resolved"


async def test_a_pod_that_is_replaced_after_a_restart_has_the_template_that_its_peers_got_with_the_restart() -> None:
    """A template is no part of job.json: the record of the start before must not be taken for this one's."""
    world = await running()
    edited = {"count": 2, "template": {"metadata": {"labels": {"team": "a"}}}}
    world.edit("TrainingJob", "demo", trainers=edited)
    await restart_all(world)
    world.run_all()
    peer, successor = world.pod("trainer-0") or {}, await replaced(world, "trainer-1")
    assert peer["metadata"]["labels"]["team"] == successor["metadata"]["labels"]["team"] == "a"


async def test_without_its_record_a_job_replaces_no_pod_by_one_of_an_image_that_the_settings_name_since() -> None:
    world = await running()
    before = images(world.pod("trainer-0") or {})
    del world.objects["ConfigMap", record(world)]
    world.vanish(world.pod("trainer-1"))
    await passes(world, Settings(train_image="train:next", data_image="data:next"))
    assert world.pod("trainer-1") is None and world.condition("Validated")["reason"] == "ConfigurationLost"
    await passes(world)
    assert images(world.pod("trainer-1") or {}) == before


# --- a job of a release without pins ---------------------------------------------------------------------------------


async def of_an_earlier_release() -> FakeCluster:
    """Its pods mount NAME-config, its status has no pin, and it runs images that the operator's settings do not name."""
    world = await running()
    old = world.objects.pop(("ConfigMap", config_map(world)))
    del world.objects["ConfigMap", record(world)]
    old["metadata"]["name"], old["data"] = "demo-config", {"job.json": old["data"]["job.json"]}
    world.objects["ConfigMap", "demo-config"] = old
    del world.job["status"]["pinned"]
    for pod in world.pods():
        pod["spec"]["volumes"][0]["configMap"]["name"] = "demo-config"
        for container in (*pod["spec"].get("initContainers", ()), *pod["spec"]["containers"]):
            container["image"] += ":0.1"
    return world


@pytest.mark.parametrize("member", MEMBERS)
async def test_a_job_that_an_earlier_release_started_keeps_its_configuration_and_its_images(member: str) -> None:
    world = await of_an_earlier_release()
    before, pod = mounted(world, world.pod(member)), world.pod(member)
    edit_policy(world)
    new = await replaced(world, member)
    assert (mounted(world, new), images(new)) == (before, images(pod))
    assert world.deleted == []


async def test_a_job_of_an_earlier_release_goes_on_when_its_mix_is_gone() -> None:
    world = await of_an_earlier_release()
    before = mounted(world, world.pod("trainer-1"))
    del world.objects["DataMix", "mix"]
    assert mounted(world, await replaced(world, "trainer-1")) == before
    assert world.deleted == []


async def test_an_edit_of_a_job_of_an_earlier_release_takes_effect_with_its_next_attempt() -> None:
    world = await of_an_earlier_release()
    edit_policy(world)
    await passes(world)
    await restart_all(world)
    assert mounted(world, world.pod("trainer-0"))["parallelism"]["max_degree"] == 2
    assert images(world.pod("trainer-0")) == {"constructor": "coxswain-data", "trainer": "coxswain-train"}


# --- a job of another release ----------------------------------------------------------------------------------------


def rewrite(world: FakeCluster, change: Callable[[Manifest], None]) -> str:
    """Its attempt's record and its configuration as another release wrote them; returns the job.json."""
    for name in (record(world), config_map(world)):
        found = world.objects["ConfigMap", name]
        job = json.loads(found["data"]["job.json"])
        change(job)
        found["data"] = {**found["data"], "job.json": json.dumps(job)}
        found["metadata"]["annotations"] = {CONTENT: "of another release"}
    return str(world.objects["ConfigMap", config_map(world)]["data"]["job.json"])


def add_fields(job: Manifest) -> None:
    """What a newer release knows, and this one does not."""
    job["optimizer"]["lookahead"], job["mix"]["sources"][0]["cleaning"] = 5, {"level": 2}


async def of_a_newer_release() -> tuple[FakeCluster, str]:
    world = await running()
    return world, rewrite(world, add_fields)


@pytest.mark.parametrize("member", MEMBERS)
async def test_a_pod_that_is_replaced_after_a_rollback_reads_the_fields_that_only_the_newer_release_knows(
    member: str,
) -> None:
    world, before = await of_a_newer_release()
    new = await replaced(world, member)
    assert (mounted(world, new), world.deleted) == (json.loads(before), [])


async def test_weights_that_are_edited_after_a_rollback_reach_the_job_beside_the_newer_releases_fields() -> None:
    world, before = await of_a_newer_release()
    (source,) = world.objects["DataMix", "mix"]["spec"]["sources"]
    world.edit("DataMix", "mix", sources=[{**source, "weight": 7}])
    await passes(world)
    after = json.loads(before)
    after["mix"]["sources"][0]["weight"] = 7
    assert mounted(world, world.pod("trainer-0")) == after


async def test_a_config_map_of_a_newer_release_that_was_deleted_comes_back_with_its_fields() -> None:
    world, before = await of_a_newer_release()
    del world.objects["ConfigMap", config_map(world)]
    await passes(world)
    assert mounted(world, world.pod("trainer-0")) == json.loads(before)


async def test_an_upgrade_that_adds_a_field_to_the_configuration_replaces_no_config_map() -> None:
    world = await running()
    before = rewrite(world, lambda job: job.pop("first_step_timeout_seconds"))
    await passes(world)
    assert (mounted(world, world.pod("trainer-0")), world.deleted) == (json.loads(before), [])


# --- stop ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "after"), [({"steps": 100}, {"steps": 200}), ({"tokens": 409600}, {"tokens": 819200})]
)
async def test_a_job_whose_stop_was_raised_goes_on_in_another_attempt(before: Manifest, after: Manifest) -> None:
    world = await running(stop=before)
    world.edit("TrainingJob", "demo", stop=after)
    await passes(world)
    for pod in world.pods():
        world.end(pod, 0, report_text("Completed", step=100, reason="StopReached"))
    world.report_now = None
    await train(world)
    assert (world.state, world.job["status"]["attempt"]) == ("Running", 1)
    key, value = next(iter(after.items()))
    assert mounted(world, world.pod("coordinator"))[f"stop_{key}"] == value
