"""kubectl on a real API server: columns, scaling, apply beside the operator, garbage collection."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from coxswain_operator.controller import Controller
from tests.api_samples import Manifest, sample
from tests.children import binary
from tests.fake_coordinator import FakeCoordinator
from tests.integration.apiserver import ApiServer
from tests.integration.operator_parts import MERGE, Kubelet, apply_all, connected, new_namespace
from tests.unit.fake_cluster import data_mix, data_source, training_job

JOBS = "trainingjobs"
STATES = (
    "Queued", "Indexing", "Starting", "Running", "Restarting", "Suspending", "Suspended", "Completed", "Failed",
    "Unschedulable",
)  # fmt: skip
GOLDEN = """\
NAME  STATE  READY  STEP  PROGRESS  TOK/S  RESTARTS  SLOW  AGE  LOSS  IDLE  ETA  LAYOUT  MIX  CHECKPOINT
completed  Completed  3/4  412  41.2  402113  1  <age>  1.873  3.1  2210  4 x tp1pp1  mix  400
failed  Failed  3/4  412  41.2  402113  1  <age>  1.873  3.1  2210  4 x tp1pp1  mix  400
fresh  <age>  mix
indexing  Indexing  3/4  412  41.2  402113  1  <age>  1.873  3.1  2210  4 x tp1pp1  mix  400
queued  Queued  3/4  412  41.2  402113  1  <age>  1.873  3.1  2210  4 x tp1pp1  mix  400
restarting  Restarting  3/4  412  41.2  402113  1  <age>  1.873  3.1  2210  4 x tp1pp1  mix  400
running  Running  3/4  412  41.2  402113  1  trainer-2  <age>  1.873  3.1  2210  4 x tp1pp1  mix  400
starting  Starting  3/4  412  41.2  402113  1  <age>  1.873  3.1  2210  4 x tp1pp1  mix  400
suspended  Suspended  3/4  412  41.2  402113  1  <age>  1.873  3.1  2210  4 x tp1pp1  mix  400
suspending  Suspending  3/4  412  41.2  402113  1  <age>  1.873  3.1  2210  4 x tp1pp1  mix  400
unschedulable  Unschedulable  3/4  412  41.2  402113  1  <age>  1.873  3.1  2210  4 x tp1pp1  mix  400
"""
NOW = "2026-11-21T09:00:00Z"


def kubectl(api: ApiServer, namespace: str, *arguments: str | Path, text: str = "") -> str:
    """Returns its output. Raises AssertionError with its error output when it fails."""
    command = [binary("kubectl"), "--kubeconfig", api.kubeconfig, "--namespace", namespace, *arguments]
    home = {"PATH": os.environ["PATH"], "HOME": str(api.kubeconfig.parent)}
    done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=60, env=home)
    assert done.returncode == 0, done.stderr
    return done.stdout


RULE = {"name": "drained", "onPodConditions": [{"type": "DisruptionTarget"}], "action": "RestartTrainer"}


def test_a_file_that_is_applied_again_leaves_its_objects_unchanged_so_no_tool_finds_a_difference(
    api: ApiServer,
) -> None:
    namespace = new_namespace(api)
    found = (data_source(), data_mix(), training_job(failurePolicy={"rules": [RULE]}))
    heads = ({"name": m["metadata"]["name"], "namespace": namespace} for m in found)
    items = [{**m, "metadata": head} for m, head in zip(found, heads, strict=True)]
    text = json.dumps({"apiVersion": "v1", "kind": "List", "items": items})
    kubectl(api, namespace, "apply", "--filename", "-", text=text)
    assert kubectl(api, namespace, "apply", "--filename", "-", text=text).splitlines() == [
        "datasource.coxswain.dev/code unchanged",
        "datamix.coxswain.dev/mix unchanged",
        "trainingjob.coxswain.dev/demo unchanged",
    ]


def put(api: ApiServer, namespace: str, name: str, state: str = "") -> None:
    assert api.http.post(api.path(JOBS, namespace=namespace), json=sample("TrainingJob", name=name)).is_success
    if state:
        place = api.path(JOBS, name, "status", namespace=namespace)
        assert api.http.patch(place, json={"status": status(state)}, headers=MERGE).is_success


def status(state: str) -> Manifest:
    slow = {"trainer": "trainer-2", "device": 0, "node": "gpu-7", "slowdown": "1.42", "since": NOW, "cause": "Device"}
    succeeded = {"type": "Succeeded", "status": "Unknown", "reason": state, "message": "", "lastTransitionTime": NOW}
    return {
        "conditions": [succeeded],
        "ready": "3/4",
        "replicas": 4,
        "selector": "coxswain.dev/job=demo",
        "restarts": {"counted": 1, "ignored": 2},
        "progress": {
            "step": 412, "steps": 1000, "percent": "41.2", "tokens": "108003328", "loss": "1.873",
            "tokensPerSecond": "402113", "idlePercent": "3.1", "etaSeconds": 2210,
        },
        "layout": {"hash": "abc", "summary": "4 x tp1pp1"},
        "lastCheckpoint": {"step": 400, "uri": "s3://runs/demo/step-400", "time": NOW},
        "stragglers": [slow] if state == "Running" else [],
    }  # fmt: skip


def test_kubectl_prints_every_state_in_one_line(api: ApiServer) -> None:
    namespace = new_namespace(api)
    for state in STATES:
        put(api, namespace, state.lower(), state)
    put(api, namespace, "fresh")
    printed = kubectl(api, namespace, "get", "tj", "--output", "wide").splitlines()
    assert [words(line) for line in printed] == [words(line) for line in GOLDEN.splitlines()]


def words(line: str) -> list[str]:
    """The line's cells but the age, which is the clock's."""
    cells = [cell for cell in line.split("  ") if cell.strip()]
    return [
        c.strip() for c in cells if c.strip() != "<age>" and not (c.strip()[:-1].isdigit() and c.strip()[-1] == "s")
    ]


@pytest.mark.parametrize(("state", "holds"), [("Completed", "True"), ("Failed", "False")])
async def test_kubectl_waits_no_longer_for_the_end_of_a_job_that_was_edited_after_it(
    api: ApiServer, state: str, holds: str
) -> None:
    """It passes over a condition of an earlier generation than the job's."""
    namespace = new_namespace(api)
    apply_all(api, namespace)
    job = api.path(JOBS, "demo", namespace=namespace)
    end = {"type": "Succeeded", "status": holds, "reason": state, "message": "", "lastTransitionTime": NOW}
    ended = {
        "conditions": [{**end, "observedGeneration": 1}],
        "completionTime": NOW,
        "updatedAt": NOW,
        "observedGeneration": 1,
    }
    assert api.http.patch(f"{job}/status", json={"status": ended}, headers=MERGE).is_success
    assert api.http.patch(job, json={"spec": {"stop": {"steps": 200}}}, headers=MERGE).is_success
    async with connected(api) as cluster:
        await Controller(cluster, FakeCoordinator()).pass_once(namespace, "demo")
    waited = kubectl(api, namespace, "wait", "tj/demo", f"--for=condition=Succeeded={holds}", "--timeout=5s")
    assert waited == "trainingjob.coxswain.dev/demo condition met\n"


