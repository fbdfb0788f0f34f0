"""A value that the chart does not know, or cannot use, is refused with its name before anything is
installed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, get_args

import pytest
import yaml

from coxswain.api.values_page import values_page
from coxswain_operator.process import template_policy
from coxswain_operator.settings import Control, TemplatePolicy
from tests.charts import CHART, KUBERNETES, Manifest, helm, of_kind, refusal, render, template, text_of

pytestmark = pytest.mark.binaries("helm")

VALUES = yaml.safe_load((CHART / "values.yaml").read_text())
# Maps whose keys are the user's: labels, annotations, quantities of any resource.
FREE = {
    "commonLabels", "podLabels", "podAnnotations", "nodeSelector", "serviceAccount.annotations", "resources.requests",
    "resources.limits", "metrics.serviceMonitor.labels", "metrics.podMonitor.labels", "metrics.rules.labels",
    "metrics.dashboards.annotations",
}  # fmt: skip


def nested(path: str, value: Any) -> dict[str, Any]:
    """`a.b` and a value as the values that Helm takes."""
    for step in reversed(path.split(".") if path else []):
        value = {step: value}
    result: dict[str, Any] = value
    return result


def mappings(values: dict[str, Any], under: str = "") -> Iterator[str]:
    yield under
    for key, value in values.items():
        if isinstance(value, dict):
            yield from mappings(value, f"{under}.{key}".strip("."))


def operator_pod(values: dict[str, Any]) -> Manifest:
    (deployment,) = of_kind(render(values), "Deployment")
    pod: Manifest = deployment["spec"]["template"]["spec"]
    return pod


@pytest.mark.parametrize("path", sorted(set(mappings(VALUES)) - FREE))
def test_an_unknown_key_is_refused_by_name(path: str) -> None:
    assert "replicaCuont" in refusal(nested(path, {"replicaCuont": 3}))


@pytest.mark.parametrize("path", sorted(FREE))
def test_keys_of_free_maps_are_the_users(path: str) -> None:
    done = template(nested(path, {"example.org/any": "1"}))
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("replicaCount", "two"),
        ("replicaCount", -1),
        ("image.pullPolicy", "Sometimes"),
        ("image.operator.tag", "a tag"),
        ("image.operator.digest", "sha256:beef"),
        ("image.registry", "https://registry.example"),
        ("crds.keep", "yes please"),
        ("watchNamespaces", ["Team_A"]),
        ("managedBy", "no prefix"),
        ("podTemplates.level", "root"),
        ("podTemplates.allow", ["Everything"]),
        ("podTemplates.hostPaths", ["mnt"]),
        ("podTemplates.capabilities", ["cap_ipc_lock"]),
        ("podTemplates.serviceAccounts", ["A"]),
        ("watchNamespaces", ["a", "a"]),
        ("leaderElection.leaseSeconds", 0),
        ("imagePullSecrets", ["plain-name"]),
        ("extraArgs", [7]),
        ("extraEnv", [{"value": "nameless"}]),
        ("tolerations", [{"effect": "Sometimes"}]),
        ("affinity", {"nodeAfinity": {}}),
        ("gangScheduling.backend", "volcano"),
        ("gangScheduling.schedulerName", "No_Name"),
        ("topologySpreadConstraints", [{"topologyKey": "zone"}]),
        ("securityContext.capabilities", {"dorp": ["ALL"]}),
        ("resources.limits", {"memory": "a lot"}),
        ("podDisruptionBudget.maxUnavailable", "half"),
        ("networkPolicy.egress.apiServerPorts", [0]),
        ("metrics.serviceMonitor.interval", "half a minute"),
        ("commonLabels", {"app.kubernetes.io/name": "other"}),
        ("podLabels", {"app.kubernetes.io/component": "other"}),
    ],
)
def test_a_value_that_cannot_be_used_is_refused_at_its_place(path: str, value: Any) -> None:
    assert path.split(".")[-1] in refusal(nested(path, value))


def test_lease_times_in_the_wrong_order_are_refused_with_the_usual_ones() -> None:
    words = refusal({"leaderElection": {"renewSeconds": 20}})
    assert "leaseSeconds (15) must be more than renewSeconds (20)" in words
    assert "15, 10 and 2" in words


@pytest.mark.parametrize("equal", [{"leaseSeconds": 10}, {"renewSeconds": 2}])
def test_lease_times_that_are_equal_are_refused_as_the_operator_refuses_them(equal: dict[str, int]) -> None:
    assert "must be more than" in refusal({"leaderElection": equal})


def test_a_digest_decides_over_a_tag_and_the_registry_stands_before_both() -> None:
    digest = f"sha256:{'0' * 64}"
    pod = operator_pod({"image": {"registry": "registry.example/team", "operator": {"tag": "1", "digest": digest}}})
    (container,) = pod["containers"]
    assert container["image"] == f"registry.example/team/coxswain-operator@{digest}"
    assert "--data-image=registry.example/team/coxswain-data:0.1.0" in container["args"]
    assert "--train-image=registry.example/team/coxswain-train:0.1.0" in container["args"]


def test_what_places_a_pod_arrives_in_the_operators_pods() -> None:
    chosen = {
        "nodeSelector": {"pool": "system"},
        "tolerations": [{"key": "system", "operator": "Exists", "effect": "NoSchedule"}],
        "affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}},
        "topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}],
        "priorityClassName": "system-cluster-critical",
        "imagePullSecrets": [{"name": "registry"}],
        "terminationGracePeriodSeconds": 7,
    }
    pod = operator_pod(chosen)
    assert {key: pod[key] for key in chosen} == chosen


@pytest.mark.parametrize(
    ("path", "value", "argument"),
    [
        ("image.pullPolicy", "Always", "--pull-policy=Always"),
        ("managedBy", "example.com/team", "--managed-by=example.com/team"),
        ("leaderElection.leaseSeconds", 31, "--lease-seconds=31"),
        ("leaderElection.renewSeconds", 11, "--renew-seconds=11"),
        ("leaderElection.retrySeconds", 3, "--retry-seconds=3"),
        ("gangScheduling.backend", "Volcano", "--gang-scheduling=Volcano"),
        ("gangScheduling.schedulerName", "mine", "--gang-scheduler=mine"),
        ("metrics.prometheusNamespace", "monitoring", "--prometheus-namespace=monitoring"),
    ],
)
def test_a_value_for_jobs_and_leaders_reaches_the_operator_as_its_argument(
    path: str, value: Any, argument: str
) -> None:
    (container,) = operator_pod(nested(path, value))["containers"]
    assert argument in container["args"]


def test_the_limit_of_quarantines_reaches_the_operator_with_their_switch() -> None:
    (container,) = operator_pod({"quarantine": {"enabled": True, "limit": 7}})["containers"]
    assert {"--quarantine", "--quarantine-limit=7"} <= set(container["args"])


def test_further_arguments_and_variables_reach_the_operator() -> None:
    (container,) = operator_pod({"extraArgs": ["--host=::"], "extraEnv": [{"name": "A", "value": "b"}]})["containers"]
    assert container["args"][-1] == "--host=::"
    assert container["env"][-1] == {"name": "A", "value": "b"}


def test_the_operator_reads_what_templates_may_set_as_the_chart_writes_it() -> None:
    def policy(values: dict[str, Any]) -> TemplatePolicy:
        (container,) = operator_pod({"podTemplates": values})["containers"]
        (text,) = (a.removeprefix("--pod-templates=") for a in container["args"] if a.startswith("--pod-templates="))
        return template_policy(text)

    assert policy({}) == TemplatePolicy()
    every = {
        "level": "baseline",
        "allow": list(get_args(Control)),
        "capabilities": ["IPC_LOCK"],
        "hostPaths": ["/mnt/a b"],
    }
    names = {"serviceAccounts": [], "priorityClasses": ["a-*"], "schedulers": ["v"]}
    assert policy(every | names | {"platformUser": True}) == TemplatePolicy(
        "baseline", get_args(Control), ("IPC_LOCK",), ("/mnt/a b",), (), ("a-*",), ("v",), platform_user=True
    )


def test_labels_for_everything_reach_everything() -> None:
    bare = [
        m["metadata"]["name"]
        for m in render({"commonLabels": {"team": "a"}, "crds": {"enabled": False}})
        if m["metadata"]["labels"].get("team") != "a"
    ]
    assert bare == []


# Every one is a legal name, and a number, a truth or nothing to YAML where it is not quoted.
ODD = {
    "watchNamespaces": ["on", "null", "0x1f", "7"],
    "metrics": {
        "prometheusNamespace": "yes", "serviceMonitor": {"enabled": True}, "podMonitor": {"enabled": True},
        "dashboards": {"enabled": True, "namespace": "off"}, "rules": {"enabled": True},
    },
    "serviceAccount": {"name": "true"}, "priorityClassName": "1", "nameOverride": "12", "fullnameOverride": "no",
    "networkPolicy": {"egress": {"enabled": True}},
}  # fmt: skip


@pytest.mark.parametrize("namespace", ["123", "true"])
def test_names_that_yaml_reads_as_something_else_stay_names(namespace: str) -> None:
    done = helm(
        "template", "10", CHART, "--namespace", namespace, "--kube-version", KUBERNETES, "--values", "-",
        text=text_of(ODD | {"crds": {"enabled": False}}),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = [m for m in yaml.load_all(done.stdout, yaml.CSafeLoader) if m]
    assert [m["kind"] for m in found if wrong_names(m)] == []
    assert {m["metadata"]["namespace"] for m in of_kind(found, "Role")} == {*ODD["watchNamespaces"], namespace}
    (pod,) = [m["spec"]["template"]["spec"] for m in of_kind(found, "Deployment")]
    assert (pod["serviceAccountName"], pod["priorityClassName"]) == ("true", "1")


def wrong_names(manifest: Manifest) -> list[str]:
    """Paths of the names, namespaces, labels and arguments that are no text."""
    named = ("name", "namespace", "serviceAccountName", "priorityClassName", "app.kubernetes.io/instance",
             "app.kubernetes.io/name", "kubernetes.io/metadata.name")  # fmt: skip
    return [
        path
        for path, value in leaves(manifest)
        if not isinstance(value, str) and (path.endswith(tuple(f"/{n}" for n in named)) or "/args/" in path)
    ]


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    members = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else None
    if members is None:
        yield path, value
    for key, member in members or ():
        yield from leaves(member, f"{path}/{key}")


@pytest.mark.parametrize("release", ["team.a", "1st", "9.9"])
def test_every_name_that_helm_takes_for_a_release_gives_a_service_that_kubernetes_takes(release: str) -> None:
    done = helm(
        "template", release, CHART, "--kube-version", KUBERNETES, "--values", "-",
        text=text_of({"crds": {"enabled": False}}),
    )  # fmt: skip
    (service,) = of_kind([m for m in yaml.load_all(done.stdout, yaml.CSafeLoader) if m], "Service")
    assert re.fullmatch("[a-z]([-a-z0-9]*[a-z0-9])?", service["metadata"]["name"])


def test_no_label_comes_twice_whatever_sets_it() -> None:
    """Kustomize, and so Flux, refuses a key that comes twice; the more special value wins."""
    monitors = {name: {"enabled": True, "labels": {"team": name}} for name in ("serviceMonitor", "podMonitor", "rules")}
    chosen = {
        "commonLabels": {"team": "all", "board": "all"}, "podLabels": {"team": "pod"}, "crds": {"enabled": False},
        "metrics": {**monitors, "dashboards": {"enabled": True, "label": "board", "labelValue": "here"}},
    }  # fmt: skip
    done = template(chosen)
    assert done.returncode == 0, done.stderr
    assert [block for block in label_blocks(done.stdout) if len(set(block)) < len(block)] == []
    found = render(chosen)
    assert of_kind(found, "Deployment")[0]["spec"]["template"]["metadata"]["labels"]["team"] == "pod"
    for kind, name in (("ServiceMonitor", "serviceMonitor"), ("PodMonitor", "podMonitor"), ("PrometheusRule", "rules")):
        assert of_kind(found, kind)[0]["metadata"]["labels"]["team"] == name
    assert {m["metadata"]["labels"]["board"] for m in of_kind(found, "ConfigMap")} == {"here"}


def label_blocks(text: str) -> Iterator[list[str]]:
    """The keys of each mapping of labels."""
    for node in yaml.compose_all(text, yaml.CSafeLoader):
        yield from ([key.value for key, _ in found.value] for found in labels_below(node))


def labels_below(node: Any) -> Iterator[Any]:
    if isinstance(node, yaml.SequenceNode):
        for member in node.value:
            yield from labels_below(member)
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            yield from [value] if key.value == "labels" else labels_below(value)


@pytest.mark.parametrize(
    "path", ["tests", "crds.enabled", "quarantine.limit", "managedBy", "metrics.rules", "image.train.repository"]
)
def test_a_value_that_is_needed_and_taken_away_is_named(path: str) -> None:
    assert f"missing property '{path.split('.')[-1]}'" in refusal(nested(path, None))


def test_a_cluster_that_chooses_users_of_pods_itself_gets_none_from_the_chart() -> None:
    """As OpenShift, which refuses a user outside of the namespace's range."""
    pod = operator_pod({"podSecurityContext": {"runAsUser": None, "runAsGroup": None}})
    assert pod["securityContext"] == {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}


