"""A real API server takes what the chart renders; Helm installs, changes and removes it; its roles
give what they say.
"""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kubernetes.config import load_kube_config

from coxswain.api.kinds import ALWAYS
from coxswain_operator.kubernetes.resources import LEASES, Resource
from tests.api_samples import sample
from tests.charts import CHART, NAMESPACE, PATIENCE, Manifest, helm, is_test, of_kind, operator_rights, render, text_of
from tests.integration.apiserver import ApiServer

pytestmark = pytest.mark.binaries("helm")

ACCOUNT = f"system:serviceaccount:{NAMESPACE}:coxswain"
# Kinds of the chart that no other part of the project has a path for.
PLACES = {
    "ServiceAccount": Resource("v1", "ServiceAccount", "serviceaccounts"),
    "Service": Resource("v1", "Service", "services"),
    "ConfigMap": Resource("v1", "ConfigMap", "configmaps"),
    "Pod": Resource("v1", "Pod", "pods"),
    "Deployment": Resource("apps/v1", "Deployment", "deployments"),
    "NetworkPolicy": Resource("networking.k8s.io/v1", "NetworkPolicy", "networkpolicies"),
    "PodDisruptionBudget": Resource("policy/v1", "PodDisruptionBudget", "poddisruptionbudgets"),
    "Lease": LEASES,
    "Role": Resource("rbac.authorization.k8s.io/v1", "Role", "roles"),
    "RoleBinding": Resource("rbac.authorization.k8s.io/v1", "RoleBinding", "rolebindings"),
    "ClusterRole": Resource("rbac.authorization.k8s.io/v1", "ClusterRole", "clusterroles", namespaced=False),
    "ClusterRoleBinding": Resource(
        "rbac.authorization.k8s.io/v1", "ClusterRoleBinding", "clusterrolebindings", namespaced=False
    ),
    "CustomResourceDefinition": Resource(
        "apiextensions.k8s.io/v1", "CustomResourceDefinition", "customresourcedefinitions", namespaced=False
    ),
}  # fmt: skip
ALL_VALUES: list[dict[str, Any]] = [
    {},
    {"watchNamespaces": ["team-a"], "metrics": {"dashboards": {"enabled": True}, "prometheusNamespace": "monitoring"}},
    {
        "networkPolicy": {"egress": {"enabled": True}},
        "commonLabels": {"team": "a"},
        "imagePullSecrets": [{"name": "x"}],
    },
]


@pytest.fixture(scope="module")
def server() -> Iterator[ApiServer]:
    """A server of its own: Helm must be the first to install the kinds."""
    with ApiServer() as api:
        for name in (NAMESPACE, "team-a", "elsewhere"):
            strict = {"pod-security.kubernetes.io/enforce": "restricted"}
            made = api.http.post("/api/v1/namespaces", json={"metadata": {"name": name, "labels": strict}})
            assert made.status_code == 201, made.text
        yield api


def path_of(manifest: Manifest) -> str:
    meta = manifest["metadata"]
    return PLACES[manifest["kind"]].path(meta.get("namespace", ""), meta["name"])


def dry_run(api: ApiServer, manifest: Manifest) -> str:
    """The server's refusal of an object in a dry run; empty: it accepts it."""
    query = {"dryRun": "All", "fieldManager": "helm", "fieldValidation": "Strict", "force": "true"}
    kind = {"Content-Type": "application/apply-patch+yaml"}  # JSON is YAML
    answer = api.http.patch(path_of(manifest), params=query, headers=kind, json=manifest)
    return (
        f"{answer.text} {answer.headers.get('Warning', '')}" if answer.is_error or "Warning" in answer.headers else ""
    )


def on_server(api: ApiServer, *options: str, text: str = "") -> str:
    """Helm's output on this server. Raises AssertionError when it fails."""
    done = helm(*options, "--namespace", NAMESPACE, "--kubeconfig", str(api.kubeconfig), text=text)
    assert done.returncode == 0, done.stderr
    return done.stdout


def upgrade(api: ApiServer, values: dict[str, Any]) -> str:
    _GIVEN[api.url] = values
    return on_server(api, "upgrade", "--install", "coxswain", str(CHART), "--values", "-", text=text_of(values))


def uninstall(api: ApiServer, *options: str) -> None:
    _GIVEN.pop(api.url, None)
    on_server(api, "uninstall", "coxswain", *options)


_GIVEN: dict[str, dict[str, Any]] = {}  # by server: the values of its release, if there is one


