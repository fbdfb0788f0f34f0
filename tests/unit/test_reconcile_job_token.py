"""The tokens of jobs: which Secret the pods of a start carry, and what a new key or a former release changes."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from coxswain.errors import Retryable
from coxswain_operator.children.job_token import TokenKeys, secret, secret_name
from coxswain_operator.cluster import Denied
from coxswain_operator.controller import Controller
from coxswain_operator.jobcontrol import HttpJobControl
from coxswain_operator.views import Manifest
from tests.fake_coordinator import FakeCoordinator
from tests.unit.fake_cluster import NAMESPACE, FakeCluster, report, training_job, with_job

OLD, NEW = b"o" * 32, b"n" * 32


def keys(*found: bytes) -> TokenKeys:
    return TokenKeys(found)


async def passes(world: FakeCluster, known: TokenKeys, count: int = 6) -> None:
    """Of an operator with these keys; pods run, and go once they are deleted."""
    controller = Controller(world, world, world.clock, keys=known)
    for _ in range(count):
        await controller.pass_once(NAMESPACE, "demo")
        world.tick()
        world.reap()
        world.run_all()


async def started(known: TokenKeys) -> FakeCluster:
    world = with_job()
    await passes(world, known)
    assert len(world.created) == 4
    return world


def former(world: FakeCluster) -> None:
    """As release 0.1 has started it."""
    del world.job["status"]["tokenSecret"]
    made = next(key for key in world.objects if key[0] == "Secret")
    secret = world.objects.pop(made)
    secret["metadata"]["name"] = "demo-token"
    secret["data"] = {"token": base64.b64encode(b"random").decode()}
    world.objects["Secret", "demo-token"] = secret
    for pod in world.pods():
        pod["spec"]["volumes"] = [v | {"secret": {"secretName": "demo-token"}} if v["name"] == "token" else v
                                  for v in pod["spec"]["volumes"]]  # fmt: skip


def mounted(world: FakeCluster) -> set[str]:
    """Names of the token's Secret in the pods that are there."""
    volumes = (v for pod in world.pods() for v in pod["spec"]["volumes"] if v["name"] == "token")
    return {volume["secret"]["secretName"] for volume in volumes}


def named(world: FakeCluster, key: bytes) -> str:
    return secret_name(world.job, keys(key).tokens(world.job)[0])


def secrets(world: FakeCluster) -> list[str]:
    return sorted(name for kind, name in world.objects if kind == "Secret")


def test_a_token_depends_on_the_key_and_the_jobs_uid_and_shows_neither() -> None:
    def job(uid: str) -> Manifest:
        return {"metadata": {"name": "demo", "uid": uid}}

    (one,), (other,), (again,) = keys(OLD).tokens(job("a")), keys(NEW).tokens(job("a")), keys(OLD).tokens(job("b"))
    assert len({one, other, again}) == 3 and {len(t) for t in (one, other, again)} == {43}
    assert keys(OLD).tokens(job("a")) == (one,) and keys(NEW, OLD).tokens(job("a")) == (other, one)
    names = {secret_name(job("a"), token) for token in (one, other, again)}
    assert len(names) == 3 and not any(token[:8] in name for name in names for token in (one, other, again))
    assert TokenKeys().tokens(job("a")) != TokenKeys().tokens(job("a"))


async def test_the_token_is_in_the_secret_that_the_pods_mount_and_nowhere_else() -> None:
    world = await started(keys(OLD))
    (token,) = keys(OLD).tokens(world.job)
    assert mounted(world) == {named(world, OLD)} == {world.job["status"]["tokenSecret"]} == set(secrets(world))
    secret = world.objects.pop(("Secret", named(world, OLD)))
    assert base64.b64decode(secret["data"]["token"]).decode() == token
    assert not [o for o in world.objects.values() if token in str(o) or secret["data"]["token"] in str(o)]
    assert token not in str(secret["metadata"])


