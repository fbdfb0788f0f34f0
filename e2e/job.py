"""A TrainingJob on the cluster, as a person handles it: files, kubectl, and the steps that the run
left in its store.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from coxswain_operator.children.overlay import merged
from e2e.cluster.process import REPOSITORY
from e2e.provision import Site, eventually

Object = dict[str, Any]
Digests = dict[int, tuple[str, str]]

EXAMPLE = REPOSITORY / "examples" / "kubernetes.yaml"
JOB_LABEL, ROLE_LABEL = "coxswain.dev/job", "coxswain.dev/role"
ENDS = ("Completed", "Failed")
MOST_STEPS = 48  # of any job that is compared with the baseline
SLOW: Object = {"preset": "llama-tiny"}  # a model for the same stream that leaves time to change something
ENDLESS: Object = {"model": SLOW, "stop": {"steps": 100_000}}  # however long a busy machine takes; a test suspends it


def example_objects() -> list[Object]:
    return list(yaml.safe_load_all(EXAMPLE.read_text()))


def small_objects(site: Site, place: str, steps: int, **spec: Any) -> list[Object]:
    """The example with a model and data that two busy cores train and index in seconds.

    `place`: folder in the bucket `runs`.

    `spec`: further fields; those of `trainers` and its `template` are laid over the example's.
    """
    trainers = spec.pop("trainers", {})
    template = merged({"spec": site.torch_overlay()}, trainers.pop("template", {}))
    objects = example_objects()
    next(at for at in objects if at["metadata"]["name"] == "stdlib-code")["spec"]["include"] = "part-000.parquet"
    job = objects[-1]["spec"]
    job |= {
        "model": {"config": {"layers": 2, "hidden": 32, "heads": 2, "kvHeads": 1, "feedForward": 64}},
        "batch": {"tokensPerStep": 4096, "maxSequenceTokens": 4096},
        "stop": {"steps": steps},
        **spec,
    }
    job["checkpoint"] |= {"uri": f"s3://runs/{place}/", "everySteps": 4}
    shape = job["trainers"].get("template", {})
    job["trainers"] = {**job["trainers"], **trainers, "template": merged(shape, template)}
    return objects


def local_objects(objects: Iterable[Object], store: Path, checkpoint: Path) -> list[Object]:
    """The same job for `cox run` on this machine: the same files without a server in between, no
    pods to shape.
    """
    found = [copy.deepcopy(at) for at in objects if at["kind"] != "Secret"]
    for at in found:
        if at["kind"] == "DataSource":
            del at["spec"]["endpoint"]
            at["spec"]["uri"] = _file(at["spec"]["uri"], store)
            at["spec"]["tokenizer"]["file"]["uri"] = _file(at["spec"]["tokenizer"]["file"]["uri"], store)
    job = found[-1]["spec"]
    del job["checkpoint"]["endpoint"], job["trainers"]["template"]
    job["checkpoint"]["uri"] = checkpoint.as_uri()
    return found


def _file(uri: str, store: Path) -> str:
    return f"{store.as_uri()}/{uri.removeprefix('s3://')}"


@dataclass(frozen=True)
class Job:
    """`place`: its folder in the bucket `runs`."""

    site: Site
    namespace: str
    name: str
    place: str

    def kubectl(self, *arguments: str, stdin: str = "") -> str:
        return self.site.kubectl("-n", self.namespace, *arguments, stdin=stdin)

    def apply(self, objects: Iterable[Object]) -> None:
        """As JSON: PyYAML writes "3e-3" without quotes, and kubectl reads a number."""
        self.kubectl("apply", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)}))

    def patch(self, spec: Object) -> None:
        self.kubectl("patch", "tj", self.name, "--type=merge", "-p", json.dumps({"spec": spec}))

    def get(self) -> Object:
        found: Object = json.loads(self.kubectl("get", "tj", self.name, "-o", "json"))
        return found

    def status(self) -> Object:
        return self.get().get("status") or {}

    def state(self) -> str:
        return next((c["reason"] for c in self.status().get("conditions", ()) if c["type"] == "Succeeded"), "")

    def pods(self, role: str = "") -> list[Object]:
        selector = f"{JOB_LABEL}={self.name}" + (f",{ROLE_LABEL}={role}" if role else "")
        found: list[Object] = json.loads(self.kubectl("get", "pods", "-l", selector, "-o", "json"))["items"]
        return found

    def uids(self) -> set[str]:
        """Uids of all its pods."""
        return {pod["metadata"]["uid"] for pod in self.pods()}

    def wait(self, *states: str, deadline: float = 240) -> str:
        """Waits for one of these states; another final state fails at once with the conditions."""

        def reached() -> str | None:
            now = self.state()
            assert now in states or now not in ENDS, f"{self.name} is {now}, not {states}: {self.words()}"
            return now if now in states else None

        return eventually(reached, f"{self.name} is one of {states}", deadline)

    def words(self) -> str:
        """Messages of the conditions."""
        return "; ".join(f"{c['type']}={c['status']}: {c['message']}" for c in self.status().get("conditions", ()))

    def wait_for_more(self, steps: int) -> None:
        """Waits for the checkpoint that makes so many more steps final."""
        self.wait_for_step(max(self.digests()) + steps)

    def wait_for_step(self, step: int, deadline: float = 240) -> None:
        """Waits for the checkpoint that makes `step` final."""

        def reached() -> bool:
            assert self.state() not in ENDS, f"{self.name} is {self.state()} already: {self.words()}"
            return max(self.digests(), default=-1) >= step

        eventually(reached, f"step {step} of {self.name} is saved", deadline)

    def restarts(self) -> tuple[int, int]:
        """Restarts that were counted, and that were ignored."""
        found = self.status()["restarts"]
        return found["counted"], found["ignored"]

    def events(self, reason: str) -> list[str]:
        """Messages of the job's events of this reason."""
        selector = f"involvedObject.kind=TrainingJob,involvedObject.name={self.name},reason={reason}"
        found = json.loads(self.kubectl("get", "events", "--field-selector", selector, "-o", "json"))["items"]
        return [event["message"] for event in found]

    def wait_for_event(self, reason: str, words: str, deadline: float = 60) -> str:
        """The message of the first event of this reason with these words. Events may come late."""

        def found_event() -> str | None:
            return next((message for message in self.events(reason) if words in message), None)

        return eventually(found_event, f"an event {reason} of {self.name} says {words!r}", deadline)

    def digests(self) -> Digests:
        return digests(self._step_files())

    def generations(self) -> dict[int, int]:
        """The world of each saved step."""
        return {line["step"]: line["worldGeneration"] for line in self.step_lines()}

    def step_lines(self) -> list[Object]:
        """The saved lines of `steps.jsonl`."""
        return _lines(self._step_files())

    def _step_files(self) -> list[Path]:
        return sorted((self.site.store / "runs" / self.place / "steps").glob("*.jsonl"))