def living(api: ApiServer, manifests: list[Manifest]) -> set[tuple[str, str]]:
    """Those of them that exist."""
    return {(m["kind"], m["metadata"]["name"]) for m in manifests if api.http.get(path_of(m)).status_code == 200}


@pytest.fixture
def installed(server: ApiServer) -> ApiServer:
    """With a release of the chart's own values, perhaps an earlier test's."""
    if _GIVEN.get(server.url) != {}:
        upgrade(server, {})
    return server


@pytest.mark.parametrize("values", ALL_VALUES, ids=["plain", "namespaced", "closed"])
def test_the_server_takes_every_object_without_a_warning(server: ApiServer, values: dict[str, Any]) -> None:
    answers = {f"{m['kind']} {m['metadata']['name']}": dry_run(server, m) for m in render(values)}
    assert {name: words for name, words in answers.items() if words} == {}


def test_pods_are_admitted_where_the_restricted_standard_is_enforced(server: ApiServer) -> None:
    (deployment,) = of_kind(render(), "Deployment")
    template = deployment["spec"]["template"]
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {**template["metadata"], "name": "operator"}}
    where = {"params": {"dryRun": "All"}}
    answer = server.http.post(f"/api/v1/namespaces/{NAMESPACE}/pods", json={**pod, "spec": template["spec"]}, **where)
    assert answer.status_code == 201, answer.text
    template["spec"]["containers"][0]["securityContext"] = {}
    answer = server.http.post(f"/api/v1/namespaces/{NAMESPACE}/pods", json={**pod, "spec": template["spec"]}, **where)
    assert answer.status_code == 403, "the server enforces nothing: this test proves nothing"


def test_helm_installs_what_it_renders_but_not_the_test(installed: ApiServer) -> None:
    rendered = render()
    expected = {(m["kind"], m["metadata"]["name"]) for m in rendered if not is_test(m)}
    assert living(installed, rendered) == expected


def test_a_second_release_for_the_same_jobs_is_refused_and_one_for_others_is_not(installed: ApiServer) -> None:
    def second(**values: Any) -> subprocess.CompletedProcess[str]:
        text = text_of({"crds": {"enabled": False}, **values})
        options = (
            "--namespace",
            "default",
            "--kubeconfig",
            str(installed.kubeconfig),
            "--dry-run=server",
            "--values",
            "-",
        )
        return helm("install", "second", str(CHART), *options, text=text)

    refused = second()
    assert refused.returncode != 0
    assert f"ClusterRole {NAMESPACE}-coxswain-jobs reconciles these jobs in all namespaces already" in refused.stderr
    for values in ({"managedBy": "example.org/second"}, {"watchNamespaces": ["default"]}):
        other = second(**values)
        assert other.returncode == 0, other.stderr
    upgrade(installed, {"replicaCount": 1})  # and the first is not in its own way


def test_an_upgrade_changes_what_the_values_change(installed: ApiServer) -> None:
    upgrade(installed, {"replicaCount": 3, "podDisruptionBudget": {"enabled": False}})
    (deployment,) = of_kind(render(), "Deployment")
    assert installed.http.get(path_of(deployment)).json()["spec"]["replicas"] == 3
    assert ("PodDisruptionBudget", "coxswain") not in living(installed, render())


def test_an_upgrade_brings_the_changes_of_kinds(installed: ApiServer) -> None:
    crd = next(m for m in of_kind(render(), "CustomResourceDefinition") if m["spec"]["names"]["kind"] == "TrainingJob")
    old = {"spec": {"names": {"shortNames": ["old"]}}}
    merge = {"Content-Type": "application/merge-patch+json"}
    assert installed.http.patch(path_of(crd), json=old, headers=merge).status_code == 200
    upgrade(installed, {"replicaCount": 1})
    assert installed.http.get(path_of(crd)).json()["spec"]["names"]["shortNames"] == ["tj"]


def test_uninstalling_leaves_the_kinds_and_their_objects_and_nothing_else(installed: ApiServer) -> None:
    assert installed.http.post(installed.path("datasources"), json=sample("DataSource")).status_code == 201
    uninstall(installed)
    left = living(installed, render())
    assert {kind for kind, _ in left} == {"CustomResourceDefinition"}
    assert len(left) == len(ALWAYS)
    assert installed.http.get(installed.path("datasources", "code")).status_code == 200
    upgrade(installed, {})  # and they are taken over again


