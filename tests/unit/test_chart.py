"""The chart says what crds/ says, and its objects keep the promises of docs/security.md whatever is
switched.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from coxswain.api.crd import crd
from coxswain.api.kinds import ALWAYS, KINDS
from tests.charts import (
    CHART,
    KUBERNETES,
    NAMESPACE,
    REGISTRY,
    Manifest,
    helm,
    is_test,
    of_kind,
    operator_rights,
    render,
)

pytestmark = pytest.mark.binaries("helm")

ROLES = ("ClusterRole", "Role")


@pytest.fixture(scope="module")
def plain() -> list[Manifest]:
    """The chart as it is, without any value."""
    return render()


def without_keep(crd: Manifest) -> Manifest:
    return {**crd, "metadata": {k: v for k, v in crd["metadata"].items() if k != "annotations"}}


def deployment(manifests: list[Manifest]) -> Manifest:
    (found,) = of_kind(manifests, "Deployment")
    return found


def operator(manifests: list[Manifest]) -> Manifest:
    """The operator's container."""
    (found,) = deployment(manifests)["spec"]["template"]["spec"]["containers"]
    container: Manifest = found
    return container


def rules(manifests: list[Manifest]) -> list[dict[str, Any]]:
    return [rule for role in of_kind(manifests, *ROLES) for rule in role["rules"]]


def test_helm_finds_no_fault() -> None:
    done = helm("lint", "--strict", CHART, "--set", f"image.registry={REGISTRY}")
    assert done.returncode == 0, done.stdout


NOTES = """
kind: ConfigMap
metadata: {name: notes}
data: {notes: {{ include (print .Template.BasePath "/NOTES.txt") . | toJson }}}
"""


def notes(folder: Path, registry: str) -> str:
    """What Helm says after an installation: without a server it does so only where an object has the text."""
    copy = shutil.copytree(CHART, folder / registry.replace("/", "-"))
    (copy / "templates" / "notes.yaml").write_text(NOTES)
    parts = [f"image.{part}.repository={registry}/{part}" for part in ("operator", "data", "train")]
    options = ("--kube-version", KUBERNETES, "--set", ",".join(parts), "--show-only", "templates/notes.yaml")
    done = helm("template", "coxswain", copy, *options)
    assert done.returncode == 0, done.stderr
    said: str = yaml.safe_load(done.stdout)["data"]["notes"]
    return said


def test_the_notes_speak_of_loading_images_only_where_no_registry_has_them(tmp_path: Path) -> None:
    """`image.registry` is empty, too, where every repository has a registry of its own."""
    elsewhere, local = notes(tmp_path, "registry.example/team"), notes(tmp_path, "localhost")
    assert "kubectl get tj" in elsewhere and "load it" not in elsewhere
    assert [f"localhost/{part}:" in local for part in ("operator", "data", "train")] == [True] * 3
    assert local.count("load it into every node's container runtime") == 3


def test_crds_are_those_of_the_models_and_stay_on_uninstall(plain: list[Manifest]) -> None:
    rendered = {m["metadata"]["name"]: m for m in of_kind(plain, "CustomResourceDefinition")}
    assert {name: without_keep(m) for name, m in rendered.items()} == {
        made["metadata"]["name"]: json.loads(json.dumps(made)) for made in map(crd, ALWAYS)
    }
    assert {m["metadata"]["annotations"]["helm.sh/resource-policy"] for m in rendered.values()} == {"keep"}


def test_crds_go_with_the_release_where_that_is_wished() -> None:
    found = of_kind(render({"crds": {"keep": False}}), "CustomResourceDefinition")
    assert len(found) == len(ALWAYS)
    assert [m for m in found if "annotations" in m["metadata"]] == []


