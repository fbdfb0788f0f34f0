"""A job that newer CustomResourceDefinitions have taken, read by an operator that is older than they, as after its rollback."""

from __future__ import annotations

from typing import Any

import pytest

from coxswain_operator.controller import Controller
from coxswain_operator.reconcile.spec import read_spec
from tests.unit.fake_cluster import NAMESPACE, FakeCluster, report, training_job, with_job
from tests.unit.test_reconcile_lifecycle import passes, running

KNOWN = {"name": "known", "action": "RestartTrainerIgnoringLimit", "onExitCodes": {"operator": "In", "values": [7]}}
CATCH_ALL = {"name": "all", "action": "Fail", "onExitCodes": {"operator": "NotIn", "values": [0]}}
NEWER: dict[str, dict[str, Any]] = {
    "an action": {**CATCH_ALL, "action": "PauseJob"},
    "an operator": {**CATCH_ALL, "onExitCodes": {"operator": "Within", "values": [1]}},
    "a selector": {**CATCH_ALL, "onMessages": ["NCCL"]},
    "a part of a selector": {**CATCH_ALL, "onExitCodes": {"operator": "NotIn", "values": [0], "container": "worker"}},
}


async def loses_a_trainer(world: FakeCluster, code: int) -> None:
    pod = world.pod("trainer-1")
    assert pod is not None
    world.end(pod, code)
    world.report_now = report()
    await passes(world)


@pytest.mark.parametrize("rule", NEWER.values(), ids=NEWER)
async def test_a_running_job_with_a_failure_rule_of_a_newer_release_goes_on_and_names_it(rule: dict[str, Any]) -> None:
    """Without the rule's meaning nothing behind it may decide either: it might end a job that the rule would have spared."""
    world = await running()
    world.edit("TrainingJob", "demo", failurePolicy={"rules": [KNOWN, rule, CATCH_ALL]})
    await loses_a_trainer(world, 1)
    assert world.state != "Failed" and len(world.pods()) == 4
    assert world.job["status"]["restarts"] == {"counted": 1, "ignored": 0}
    validated = world.condition("Validated")
    assert (validated["status"], "spec.failurePolicy.rules[1]" in validated["message"]) == ("False", True)


async def test_rules_before_one_of_a_newer_release_still_decide() -> None:
    world = await running()
    world.edit("TrainingJob", "demo", failurePolicy={"rules": [KNOWN, NEWER["an action"]]})
    await loses_a_trainer(world, 7)
    assert world.job["status"]["restarts"] == {"counted": 0, "ignored": 1}


async def test_a_job_with_a_rule_of_a_newer_release_that_has_not_started_waits_and_its_suspension_counts() -> None:
    world = with_job(failurePolicy={"rules": [NEWER["an action"]]})
    controller = Controller(world, world, world.clock)
    await controller.pass_once(NAMESPACE, "demo")
    assert (world.state, world.pods()) == ("Queued", [])
    assert "spec.failurePolicy.rules[0].action" in world.condition("Validated")["message"]
    world.edit("TrainingJob", "demo", suspend=True)
    await controller.pass_once(NAMESPACE, "demo")
    assert world.state == "Suspended"


@pytest.mark.parametrize(
    ("kind", "name", "spec", "newer"),
    [
        ("TrainingJob", "demo", {"compression": "Auto"}, True),
        ("TrainingJob", "demo", {"recovery": {"copies": "EveryOtherStep"}}, True),
        ("DataSource", "code", {"format": "Arrow"}, True),
        ("DataMix", "mix", {"shuffle": "Blocks"}, True),
        ("TrainingJob", "demo", {"trainers": {"count": 2, "template": {"mistake": {}}}}, False),
    ],
)
async def test_a_field_or_value_that_only_newer_kinds_know_keeps_no_pods_from_going_on_and_has_a_way_out(
    kind: str, name: str, spec: dict[str, Any], newer: bool
) -> None:
    """To remove the field is none: a server whose kind has a default for it puts it back."""
    world = await running()
    world.edit(kind, name, **spec)
    await loses_a_trainer(world, 1)
    assert len(world.pods()) == 4
    message = world.condition("Validated")["message"]
    assert ("apply the kinds of its release" in message, len(message) < 1024) == (newer, True)


def test_every_rule_that_this_release_knows_is_read() -> None:
    spec = read_spec(training_job(failurePolicy={"maxRestarts": 3, "rules": [KNOWN, CATCH_ALL]}))
    assert (spec.failure_policy.max_restarts, [r.name for r in spec.failure_policy.rules]) == (3, ["known", "all"])