def test_a_rollback_brings_the_kinds_of_the_release_before_back_and_keeps_all_objects(
    installed: ApiServer, tmp_path: Path
) -> None:
    """That release has another short name of jobs."""
    before = shutil.copytree(CHART, tmp_path / "coxswain")
    jobs = before / "templates" / "trainingjobs.coxswain.dev.yaml"
    jobs.write_text(jobs.read_text().replace("- tj\n", "- old\n"))
    on_server(installed, "upgrade", "coxswain", str(before), "--values", "-", text=text_of({}))
    made = installed.http.post(installed.path("trainingjobs"), json=sample("TrainingJob"))
    assert made.status_code == 201, made.text
    upgrade(installed, {})
    assert short_names(installed) == ["tj"]
    on_server(installed, "rollback", "coxswain")
    assert short_names(installed) == ["old"]
    name = made.json()["metadata"]["name"]
    stored = installed.http.get(installed.path("trainingjobs", name)).json()
    assert (stored["metadata"]["uid"], stored["spec"]) == (made.json()["metadata"]["uid"], made.json()["spec"])
    upgrade(installed, {})


def short_names(api: ApiServer) -> list[str]:
    crd = next(m for m in of_kind(render(), "CustomResourceDefinition") if m["spec"]["names"]["kind"] == "TrainingJob")
    found: list[str] = api.http.get(path_of(crd)).json()["spec"]["names"]["shortNames"]
    return found


def test_kinds_that_an_uninstalled_release_left_are_taken_over_by_one_elsewhere_where_that_is_asked_for(
    installed: ApiServer,
) -> None:
    assert installed.http.post(installed.path("datamixes"), json=sample("DataMix")).status_code == 201
    uninstall(installed)

    def elsewhere(*options: str) -> subprocess.CompletedProcess[str]:
        place = ("--namespace", "elsewhere", "--kubeconfig", str(installed.kubeconfig))
        return helm(*options, *place, text=text_of({}))

    install = ("install", "coxswain", str(CHART), "--values", "-")
    refused = elsewhere(*install)
    assert refused.returncode != 0 and "exists and cannot be imported into the current release" in refused.stderr
    assert elsewhere(*install, "--take-ownership").returncode == 0
    assert elsewhere("uninstall", "coxswain").returncode == 0
    assert installed.http.get(installed.path("datamixes", "mix")).status_code == 200
    on_server(installed, *install, "--take-ownership", text=text_of({}))
    upgrade(installed, {})


@pytest.mark.slow
@pytest.mark.timeout(2 * PATIENCE)
def test_uninstalling_takes_the_kinds_along_where_that_is_wished(installed: ApiServer) -> None:
    """API servers since 1.34 can take minutes: a restarted cache refuses the clean-up of kinds."""
    upgrade(installed, {"crds": {"keep": False}})
    uninstall(installed, "--wait")
    assert living(installed, render()) == set()


def may(api: ApiServer, verb: str, resource: str, namespace: str, name: str = "") -> bool:
    """Whether the operator's account may do it, by the server's own judgement.

    `resource`: `group/plural[/subresource]`.
    """
    group, plural, *sub = resource.split("/")
    attributes = {
        "verb": verb, "group": group, "resource": plural, "subresource": "".join(sub), "namespace": namespace, "name": name,
    }  # fmt: skip
    review = {
        "spec": {"user": ACCOUNT, "groups": [f"system:serviceaccounts:{NAMESPACE}"], "resourceAttributes": attributes}
    }
    answer = api.http.post("/apis/authorization.k8s.io/v1/subjectaccessreviews", json=review)
    return bool(answer.json()["status"]["allowed"])


ALLOWED = (
    ("list", "coxswain.dev/trainingjobs"), ("watch", "coxswain.dev/datamixes"), ("patch", "coxswain.dev/trainingjobs/status"),
    ("delete", "coxswain.dev/trainingjobs"), ("create", "/pods"), ("delete", "/pods"), ("get", "/namespaces"),
    ("create", "/secrets"), ("create", "policy/poddisruptionbudgets"), ("create", "events.k8s.io/events"),
)  # fmt: skip
DENIED = (
    ("get", "/secrets"), ("list", "/secrets"),
    ("watch", "/secrets"), ("update", "/secrets"), ("create", "/pods/exec"), ("update", "/pods"),
    ("update", "coxswain.dev/trainingjobs"), ("create", "coxswain.dev/trainingjobs"), ("deletecollection", "/pods"),
    ("get", "/serviceaccounts"), ("create", "/serviceaccounts/token"), ("create", "rbac.authorization.k8s.io/roles"),
    ("list", "/namespaces"), ("patch", "/nodes"), ("patch", "/pods"), ("list", "coordination.k8s.io/leases"),
)  # fmt: skip


