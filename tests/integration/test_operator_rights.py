"""The operator runs a job's lifecycle with the chart's roles: nothing is denied, and nothing is granted in vain."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from coxswain.api.crd import crds
from tests.charts import NAMESPACE, Manifest, operator_rights
from tests.integration.apiserver import ApiServer
from tests.integration.audit import Request, requests
from tests.integration.lifecycle import Stage
from tests.integration.operator_parts import new_namespace
from tests.integration.processes import listening, operator, play

pytestmark = pytest.mark.binaries("helm")

ACCOUNT = f"system:serviceaccount:{NAMESPACE}:coxswain"
Right = tuple[str, str, str]  # group, resource, verb
# Granted, and unused in the baseline. Anything else that is unused should not be granted.
SPARE: dict[Right, str] = {
    **{("", "nodes", verb): "a failure rule that names node conditions" for verb in ("list", "watch")},
    ("", "secrets", "get"): "an operator that does not make its key itself",
    ("coxswain.dev", "datasources/status", "patch"): "a coordinator that reports about sources",
    ("", "services", "delete"): "a child is created again because its content has changed",
    ("networking.k8s.io", "networkpolicies", "delete"): "a child is created again because its content has changed",
    **{
        ("policy", "poddisruptionbudgets", verb): "a gang that its operator sees whole" for verb in ("create", "delete")
    },
    ("coxswain.dev", "trainingjobs/finalizers", "update"): "a cluster that guards blockOwnerDeletion",
    ("events.k8s.io", "events", "patch"): "an event that is counted up",
}
LISTED = "list"  # the right to list a kind includes what get would show


@pytest.fixture(scope="module")
def server() -> Iterator[ApiServer]:
    """One of our own: an operator of all namespaces would meddle with other tests' jobs."""
    with ApiServer() as api:
        api.install(crds())
        assert api.http.post("/api/v1/namespaces", json={"metadata": {"name": NAMESPACE}}).is_success
        yield api


def place(manifest: Manifest) -> str:
    root = "/api/v1" if manifest["apiVersion"] == "v1" else f"/apis/{manifest['apiVersion']}"
    namespace = manifest["metadata"].get("namespace")
    return f"{root}{f'/namespaces/{namespace}' if namespace else ''}/{manifest['kind'].lower()}s"


@pytest.mark.parametrize("everywhere", [True, False], ids=["all namespaces", "one namespace"])
def test_the_charts_roles_are_enough_and_not_too_much(server: ApiServer, tmp_path: Path, everywhere: bool) -> None:
    namespace = new_namespace(server)
    rights = operator_rights({} if everywhere else {"watchNamespaces": [namespace]})
    for manifest in rights:
        answer = server.http.post(place(manifest), json=manifest)
        assert answer.is_success, answer.text
    try:
        live(server, namespace, tmp_path, () if everywhere else ("--namespace", namespace))
        asked = list(requests(server, ACCOUNT))
        assert [r for r in asked if r.code == 403] == []
        assert SPARE.keys() - granted(rights) == set()
        unused = granted(rights) - used(asked) - SPARE.keys()
        assert {r for r in unused if not (r[2] == "get" and (*r[:2], LISTED) in granted(rights))} == set()
    finally:
        for manifest in rights:
            server.http.delete(f"{place(manifest)}/{manifest['metadata']['name']}")


def live(server: ApiServer, namespace: str, tmp_path: Path, options: tuple[str, ...]) -> None:
    """A job's life under an operator that has the account's token; at the end the job's time to live is over."""
    path = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/coxswain/token"
    token = server.http.post(path, json={"spec": {"expirationSeconds": 3600}}).json()["status"]["token"]
    access = server.access_for(tmp_path / "kubeconfig", token)
    child = operator(access, tmp_path / "operator.log", "--operator-namespace", NAMESPACE, *options)
    try:
        with listening(server.address) as coordinator:
            stage = Stage(server, namespace, coordinator)
            play(stage)
            stage.edit(ttlSecondsAfterFinished=1)
            child.wait_until(lambda: stage.job["kind"] == "Status")
    finally:
        child.process.terminate()
        end = time.monotonic() + 20
        while child.process.poll() is None and time.monotonic() < end:
            time.sleep(0.05)
        child.stop()


def granted(rights: list[Manifest]) -> set[Right]:
    """By the roles that are bound; others are for people."""
    bound = {m["roleRef"]["name"] for m in rights if "roleRef" in m}
    rules = [rule for m in rights if m["metadata"]["name"] in bound for rule in m.get("rules", ())]
    return {(g, r, v) for rule in rules for g in rule["apiGroups"] for r in rule["resources"] for v in rule["verbs"]}


def used(asked: list[Request]) -> set[Right]:
    return {r.right for r in asked if r.code < 400}