def test_quarantine_has_its_kind_its_option_and_its_rights_only_behind_the_switch(plain: list[Manifest]) -> None:
    switched = render({"crds": {"enabled": True}, "quarantine": {"enabled": True, "limit": 3}})
    assert len(of_kind(switched, "CustomResourceDefinition")) == len(KINDS)
    added = {(m["kind"], m["metadata"]["name"]) for m in switched} - {(m["kind"], m["metadata"]["name"]) for m in plain}
    role = f"{NAMESPACE}-coxswain-quarantine"
    assert added == {
        ("CustomResourceDefinition", "nodequarantines.coxswain.dev"), ("ClusterRole", role), ("ClusterRoleBinding", role),
    }  # fmt: skip
    (before,), (after,) = (of_kind(m, "Deployment") for m in (plain, switched))
    options = [m["spec"]["template"]["spec"]["containers"][0]["args"] for m in (before, after)]
    assert set(options[1]) - set(options[0]) == {"--quarantine", "--quarantine-limit=3"}
    asked = [m["spec"]["containers"][0]["args"][1:] for ms in (plain, switched) for m in of_kind(ms, "Pod")]
    assert asked == [[NAMESPACE], [NAMESPACE, "nodequarantines"]]


def test_crds_stay_out_where_they_are_kept_elsewhere() -> None:
    assert of_kind(render({"crds": {"enabled": False}}), "CustomResourceDefinition") == []


def test_two_operators_run_spread_over_nodes_and_never_both_leave_for_a_drain(plain: list[Manifest]) -> None:
    spec = deployment(plain)["spec"]
    (budget,) = of_kind(plain, "PodDisruptionBudget")
    labels = spec["template"]["metadata"]["labels"].items()
    (spread,) = spec["template"]["spec"]["topologySpreadConstraints"]
    assert (spec["replicas"], budget["spec"]["maxUnavailable"]) == (2, 1)
    assert budget["spec"]["unhealthyPodEvictionPolicy"] == "AlwaysAllow", "operators that wait for rights block a drain"
    assert budget["spec"]["selector"]["matchLabels"].items() <= labels
    assert spread["labelSelector"]["matchLabels"].items() <= labels
    assert spread["matchLabelKeys"] == ["pod-template-hash"], "pods of the release before would count in an upgrade"
    assert spec["selector"]["matchLabels"].items() <= labels


def test_the_operator_is_asked_for_its_health_where_it_answers(plain: list[Manifest]) -> None:
    container = operator(plain)
    assert container["ports"] == [{"name": "http", "containerPort": 8080}]
    assert "--port=8080" in container["args"]
    paths = {probe: container[probe]["httpGet"]["path"] for probe in container if probe.endswith("Probe")}
    assert paths == {"startupProbe": "/healthz", "livenessProbe": "/healthz", "readinessProbe": "/readyz"}


def test_an_operator_that_starts_slowly_is_given_a_minute_and_one_that_hangs_half_of_it(plain: list[Manifest]) -> None:
    """On a node that pulls images a start takes long; a kill makes it begin again."""
    probes = {name: operator(plain)[name] for name in ("startupProbe", "livenessProbe")}
    seconds = {name: probe["periodSeconds"] * probe["failureThreshold"] for name, probe in probes.items()}
    assert seconds == {"startupProbe": 60, "livenessProbe": 30}


def test_every_pod_keeps_the_restricted_pod_security_standard(plain: list[Manifest]) -> None:
    pods = [deployment(plain)["spec"]["template"]["spec"], *(m["spec"] for m in of_kind(plain, "Pod"))]
    assert len(pods) == 2
    for pod in pods:
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert not pod.get("hostNetwork") and not pod.get("hostPID") and not pod.get("hostIPC")
        for container in pod["containers"]:
            context = container["securityContext"]
            assert context["allowPrivilegeEscalation"] is False
            assert context["readOnlyRootFilesystem"] is True
            assert context["capabilities"] == {"drop": ["ALL"]}
            assert {"requests", "limits"} <= container["resources"].keys()
        assert {kind for volume in pod.get("volumes", ()) for kind in volume if kind != "name"} <= {"emptyDir"}
        assert all("sizeLimit" in volume["emptyDir"] for volume in pod.get("volumes", ())), (
            "a full /tmp fills the node's disk"
        )