async def test_a_secret_is_created_before_the_first_pod_and_never_asked_for() -> None:
    world = with_job()
    calls: list[tuple[str, str]] = []
    world.before_call = lambda verb, what: calls.append((verb, what))
    await passes(world, keys(OLD))
    made = [what for verb, what in calls if verb == "create"]
    assert made[0] == named(world, OLD) and made.count(named(world, OLD)) == 1
    assert ("get", "Secret") not in calls


async def test_a_pod_that_is_replaced_carries_its_peers_token_although_the_key_is_new() -> None:
    world = await started(keys(OLD))
    world.vanish(world.pod("trainer-1"))  # type: ignore[arg-type]
    await passes(world, keys(NEW, OLD))
    assert len(world.created) == 5 and mounted(world) == {named(world, OLD)}


@pytest.mark.parametrize("release", ["an older key's", "release 0.1's"])
@pytest.mark.parametrize("known", [keys(NEW), keys(NEW, OLD)], ids=["alone", "before the old one"])
async def test_a_job_takes_the_newest_key_at_its_next_start(release: str, known: TokenKeys) -> None:
    world = await started(keys(OLD))
    if release == "release 0.1's":
        former(world)
    world.edit("TrainingJob", "demo", suspend=True)
    await passes(world, known)
    for pod in world.pods():
        world.end(pod, 3)
    await passes(world, known)
    assert (world.state, world.pods()) == ("Suspended", [])
    world.edit("TrainingJob", "demo", suspend=False)
    await passes(world, known)
    assert mounted(world) == {named(world, NEW)} and named(world, NEW) in secrets(world)


async def test_a_start_with_the_trainers_that_found_a_node_takes_the_newest_key_too() -> None:
    world = with_job(trainers={"count": 2, "minCount": 1, "maxCount": 4})
    world.unplaceable = {"trainer-1"}
    await passes(world, keys(OLD))
    world.tick(910)
    await passes(world, keys(NEW, OLD))
    assert world.job["status"]["attempt"] == 1 and mounted(world) == {named(world, NEW)}


async def test_a_start_whose_key_is_gone_before_any_pod_came_takes_the_new_key() -> None:
    world = with_job()

    def crash(verb: str, what: str) -> None:
        if verb == "create":
            raise OSError("gone")

    world.before_call = crash
    with pytest.raises(OSError, match="gone"):
        await passes(world, keys(OLD))
    world.before_call = lambda verb, what: None
    await passes(world, keys(NEW))
    assert mounted(world) == {named(world, NEW)} == set(secrets(world))


async def test_a_job_that_a_backup_restored_has_a_token_of_its_own() -> None:
    """Another uid and the former status, and no child yet."""
    backup = await started(keys(OLD))
    world = with_job()
    world.job["metadata"]["uid"], world.job["status"] = "restored", backup.job["status"]
    await passes(world, keys(OLD))
    assert len(world.created) == 4 and mounted(world) == {named(world, OLD)} == set(secrets(world))
    assert {named(world, OLD)}.isdisjoint(secrets(backup))


async def test_the_secret_of_an_earlier_job_of_the_same_name_is_none_of_the_next() -> None:
    world = await started(keys(OLD))
    before = secrets(world)
    for kind, name in list(world.objects):
        if kind in ("Pod", "TrainingJob", "ConfigMap", "Service", "NetworkPolicy", "PodDisruptionBudget"):
            del world.objects[kind, name]
    world.put(training_job())
    await passes(world, keys(OLD))
    assert len(world.created) == 8 and mounted(world).isdisjoint(before)


async def answered(world: FakeCluster, known: TokenKeys, token: str) -> bool:
    """Whether the job's coordinator, which takes this token, answers an operator with these keys."""
    pod = world.pod("coordinator")
    assert pod is not None
    pod["status"]["podIP"] = "127.0.0.1"
    with FakeCoordinator(token, report("Running", 42)) as coordinator:
        control = HttpJobControl(world, coordinator.port, known)
        try:
            return await control.report(world.job) is not None
        finally:
            await control.close()


