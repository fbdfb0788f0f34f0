"""docs/edits.md, row by row: an edit of a running job takes effect when its row says."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest

from coxswain.api.crd import object_schema
from coxswain.api.edits_page import leaves as fields_of
from coxswain.api.effects import Effect
from coxswain.api.generate import REPOSITORY
from coxswain.api.kinds import BY_NAME
from coxswain.api.validate import defaulted
from coxswain.names import LABEL_ROLE
from coxswain_operator.children.configuration import JOB
from coxswain_operator.reconcile.status import PROGRESS_SECONDS
from tests.api_samples import Manifest, sample
from tests.unit.fake_cluster import NAMESPACE, FakeCluster, report_text
from tests.unit.test_reconcile_attempt import config_map, images
from tests.unit.test_reconcile_lifecycle import begin, passes, running
from tests.unit.test_validate_changes import FULL, another, leaves, put, spelt

_ROW = re.compile(r"^\| `([^`]+)` \| ([^|]+) \|$")


def rows() -> dict[tuple[str, str], Effect]:
    """Kind and field of every row of the page."""
    kind, found = "", {}
    for line in (REPOSITORY / "docs/edits.md").read_text().splitlines():
        kind = line.removeprefix("## ") if line.startswith("## ") else kind
        if row := _ROW.match(line):
            found[kind, row[1]] = Effect(row[2])
    return found


ROWS = rows()
# Fields that have only one value.
FIXED = {
    ("ParallelismPolicy", "optimizerSharding"), ("TrainingJob", "parallelism.optimizerSharding"),
    ("DataSource", "tokenizer.bytes"),
}  # fmt: skip


def test_every_field_of_every_kind_has_a_row() -> None:
    assert {(kind.name, path) for kind in BY_NAME.values() for path, _ in fields_of(kind)} == set(ROWS)
    assert set(ROWS.values()) == set(Effect)


def edits(kind: str, path: str) -> list[tuple[Manifest, tuple[str | int, ...], Any]]:
    """Objects of the kind that have the field, where it is in them, and another value."""
    found = []
    for changes in FULL[kind]:
        manifest = defaulted(sample(kind, changes))
        for place, value in leaves(manifest["spec"]):
            if re.match(rf"{re.escape(path)}($|[.\[])", spelt(place)):
                found.append((manifest, place, other(kind, path, value)))
    return found[:1]


def other(kind: str, path: str, value: Any) -> Any:
    """Another right value."""
    schema: Manifest = object_schema(BY_NAME[kind])["properties"]["spec"]
    for step in path.replace("[]", ".[]").split("."):
        schema = schema["items"] if step == "[]" else schema.get("properties", {}).get(step, {})
    choices = [v for v in schema.get("enum", ()) if v != value]
    return choices[0] if choices else another(value)


def world_of(kind: str, edited: Manifest) -> FakeCluster:
    """A running job that reads the object, or is it. Whatever an edit may name is there."""
    job = edited if kind == "TrainingJob" else sample("TrainingJob", READS.get(kind, {}))
    there = {(o["kind"], o["metadata"]["name"]): o for o in (*OTHERS, edited, job)}
    return FakeCluster(*map(_placed, there.values()))


READS: dict[str, Manifest] = {
    "ParallelismPolicy": {"spec.parallelismRef": {"name": "policy"}, "spec.parallelism": None}
}
OTHERS = [
    sample("DataSource"), sample("DataSource", name="code1"), sample("DataMix"), sample("DataMix", name="mix1"),
    sample("ParallelismPolicy"), sample("ParallelismPolicy", {"spec.hybridData.maxDegree": 8}, name="policy1"),
]  # fmt: skip


def _placed(manifest: Manifest) -> Manifest:
    """In the namespace of the test, and without rules that end a job whose pods vanish."""
    spec = {k: v for k, v in manifest["spec"].items() if v is not None and k != "failurePolicy"}
    return {**manifest, "metadata": {**manifest["metadata"], "namespace": NAMESPACE}, "spec": spec}


def made_of(world: FakeCluster) -> tuple[Any, ...]:
    """The configuration of the attempt, and by role what else of a pod follows from specs."""
    job = json.loads(world.objects["ConfigMap", config_map(world)]["data"][JOB])
    return job, {p["metadata"]["labels"][LABEL_ROLE]: made_of_pod(p) for p in world.pods()}


def made_of_pod(pod: Manifest) -> tuple[Any, ...]:
    spec, queue = pod["spec"], pod["metadata"]["labels"].get("kueue.x-k8s.io/queue-name")
    return (images(pod), queue, *(spec.get(part) for part in ("nodeSelector", "priorityClassName", "affinity")))


def edit(world: FakeCluster, kind: str, manifest: Manifest, place: tuple[str | int, ...], value: Any) -> None:
    new = put(manifest["spec"], place, value)
    world.edit(kind, manifest["metadata"]["name"], **{str(place[0]): new[str(place[0])]})


def row_id(row: tuple[str, str]) -> str:
    return ":".join(row)


OF_NODES = "NodeQuarantine"  # no attempt is made of it: tests/unit/test_reconcile_quarantine.py
WAITING = sorted(row for row, effect in ROWS.items() if effect.is_pinned and row not in FIXED and row[0] != OF_NODES)
# Where another value alone does not fit the rest of the sample, or gives another stream than the checkpoint's.
_SHAPES = ("tensor", "layout.replicas[].stages[].layers", "layout.replicas[].stages[].tensor")
_UNFIT = {
    "LayoutInvalid": {"ParallelismPolicy": _SHAPES, "TrainingJob": tuple(f"parallelism.{field}" for field in _SHAPES)},
    "CapacityTooSmall": {
        "ParallelismPolicy": ("pipeline", "layout.replicas[].count"),
        "TrainingJob": ("parallelism.pipeline", "parallelism.layout.replicas[].count", "batch.maxSequenceTokens"),
    },
    "StreamChanged": {
        "DataMix": ("seed", "longSequences", "sources[].name"),
        "DataSource": ("format", "textField", "tokenizer.file.eos"),
        "TrainingJob": (
            "mix.seed",
            "mix.longSequences",
            "mix.sources[].name",
            "batch.tokensPerStep",
            "evaluation.tokens",
        ),
    },
    "GroupMatchesNothing": {"TrainingJob": ("optimizer.groups[].match",)},
}
UNFIT = {(k, field): reason for reason, kinds in _UNFIT.items() for k, fields in kinds.items() for field in fields}
# What no pod is made of: bounds of what a server takes, and the name of a queue without a backend.
QUEUEING = ("scheduling.queueing.queueName", "scheduling.queueing.priorityClassName")
BOUNDS = {("TrainingJob", f) for f in ("data.loaders.max", "trainers.maxCount", "managedBy", *QUEUEING)}


@pytest.mark.parametrize("row", WAITING, ids=row_id)
async def test_an_edit_that_waits_reaches_no_pod_of_the_attempt_and_is_named_until_the_next_one(
    row: tuple[str, str],
) -> None:
    """Also where a server would refuse it: an object may be deleted and created again, and a suspension be taken back."""
    kind, path = row
    ((manifest, place, value),) = edits(kind, path)
    world = world_of(kind, manifest)
    await begin(world)
    world.tick(PROGRESS_SECONDS)
    await passes(world, 1)
    before = made_of(world)
    edit(world, kind, manifest, place, value)
    for member in ("coordinator", "loader-0", "trainer-0"):
        world.vanish(world.pod(member))
    await passes(world)
    world.run_all()
    assert made_of(world) == before
    validated = world.condition("Validated")
    assert validated["reason"] == UNFIT.get(row, "EditPending")
    assert row in UNFIT or f"{kind} {manifest['metadata']['name']}: {path.partition('[')[0]}" in validated["message"]
    for pod in world.pods():
        world.vanish(pod)
    await passes(world)
    assert world.condition("Validated")["reason"] == UNFIT.get(row, "Resolved")
    assert row in UNFIT or (made_of(world) == before) == (row in BOUNDS)


FOLLOWED = sorted(row for row, effect in ROWS.items() if effect is Effect.UNCOMMITTED)


@pytest.mark.parametrize("row", FOLLOWED, ids=row_id)
async def test_an_edit_that_is_followed_reaches_the_running_attempt_as_its_mix_and_nothing_else(
    row: tuple[str, str],
) -> None:
    kind, path = row
    ((manifest, place, value),) = edits(kind, path)
    world = world_of(kind, manifest)
    await begin(world)
    before, created = made_of(world), len(world.created)
    edit(world, kind, manifest, place, value)
    await passes(world)
    now = made_of(world)
    assert now[0]["mix"] != before[0]["mix"]
    assert ({**now[0], "mix": None}, now[1]) == ({**before[0], "mix": None}, before[1])
    assert (len(world.created), world.condition("Validated")["reason"]) == (created, "Resolved")


# --- at once ---------------------------------------------------------------------------------------------------------

RULE = {"name": "a", "action": "Fail", "onExitCodes": {"operator": "In", "values": [7]}}
Case = tuple[Manifest, Manifest, Callable[[FakeCluster], None]]
"""The failurePolicy before and after the edit, and what ends the job under the second alone."""


def ended(code: int, reason: str = "", disrupted: bool = False) -> Callable[[FakeCluster], None]:
    return lambda world: world.end(world.pod("trainer-1"), code, reason=reason, disrupted=disrupted)


def on_a_lost_node(world: FakeCluster) -> None:
    world.set_node("node-of-trainer-1", "Unknown")
    world.end(world.pod("trainer-1"), 137)


def rules(*rule: Manifest) -> list[Manifest]:
    return [{"rules": [{"name": "a", "action": "Fail", **r}]} for r in rule]


def of_type(type_: str, status: str = "True") -> list[Manifest]:
    return [{"type": type_, "status": status}]


FAILURES: dict[str, Case] = {
    "maxRestarts": ({"maxRestarts": 1}, {"maxRestarts": 0}, ended(1)),
    "rules[].onExitCodes.operator": (
        *rules({"onExitCodes": {"operator": "In", "values": [7]}}, {"onExitCodes": {"operator": "NotIn", "values": [7]}}),
        ended(9),
    ),
    "rules[].onExitCodes.values": (
        *rules({"onExitCodes": {"operator": "In", "values": [7]}}, {"onExitCodes": {"operator": "In", "values": [9]}}),
        ended(9),
    ),
    "rules[].onPodConditions[].type": (
        *rules({"onPodConditions": of_type("Other")}, {"onPodConditions": of_type("DisruptionTarget")}),
        ended(137, disrupted=True),
    ),
    "rules[].onPodConditions[].status": (
        *rules({"onPodConditions": of_type("DisruptionTarget", "False")}, {"onPodConditions": of_type("DisruptionTarget")}),
        ended(137, disrupted=True),
    ),
    "rules[].onNodeConditions[].type": (
        *rules({"onNodeConditions": of_type("Other", "Unknown")}, {"onNodeConditions": of_type("Ready", "Unknown")}),
        on_a_lost_node,
    ),
    "rules[].onNodeConditions[].status": (
        *rules({"onNodeConditions": of_type("Ready", "False")}, {"onNodeConditions": of_type("Ready", "Unknown")}),
        on_a_lost_node,
    ),
    "rules[].onReasons": (
        *rules({"onReasons": ["Error"]}, {"onReasons": ["OOMKilled"]}), ended(137, reason="OOMKilled"),
    ),
    "rules[].action": ({"rules": [{**RULE, "action": "RestartTrainer"}]}, {"rules": [RULE]}, ended(7)),
    "rules[].name": ({"rules": []}, {"rules": [{**RULE, "name": "b"}]}, ended(7)),
}  # fmt: skip


@pytest.mark.parametrize("is_edited", [False, True], ids=["as it was", "edited"])
@pytest.mark.parametrize("field", FAILURES)
async def test_an_edit_of_the_failure_policy_decides_about_the_next_failure(field: str, is_edited: bool) -> None:
    before, after, disturb = FAILURES[field]
    world = await running(failurePolicy=before)
    if is_edited:
        world.edit("TrainingJob", "demo", failurePolicy=after)
    disturb(world)
    await passes(world)
    assert (world.state == "Failed") == is_edited
    last = world.job["status"]["attempts"][-1]
    assert not is_edited or last["rule"] == (after.get("rules") or [{"name": "Default"}])[0]["name"]


async def test_a_suspension_and_another_number_of_trainers_are_obeyed_at_once() -> None:
    world = await running(trainers={"count": 2, "minCount": 1, "maxCount": 4})
    world.edit("TrainingJob", "demo", trainers={"count": 3, "minCount": 1, "maxCount": 4})
    await passes(world, 1)
    world.edit("TrainingJob", "demo", suspend=True)
    await passes(world, 1)
    assert [reason for reason, _ in world.calls] == ["scaled to 3 trainers", "suspended"]


async def test_a_deadline_is_obeyed_at_once() -> None:
    world = await running()
    world.edit("TrainingJob", "demo", activeDeadlineSeconds=1)
    await passes(world, 1)
    assert world.condition("Progressing")["reason"] == "DeadlineExceeded"


async def test_a_start_time_out_is_obeyed_at_once() -> None:
    world = await running()
    world.vanish(world.pod("trainer-1"))
    await passes(world)
    world.tick(10)
    world.edit("TrainingJob", "demo", startTimeoutSeconds=5)
    await passes(world)
    assert "demo-trainer-1-2" in world.created


async def test_the_time_to_live_of_a_job_that_has_ended_is_obeyed_at_once() -> None:
    world = await running()
    world.end(world.pod("coordinator"), 0, report_text("Completed", step=100))
    await passes(world)
    world.edit("TrainingJob", "demo", ttlSecondsAfterFinished=1)
    await passes(world)
    assert ("TrainingJob", "demo") not in world.objects


def test_every_row_that_takes_effect_at_once_is_tried_above() -> None:
    others = ("suspend", "trainers.count", "activeDeadlineSeconds", "startTimeoutSeconds", "ttlSecondsAfterFinished")
    tried = {("TrainingJob", field) for field in (*others, *(f"failurePolicy.{field}" for field in FAILURES))}
    assert tried == {row for row, effect in ROWS.items() if effect is Effect.AT_ONCE and row[0] != OF_NODES}