def test_no_rule_has_a_wildcard() -> None:
    everything = render({"watchNamespaces": ["team-a"]}) + render()
    assert [r for r in rules(everything) for key in ("apiGroups", "resources", "verbs") if "*" in r[key]] == []


def test_no_role_lists_secrets_or_changes_foreign_objects() -> None:
    for rule in rules(render()):
        if "secrets" in rule["resources"]:
            assert rule["verbs"] == ["create"] or rule["resourceNames"] == ["coxswain-operator-key"]
        assert {"update", "deletecollection", "escalate", "bind", "impersonate"} & set(rule["verbs"]) == set() or (
            rule["apiGroups"] in (["coxswain.dev"], ["coordination.k8s.io"])
        )


def test_secrets_of_jobs_are_read_only_where_that_is_asked_for_and_the_key_only_in_the_operators_namespace() -> None:
    def verbs(values: dict[str, Any]) -> dict[tuple[str, str], list[str]]:
        found = [(m, r) for m in operator_rights(values) for r in m.get("rules", ()) if "secrets" in r["resources"]]
        return {
            (m["metadata"].get("namespace", ""), ",".join(r.get("resourceNames", ()))): r["verbs"] for m, r in found
        }

    own = {(NAMESPACE, ""): ["create"], (NAMESPACE, "coxswain-operator-key"): ["get"]}
    assert verbs({}) == {("", ""): ["create"], **own}
    assert verbs({"rbac": {"readTokens": True}}) == {("", ""): ["create", "get"], **own}


def test_the_operator_never_writes_a_spec() -> None:
    written = {
        (resource, verb)
        for rule in rules(operator_rights({"rbac": {"aggregate": False}}))
        for resource in rule["resources"]
        for verb in rule["verbs"]
        if rule["apiGroups"] == ["coxswain.dev"] and verb not in ("get", "list", "watch")
    }
    assert {(r, v) for r, v in written if not r.endswith(("/status", "/finalizers"))} == {("trainingjobs", "delete")}
    assert {v for r, v in written if r.endswith("/status")} == {"patch"}


def test_an_operator_of_some_namespaces_has_no_right_elsewhere() -> None:
    found = operator_rights({"watchNamespaces": ["team-a", "team-b"], "rbac": {"nodes": False, "aggregate": False}})
    assert {m["kind"] for m in found} == {"ServiceAccount", "Role", "RoleBinding"}
    places = [m["metadata"]["namespace"] for m in found if m["metadata"]["name"].endswith("-jobs")]
    assert sorted(places) == ["team-a", "team-a", "team-b", "team-b"]


KUEUE = {
    ("", "pods", "patch"),
    *(("kueue.x-k8s.io", "workloads", verb) for verb in ("list", "create", "delete")),
    ("kueue.x-k8s.io", "workloadpriorityclasses", "get"),
    ("scheduling.k8s.io", "priorityclasses", "get"),
}
VERBS = ("list", "watch", "create", "delete")
NATIVE = {("scheduling.k8s.io", plural, verb) for plural in ("workloads", "podgroups") for verb in VERBS}
VOLCANO, COSCHEDULING = (
    {(group, "podgroups", verb) for verb in VERBS} for group in ("scheduling.volcano.sh", "scheduling.x-k8s.io")
)


@pytest.mark.parametrize(
    ("values", "added"),
    [
        ({"rbac": {"kueue": True}}, KUEUE),
        ({"gangScheduling": {"backend": "Native"}}, NATIVE),
        ({"gangScheduling": {"backend": "Volcano"}}, VOLCANO),
        ({"gangScheduling": {"backend": "Coscheduling", "schedulerName": "second"}}, COSCHEDULING),
        ({"gangScheduling": {"backend": "Auto"}}, NATIVE | VOLCANO | COSCHEDULING),
    ],
)
def test_rights_for_queues_and_gangs_are_there_only_where_a_value_asks_for_them(
    plain: list[Manifest], values: dict[str, Any], added: set[tuple[str, str, str]]
) -> None:
    manifests = render(values)
    assert rights(manifests) - rights(plain) == added
    assert rights(plain) & (KUEUE | NATIVE | VOLCANO | COSCHEDULING) == set()
    asked = values.get("gangScheduling", {"backend": "None"})
    args = operator(manifests)["args"]
    assert f"--gang-scheduling={asked['backend']}" in args
    named = [f"--gang-scheduler={name}" for name in asked.values() if name == "second"]
    assert [a for a in args if a.startswith("--gang-scheduler=")] == named