async def test_the_operator_calls_a_coordinator_with_the_token_of_its_start() -> None:
    world = await started(keys(OLD))
    (token,) = keys(OLD).tokens(world.job)
    del world.objects["Secret", named(world, OLD)]  # it is not needed
    assert await answered(world, keys(NEW, OLD), token)
    assert not await answered(world, keys(NEW), token)


async def test_a_job_that_release_0_1_has_started_is_called_with_its_secrets_token() -> None:
    world = await started(keys(OLD))
    former(world)
    assert await answered(world, keys(NEW), "random")


async def test_a_job_whose_token_is_unknown_trains_on_and_says_how_it_can_be_controlled_again() -> None:
    world = await started(keys(OLD))
    former(world)
    world.report_now = None
    await passes(world, keys(NEW))
    message: str = world.condition("Progressing")["message"]
    assert (
        "TokenUnknown: the pods carry the token of Secret demo-token" in message and "rbac.readTokens=true" in message
    )
    assert (len(world.created), mounted(world), secrets(world)) == (4, {"demo-token"}, ["demo-token"])
    world.report_now = report("Running", 42)
    await passes(world, keys(NEW))
    assert "TokenUnknown" not in world.condition("Progressing")["message"]


async def test_a_foreign_secret_under_the_name_stops_nothing() -> None:
    world = with_job()
    other: dict[str, Any] = {"kind": "Secret", "metadata": {"name": named(world, OLD)}, "data": {"token": "eA=="}}
    world.put(other)
    await passes(world, keys(OLD))
    assert len(world.created) == 4


@pytest.mark.parametrize("rules", [[], [{"name": "soon", "action": "RestartTrainer", "onReasons": ["NotPrepared"]}]])
async def test_a_secret_that_was_deleted_is_made_again_once_a_pod_could_not_mount_it(rules: list[Manifest]) -> None:
    world = await started(keys(OLD))
    world.edit("TrainingJob", "demo", failurePolicy={"rules": rules}, startTimeoutSeconds=60)
    del world.objects["Secret", named(world, OLD)]
    lost: Manifest = world.pod("loader-0")
    world.vanish(lost)
    controller = Controller(world, world, world.clock, keys=keys(OLD))
    for _ in range(3):
        await controller.pass_once(NAMESPACE, "demo")
    successor: Manifest = world.pod("loader-0")
    assert (successor["metadata"]["name"], secrets(world)) == ("demo-loader-0-1", [])
    world.unprepared(successor)
    world.tick(60)
    await controller.pass_once(NAMESPACE, "demo")
    assert secrets(world) == [named(world, OLD)]
    world.before_call = lambda verb, what: pytest.fail(f"{verb} {what}") if what == named(world, OLD) else None
    await passes(world, keys(OLD))
    assert "demo-loader-0-2" in world.created


@pytest.mark.parametrize(
    ("known", "way_out"),
    [
        (keys(OLD), "deleting the pod makes it again"),
        (keys(NEW), "made by a key that this operator lacks: suspend and resume the job for another"),
    ],
    ids=["its key is known", "its key is lost"],
)
async def test_a_pod_that_its_node_cannot_prepare_names_the_tokens_secret_and_how_to_get_another(
    known: TokenKeys, way_out: str
) -> None:
    world = await started(keys(OLD))
    former = named(world, OLD)
    del world.objects["Secret", former]
    world.vanish(world.pod("trainer-0"))  # type: ignore[arg-type]
    await passes(world, known, 1)
    await Controller(world, world, world.clock, keys=known).pass_once(NAMESPACE, "demo")
    world.unprepared(world.pod("trainer-0"))  # type: ignore[arg-type]
    world.tick(30)
    await Controller(world, world, world.clock, keys=known).pass_once(NAMESPACE, "demo")
    assert f"is there Secret {former} ({way_out})?" in world.condition("PodsReady")["message"]