def test_the_operator_may_do_its_work_everywhere_and_no_more(installed: ApiServer) -> None:
    assert [ask for ask in ALLOWED if not may(installed, *ask, "elsewhere")] == []
    assert [ask for ask in DENIED if may(installed, *ask, "elsewhere")] == []
    assert may(installed, "list", "/nodes", "")


def test_the_operator_may_renew_its_own_lease_and_no_other(installed: ApiServer) -> None:
    lease = "coordination.k8s.io/leases"
    assert may(installed, "create", lease, NAMESPACE)
    assert may(installed, "update", lease, NAMESPACE, "coxswain-operator")
    assert not may(installed, "update", lease, NAMESPACE, "other")
    assert not may(installed, "update", lease, "elsewhere", "coxswain-operator")


def test_an_operator_of_one_namespace_may_do_nothing_in_another(installed: ApiServer) -> None:
    upgrade(installed, {"watchNamespaces": ["team-a"], "rbac": {"nodes": False}})
    assert [ask for ask in ALLOWED if not may(installed, *ask, "team-a")] == []
    assert [ask for ask in (*ALLOWED, *DENIED) if may(installed, *ask, "elsewhere")] == []
    assert not may(installed, "list", "/nodes", "")


def test_the_rights_can_be_installed_without_the_operator(server: ApiServer) -> None:
    assert {f"{m['kind']} {m['metadata']['name']}": dry_run(server, m) for m in operator_rights()}.keys() == {
        "ServiceAccount coxswain", "Role coxswain-lease", "RoleBinding coxswain-lease",
        *(f"ClusterRole {NAMESPACE}-coxswain-{name}" for name in ("jobs", "nodes", "viewer", "editor")),
        *(f"ClusterRoleBinding {NAMESPACE}-coxswain-{name}" for name in ("jobs", "nodes")),
    }  # fmt: skip


@pytest.fixture
def helm_test(installed: ApiServer, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The program of `helm test`, with access by kubeconfig instead of a pod's, to a server whose
    Lease is held.
    """
    spec = importlib.util.spec_from_file_location("helm_test", CHART / "files" / "helm_test.py")
    assert spec is not None and spec.loader is not None
    program = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(program)
    monkeypatch.setattr(program.config, "load_incluster_config", lambda: load_kube_config(str(installed.kubeconfig)))
    hold(installed, "one")
    return program


def hold(api: ApiServer, identity: str) -> None:
    merge = {"Content-Type": "application/merge-patch+json"}
    lease = {"spec": {"holderIdentity": identity}}
    assert api.http.patch(LEASES.path(NAMESPACE, "coxswain-operator"), json=lease, headers=merge).status_code == 200


def test_an_upgrade_leaves_the_lease_with_its_holder(installed: ApiServer) -> None:
    hold(installed, "one")
    upgrade(installed, {"replicaCount": 3, "commonLabels": {"team": "a"}})
    lease = installed.http.get(LEASES.path(NAMESPACE, "coxswain-operator")).json()
    assert (lease["spec"], lease["metadata"]["labels"]["team"]) == ({"holderIdentity": "one"}, "a")


def test_helm_test_passes_on_a_release_that_leads_and_judges(
    helm_test: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    helm_test.main(NAMESPACE)
    assert capsys.readouterr().out == "one leads\njobs are judged\n"


def test_helm_test_fails_where_the_kinds_are_not_those_of_the_release(helm_test: Any) -> None:
    helm_test.JOB["spec"]["newField"] = 1
    with pytest.raises(SystemExit, match=r"a right TrainingJob was refused: .*newField"):
        helm_test.main(NAMESPACE)


def test_helm_test_fails_where_the_kind_of_quarantines_is_switched_on_and_not_served(helm_test: Any) -> None:
    helm_test.main(NAMESPACE, "trainingjobs")
    with pytest.raises(SystemExit, match=r"the API server serves no nodequarantines: set crds\.enabled=true"):
        helm_test.main(NAMESPACE, "trainingjobs", "nodequarantines")


def test_helm_test_fails_without_a_leader(helm_test: Any) -> None:
    with pytest.raises(SystemExit, match="no operator has taken the Lease elsewhere/coxswain-operator within 0 s"):
        helm_test.main("elsewhere", seconds=0)
