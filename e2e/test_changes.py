"""People change what a job stands on (its mix, its bucket, its keys): it follows, or says what is missing."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from coxswain_coordinator.planning.plan_log import PlanLog
from coxswain_link.store import open_store
from e2e import store
from e2e.baseline import cox_run
from e2e.doc_commands import command, type_in
from e2e.job import ENDLESS, SLOW, Digests, Job, Object, completed, small_objects, training
from e2e.provision import Site, eventually

pytestmark = pytest.mark.timeout(900)

PAGE = "docs/operations.md"
KUBELET = 300  # seconds within which a kubelet brings a changed file into a pod, on a busy machine


@pytest.fixture
def keys(operator: Site) -> Iterator[Site]:
    """The site whose S3 server gets its own keys back after a test that changes them."""
    yield operator
    store.set_secret_key(operator.cluster, store.SECRET_KEY)


def test_edits_of_the_mix_count_once_each_whether_or_not_the_coordinator_is_deleted(job: Job, tmp_path: Path) -> None:
    """`cox run` gives the same digests where each edit is a phase from the same step on."""
    training(job, **ENDLESS)
    before, (coordinator,) = job.uids(), [pod["metadata"]["name"] for pod in job.pods("coordinator")]
    weigh(job, code=100, docs=900)
    event = hurried(job, coordinator, "weight of code 700 -> 100")
    assert job.uids() == before
    weigh(job, code=500, docs=500)
    job.kubectl("delete", "pod", coordinator, "--wait=false")
    job.wait_for_event("MixChanged", "weight of code 100 -> 500", KUBELET)
    first, second = eventually(lambda: starts(job, 2), "steps are planned under both edits", 120)
    assert f"; from step {first} on" in event
    rates = rates_until(job, second + 2)
    job.patch({"suspend": True})
    job.wait("Suspended")
    found = job.digests()
    phases = [phase(first, 100, 900), phase(second, 500, 500)]
    assert found == cox_run(tmp_path, objects(job, {"phases": phases}, len(found)), job.site.store)
    assert max(rates) <= 2 * fastest(job), "the rate that is shown is no rate of these steps"


def test_a_job_whose_bucket_was_emptied_while_it_was_suspended_trains_nothing_until_that_is_accepted(
    job: Job, baseline: Digests
) -> None:
    training(job)
    job.patch({"suspend": True})
    job.wait("Suspended")
    saved = job.status()["lastCheckpoint"]["step"]
    for path in (job.site.store / "runs" / job.place).iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    job.patch({"suspend": False})
    job.wait("Failed")
    assert f"CheckpointMissing: s3://runs/{job.place}: the job saved a checkpoint before step {saved}" in job.words()
    assert job.digests() == {}
    typed(job, "kubectl patch tj NAME --subresource status")
    typed(job, "kubectl annotate --overwrite tj NAME")
    eventually(lambda: job.state() != "Failed", "the job is retried", 60)
    completed(job, baseline, 0, 0)


def test_a_job_goes_on_when_the_keys_of_its_store_are_rotated(job: Job, baseline: Digests, keys: Site) -> None:
    training(job, model=SLOW)
    before = job.uids()
    store.set_secret_key(keys.cluster, "another-secret")
    data = '{"stringData": {"AWS_SECRET_ACCESS_KEY": "another-secret"}}'
    job.kubectl("patch", "secret", "s3-keys", "--type=merge", "--patch", data)
    completed(job, baseline, 0, 0)
    assert job.uids() == before


def weigh(job: Job, **weights: int) -> None:
    """Edits the weights of the job's mix."""
    sources = {"sources": mix_sources(weights)}
    job.apply(at for at in objects(job, sources, 1) if at["kind"] == "DataMix")


def objects(job: Job, mix: Object, steps: int) -> list[Object]:
    """The small job of so many steps with other fields in its mix."""
    made = small_objects(job.site, job.place, steps)
    next(at for at in made if at["kind"] == "DataMix")["spec"] |= mix
    return made


def mix_sources(weights: dict[str, int]) -> list[Object]:
    return [{"name": n, "sourceRef": {"name": f"stdlib-{n}"}, "weight": weight} for n, weight in weights.items()]


def phase(step: int, code: int, docs: int) -> Object:
    return {"fromStep": step, "weights": [{"name": "code", "weight": code}, {"name": "docs", "weight": docs}]}


def hurried(job: Job, pod: str, words: str) -> str:
    """The event of an edit that a pod hears of. With each annotation its kubelet brings changed files at once."""

    def said() -> str | None:
        job.kubectl("annotate", "--overwrite", "pod", pod, f"test/looked={time.monotonic_ns()}")
        return next((message for message in job.events("MixChanged") if words in message), None)

    return eventually(said, f"an event MixChanged says {words!r}", KUBELET)


def starts(job: Job, edits: int) -> list[int] | None:
    """The first step under each edit, by the plan log; None while there are fewer edits in it."""
    log = PlanLog(open_store((job.site.store / "runs" / job.place).as_uri()))
    first: dict[int, int] = {}
    number = 0
    while (segment := log.membership(number)) is not None:
        first.setdefault(segment.mix, segment.memberships[0].step)
        number += 1
    return [first[edit] for edit in range(1, edits + 1)] if edits in first else None


def rates_until(job: Job, step: int) -> list[float]:
    """What TOK/S shows until the step is saved."""
    seen: list[float] = []

    def reached() -> bool:
        seen.append(float(job.status()["progress"]["tokensPerSecond"]))
        return max(job.digests()) >= step

    eventually(reached, f"step {step} of {job.name} is saved", 300)
    return seen


def fastest(job: Job) -> float:
    """Tokens a second of the fastest step."""
    return max(float(line["tokens"]) / float(line["seconds"]) for line in job.step_lines())


def typed(job: Job, beginning: str) -> None:
    """Runs the page's command for this job."""
    line = command(PAGE, beginning).replace("NAME", job.name)
    type_in(job.site, f"{line} --namespace {job.namespace}")