def rights(manifests: list[Manifest]) -> set[tuple[str, str, str]]:
    found = rules(manifests)
    return {(g, r, v) for rule in found for g in rule["apiGroups"] for r in rule["resources"] for v in rule["verbs"]}


def test_an_operator_of_some_namespaces_gets_their_names() -> None:
    args = operator(render({"watchNamespaces": ["team-a", "team-b"]}))["args"]
    assert [a for a in args if a.startswith("--namespace")] == ["--namespace=team-a", "--namespace=team-b"]


def test_rights_are_the_same_everywhere_or_in_some_namespaces() -> None:
    everywhere = {m["metadata"]["name"]: m["rules"] for m in of_kind(operator_rights(), *ROLES)}
    some = {m["metadata"]["name"]: m["rules"] for m in of_kind(operator_rights({"watchNamespaces": ["a"]}), *ROLES)}
    assert everywhere == some


@pytest.mark.parametrize("values", [{}, {"watchNamespaces": ["team-a"]}, {"serviceAccount": {"name": "robot"}}])
def test_every_binding_binds_a_role_of_the_release_to_an_account_of_it(values: dict[str, Any]) -> None:
    manifests = render(values)
    known = {(m["kind"], m["metadata"].get("namespace"), m["metadata"]["name"]) for m in manifests}
    bindings = of_kind(manifests, "ClusterRoleBinding", "RoleBinding")
    assert bindings
    for binding in bindings:
        reference, (subject,) = binding["roleRef"], binding["subjects"]
        assert (reference["kind"], binding["metadata"].get("namespace"), reference["name"]) in known
        assert ("ServiceAccount", subject["namespace"], subject["name"]) in known


def test_an_operator_is_named_after_its_pod_and_no_other_that_ever_was(plain: list[Manifest]) -> None:
    container = operator(plain)
    sources = {at["name"]: at["valueFrom"]["fieldRef"]["fieldPath"] for at in container["env"]}
    assert sources == {"POD_NAME": "metadata.name", "POD_UID": "metadata.uid"}
    assert "--identity=$(POD_NAME)_$(POD_UID)" in container["args"]


def test_an_operator_has_its_account_and_the_token_of_it(plain: list[Manifest]) -> None:
    pod = deployment(plain)["spec"]["template"]["spec"]
    (account,) = [m for m in of_kind(plain, "ServiceAccount") if not is_test(m)]
    assert pod["serviceAccountName"] == account["metadata"]["name"]
    assert pod["automountServiceAccountToken"] is True


def test_the_lease_goes_with_the_release_and_what_it_says_is_the_operators(plain: list[Manifest]) -> None:
    (lease,) = of_kind(plain, "Lease")
    assert (lease["metadata"]["name"], lease["metadata"]["namespace"]) == ("coxswain-operator", NAMESPACE)
    assert "spec" not in lease


def test_only_the_lease_of_the_operators_own_namespace_can_be_renewed(plain: list[Manifest]) -> None:
    (lease,) = [m for m in of_kind(plain, "Role") if m["metadata"]["name"].endswith("-lease")]
    assert lease["metadata"]["namespace"] == NAMESPACE
    named = [r["resourceNames"] for r in lease["rules"] if set(r["verbs"]) != {"create"}]
    assert named == [["coxswain-operator"], ["coxswain-operator-key"]]


def test_users_get_rights_through_aggregated_roles(plain: list[Manifest]) -> None:
    prefix = "rbac.authorization.k8s.io/aggregate-to-"
    gains = {
        m["metadata"]["name"]: {k.removeprefix(prefix) for k in m["metadata"]["labels"] if k.startswith(prefix)}
        for m in of_kind(plain, "ClusterRole")
    }
    name = f"{NAMESPACE}-coxswain"
    assert gains[f"{name}-viewer"] == {"view", "edit", "admin"}
    assert gains[f"{name}-editor"] == {"edit", "admin"}
    assert gains[f"{name}-jobs"] == gains[f"{name}-nodes"] == set()