def test_names_stay_within_what_kubernetes_takes() -> None:
    found = [(m["kind"], m["metadata"]["name"]) for m in render({"fullnameOverride": "x" * 63})]
    assert [name for kind, name in found if len(name) > (253 if kind.startswith("ClusterRole") else 63)] == []


@pytest.mark.parametrize(
    ("values", "kinds"),
    [
        ({"rbac": {"create": False, "aggregate": False}}, {"ClusterRole", "ClusterRoleBinding"}),
        ({"serviceAccount": {"create": False}, "tests": {"enabled": False}}, {"ServiceAccount"}),
        ({"podDisruptionBudget": {"enabled": False}}, {"PodDisruptionBudget"}),
        ({"networkPolicy": {"enabled": False}}, {"NetworkPolicy"}),
        ({"tests": {"enabled": False}}, {"Pod"}),
    ],
)
def test_a_switch_takes_its_objects_away(values: dict[str, Any], kinds: set[str]) -> None:
    assert kinds <= {m["kind"] for m in render()}
    assert kinds & {m["kind"] for m in render(values)} == set()


@pytest.mark.parametrize(
    ("switch", "kind"),
    [
        ("serviceMonitor", "ServiceMonitor"),
        ("podMonitor", "PodMonitor"),
        ("dashboards", "ConfigMap"),
        ("rules", "PrometheusRule"),
    ],
)
def test_a_switch_that_is_off_by_default_adds_its_objects(switch: str, kind: str) -> None:
    assert of_kind(render(), kind) == []
    assert of_kind(render({"metrics": {switch: {"enabled": True}}}), kind) != []