def test_kubectl_scales_within_the_bounds_and_is_refused_beyond_them(api: ApiServer) -> None:
    namespace = new_namespace(api)
    put(api, namespace, "demo", "Running")
    kubectl(api, namespace, "scale", "tj/demo", "--current-replicas=4", "--replicas=6")
    place = api.path(JOBS, "demo", "scale", namespace=namespace)
    scale = api.http.get(place).json()
    assert (scale["spec"]["replicas"], scale["status"]["replicas"]) == (6, 4)
    assert api.http.put(place, json={**scale, "spec": {"replicas": 3}}).is_success
    for wrong, words_ in ((9, "may not be above maxCount 8"), (1, "may not be below minCount 2")):
        refused = api.http.patch(place, json={"spec": {"replicas": wrong}}, headers=MERGE)
        assert refused.status_code == 422 and words_ in refused.text
    assert api.http.get(api.path(JOBS, "demo", namespace=namespace)).json()["spec"]["trainers"]["count"] == 3


def test_an_unknown_field_is_pruned_where_the_client_does_not_insist(api: ApiServer) -> None:
    namespace = new_namespace(api)
    manifest = sample("TrainingJob", {"spec.trainers.colour": "red", "spec.colour": "red"})
    stored = api.http.post(api.path(JOBS, namespace=namespace), json=manifest, params={"fieldValidation": "Warn"})
    assert stored.is_success and "spec.trainers.colour" in stored.headers["Warning"]
    assert "colour" not in stored.json()["spec"] and "colour" not in stored.json()["spec"]["trainers"]