def test_people_write_the_four_kinds_and_their_scale_and_no_status_and_no_quarantine() -> None:
    roles = {m["metadata"]["name"]: m for m in of_kind(render(), "ClusterRole")}
    kinds = ("trainingjobs", "datasources", "datamixes", "parallelismpolicies")
    shown = (*kinds, "trainingjobs/status", "trainingjobs/scale")
    written = {(kind, verb) for kind in kinds for verb in ("create", "update", "patch", "delete", "deletecollection")}
    scaled = {("trainingjobs/scale", verb) for verb in ("update", "patch")}
    for name, gained in (
        ("viewer", {(kind, verb) for kind in shown for verb in ("get", "list", "watch")}),
        ("editor", written | scaled),
    ):
        assert rights([roles[f"{NAMESPACE}-coxswain-{name}"]]) == {("coxswain.dev", *right) for right in gained}


def test_releases_of_one_name_in_two_namespaces_share_no_object_but_the_kinds(plain: list[Manifest]) -> None:
    other = render({}, "--namespace", "elsewhere")
    shared = {identity(m) for m in plain} & {identity(m) for m in other}
    assert {kind for kind, *_ in shared} == {"CustomResourceDefinition"}


def identity(manifest: Manifest) -> tuple[str, str, str]:
    return manifest["kind"], manifest["metadata"].get("namespace", ""), manifest["metadata"]["name"]


def test_the_test_pod_may_create_jobs_only_while_it_runs(plain: list[Manifest]) -> None:
    own = [m for m in plain if m["metadata"]["name"] == "coxswain-test"]
    assert {m["kind"] for m in own} == {"Pod", "ServiceAccount", "Role", "RoleBinding"}
    assert all(is_test(m) for m in own)
    policies = {m["kind"]: m["metadata"]["annotations"]["helm.sh/hook-delete-policy"] for m in own}
    assert all("hook-succeeded" in policy for policy in policies.values())
    assert all("hook-failed" in policies[kind] for kind in policies if kind != "Pod")


def test_every_object_has_the_labels_of_its_release(plain: list[Manifest]) -> None:
    bare = [
        (m["kind"], m["metadata"]["name"])
        for m in plain
        if m["kind"] != "CustomResourceDefinition"
        and m["metadata"].get("labels", {}).get("app.kubernetes.io/part-of") != "coxswain"
    ]
    assert bare == []


def test_only_the_named_prometheus_reaches_the_operator() -> None:
    def ingress(values: dict[str, Any]) -> list[dict[str, Any]]:
        (policy,) = of_kind(render(values), "NetworkPolicy")
        found: list[dict[str, Any]] = policy["spec"]["ingress"]
        return found

    assert ingress({}) == []
    (way,) = ingress({"metrics": {"prometheusNamespace": "monitoring"}})
    assert way["from"] == [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}]
    assert way["ports"] == [{"port": 8080, "protocol": "TCP"}]


def test_plain_manifests_are_what_helm_installs_and_the_namespace_first() -> None:
    command = [sys.executable, CHART.parent / "plain.py", "--set", "image.registry=registry.example"]
    written = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, timeout=60).stdout
    namespace, *rest = [m for m in yaml.load_all(written, yaml.CSafeLoader) if m]
    assert (namespace["kind"], namespace["metadata"]["name"]) == ("Namespace", NAMESPACE)
    assert rest == [
        m for m in render({"image": {"registry": "registry.example"}, "crds": {"enabled": True}}) if not is_test(m)
    ]


def test_plain_manifests_refuse_what_the_chart_refuses() -> None:
    command = [sys.executable, CHART.parent / "plain.py", "--set", "replicaCuont=3"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode != 0 and done.stdout == "" and "replicaCuont" in done.stderr