def test_egress_is_closed_but_for_what_the_operator_needs() -> None:
    (policy,) = of_kind(
        render({"networkPolicy": {"egress": {"enabled": True, "apiServerPorts": [6443]}}}), "NetworkPolicy"
    )
    ways = policy["spec"]["egress"]
    assert policy["spec"]["policyTypes"] == ["Ingress", "Egress"]
    assert [[p["port"] for p in way["ports"]] for way in ways] == [[53, 53], [6443], [7400]]
    assert ways[-1]["to"][0]["podSelector"] == {"matchLabels": {"coxswain.dev/role": "coordinator"}}


def test_a_value_without_a_comment_cannot_be_added() -> None:
    with pytest.raises(ValueError, match=r"metrics\.silent has no comment"):
        values_page("metrics:\n  silent: true\n")


def test_every_value_has_its_row_in_the_readme() -> None:
    rows = [line for line in values_page((CHART / "values.yaml").read_text()).splitlines() if line.startswith("| `")]
    assert (
        "| `networkPolicy.egress.apiServerPorts` | `[443, 6443]` | Ports of the API server as its endpoints have them. |"
        in rows
    )
    assert [row for row in rows if row.endswith("|  |")] == []


def test_images_without_a_registry_are_refused_before_nodes_look_for_them_elsewhere() -> None:
    words = refusal({"image": {"registry": ""}})
    assert "image.registry is empty, and nodes would look for coxswain-" in words and "docker.io/library" in words
    own = {f"{name}": {"repository": f"ghcr.io/team/{name}"} for name in ("operator", "data", "train")}
    (container,) = operator_pod({"image": {"registry": "", **own}})["containers"]
    assert container["image"] == "ghcr.io/team/operator:0.1.0"