def training(job: Job, **spec: object) -> None:
    """Applies the job; returns when a checkpoint is there and most steps are still to come."""
    job.apply(small_objects(job.site, job.place, MOST_STEPS, **spec))
    job.wait_for_step(3, deadline=400)


def completed(job: Job, baseline: Digests, counted: int, ignored: int) -> None:
    """Waits for the end: every step equals the baseline, with so many restarts."""
    job.wait("Completed", deadline=400)
    assert job.digests() == baseline
    assert job.restarts() == (counted, ignored)


def goes_on(job: Job, baseline: Digests, counted: int, ignored: int) -> None:
    """Waits for another checkpoint of an endless job, and suspends it: every step so far equals the baseline, as far as that
    goes, with so many restarts."""
    job.wait_for_more(1)
    job.patch({"suspend": True})
    job.wait("Suspended", deadline=400)
    found = job.digests()
    compared = range(min(len(found), len(baseline)))
    assert [found.get(step) for step in compared] == [baseline[step] for step in compared]
    assert job.restarts() == (counted, ignored)


def digests(files: Iterable[Path]) -> Digests:
    """Digests by step; the last line of a repeated step is valid."""
    return {line["step"]: (line["stream_digest"], line["delivered_digest"]) for line in _lines(files)}


def _lines(files: Iterable[Path]) -> list[Object]:
    return [json.loads(line) for path in files for line in path.read_text().splitlines()]