async def test_a_secret_that_was_deleted_is_made_again_for_the_successor_of_a_pod_that_a_person_deletes() -> None:
    world = await started(keys(OLD))
    del world.objects["Secret", named(world, OLD)]
    lost: Manifest = world.pod("trainer-0")
    world.unprepared(lost)
    world.tick(30)
    await world.delete("Pod", NAMESPACE, lost["metadata"]["name"])
    await passes(world, keys(OLD))
    assert "demo-trainer-0-1" in world.created and secrets(world) == [named(world, OLD)]


QUOTA = "is forbidden: exceeded quota: few, requested: secrets=1, used: secrets=9, limited: secrets=9"
POLICY = 'is forbidden: ValidatingAdmissionPolicy "teams" with binding "teams" denied request: no team label'


async def resumed(world: FakeCluster, known: TokenKeys, refused: str) -> None:
    """Suspended before new Secrets were refused, and resumed by an operator with these keys."""
    world.edit("TrainingJob", "demo", suspend=True)
    await passes(world, keys(OLD))
    for pod in world.pods():
        world.end(pod, 3)
    await passes(world, keys(OLD))
    assert (world.state, world.pods()) == ("Suspended", [])
    refuse(world, Denied("Forbidden", f"secrets {refused}"))
    world.edit("TrainingJob", "demo", suspend=False)
    await passes(world, known, 12)


def refuse(world: FakeCluster, error: Exception) -> None:
    """Every new Secret, as an API server does before it looks whether the name is there."""

    def judge(verb: str, what: str) -> None:
        if verb == "create" and "-token-" in what:
            raise error

    world.before_call = judge


@pytest.mark.parametrize("refused", [QUOTA, POLICY])
async def test_a_job_is_resumed_with_the_secret_that_it_has_where_new_ones_are_refused(refused: str) -> None:
    world = await started(keys(OLD))
    await resumed(world, keys(OLD), refused)
    assert len(world.pods()) == 4 and mounted(world) == {named(world, OLD)} == set(secrets(world))


async def test_a_job_whose_secret_the_server_fails_to_make_waits_although_it_has_one() -> None:
    """It may answer soon, and a Secret that was deleted is made again then."""
    world = await started(keys(OLD))
    for pod in world.pods():
        world.vanish(pod)
    refuse(world, Retryable("down"))
    controller = Controller(world, world, world.clock, keys=keys(OLD))
    for _ in range(3):
        world.tick(61)  # longer than any back-off
        with pytest.raises(Retryable):
            await controller.pass_once(NAMESPACE, "demo")
    assert world.pods() == []


@pytest.mark.parametrize("known", [None, keys(NEW, OLD), keys(NEW)], ids=["first start", "new key", "lost key"])
async def test_no_pod_waits_for_a_secret_that_a_quota_has_refused(known: TokenKeys | None) -> None:
    """It would hold its node for startTimeoutSeconds, and say that the node could not prepare it."""
    world = await started(keys(OLD)) if known else with_job()
    if known:
        await resumed(world, known, QUOTA)
    else:
        refuse(world, Denied("Forbidden", f"secrets {QUOTA}"))
        await passes(world, keys(OLD))
    assert world.pods() == []
    message: str = world.condition("Progressing")["message"]
    assert "QuotaExceeded: Secret demo-token-" in message and message.endswith("free some of the quota, or raise it")


async def test_a_job_with_a_new_key_starts_once_the_quota_has_room_and_needs_none_at_the_start_after() -> None:
    world = await started(keys(OLD))
    await resumed(world, keys(NEW), QUOTA)
    world.before_call = lambda verb, what: None
    await passes(world, keys(NEW))
    assert len(world.pods()) == 4 and mounted(world) == {named(world, NEW)} <= set(secrets(world))
    await resumed(world, keys(NEW), QUOTA)
    assert len(world.pods()) == 4 and mounted(world) == {named(world, NEW)}


def test_nothing_that_is_made_of_the_token_is_in_the_secrets_metadata_but_a_part_of_its_hash_in_the_name() -> None:
    """A hash of the data among the annotations would say whether a guessed token is the right one."""
    first, second = (secret(with_job().job, token)["metadata"] for token in ("one", "another"))
    assert first.pop("name") != second.pop("name")
    assert first == second