@pytest.mark.parametrize("way", [[], ["--server-side"]], ids=["client-side", "server-side"])
async def test_a_users_apply_never_conflicts_with_the_operator(api: ApiServer, way: list[str]) -> None:
    namespace = new_namespace(api)
    apply_all(api, namespace)
    mine = api.http.get(api.path(JOBS, "demo", namespace=namespace)).json()
    plain: Manifest = {"apiVersion": mine["apiVersion"], "kind": mine["kind"], "metadata": {"name": "applied"}}
    plain["spec"] = mine["spec"]
    kubectl(api, namespace, "apply", *way, "--filename", "-", text=json.dumps(plain))
    async with connected(api) as cluster:
        for _ in range(4):
            await Controller(cluster, FakeCoordinator()).pass_once(namespace, "applied")
    plain["spec"] = {**plain["spec"], "stop": {"steps": 200}}
    kubectl(api, namespace, "apply", *way, "--filename", "-", text=json.dumps(plain))
    stored = api.http.get(api.path(JOBS, "applied", namespace=namespace)).json()
    assert stored["spec"]["stop"] == {"steps": 200} and stored["status"]["conditions"]
    assert owners(stored, "f:status") == {"coxswain-operator"}
    assert "coxswain-operator" not in owners(stored, "f:spec") | owners(stored, "f:metadata")


def owners(stored: Manifest, part: str) -> set[str]:
    return {f["manager"] for f in stored["metadata"]["managedFields"] if part in f["fieldsV1"]}


async def test_a_deleted_job_takes_all_its_children_along(api: ApiServer) -> None:
    namespace = new_namespace(api)
    apply_all(api, namespace)
    async with connected(api) as cluster:
        for _ in range(4):
            await Controller(cluster, FakeCoordinator()).pass_once(namespace, "demo")
    assert len(Kubelet(api, namespace).names()) == 4
    with api.controllers("garbage-collector-controller"):
        kubectl(api, namespace, "delete", "tj", "demo", "--wait=false")
        await_(lambda: children(api, namespace) == [])


def children(api: ApiServer, namespace: str) -> list[str]:
    places = (
        "api/v1/namespaces/{}/pods", "api/v1/namespaces/{}/secrets", "api/v1/namespaces/{}/services",
        "apis/networking.k8s.io/v1/namespaces/{}/networkpolicies", "apis/policy/v1/namespaces/{}/poddisruptionbudgets",
        "api/v1/namespaces/{}/configmaps",
    )  # fmt: skip
    found: list[Any] = [item for p in places for item in api.http.get(f"/{p.format(namespace)}").json()["items"]]
    return [item["metadata"]["name"] for item in found if item["metadata"]["name"].startswith("demo")]


def await_(holds: Callable[[], bool], deadline: float = 60.0) -> None:
    end = time.monotonic() + deadline
    while not holds():
        assert time.monotonic() < end, f"not within {deadline} s"
        time.sleep(0.1)
