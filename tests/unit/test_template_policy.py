"""What an administrator admits in pod templates: each fence tried from both sides, before any pod exists."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from coxswain.errors import Refused
from coxswain_operator.children.pod_security import violations
from coxswain_operator.process import template_policy
from coxswain_operator.reconcile.context import build_context
from coxswain_operator.settings import Settings
from coxswain_operator.views import Manifest
from tests.unit.fake_cluster import with_job
from tests.unit.reconcile_scenes import NOW, Scene
from tests.unit.test_reconcile_children import made
from tests.unit.test_reconcile_lifecycle import passes

TEMPLATE = "spec.trainers.template.spec"
SHIPPER = {"name": "shipper", "image": "logs"}
MSGMAX = {"name": "kernel.msgmax", "value": "1"}
TOKEN = {"projected": {"sources": [{"configMap": {"name": "c"}}, {"serviceAccountToken": {"path": "t"}}]}}


def of_trainer(**context: Any) -> Manifest:
    return {"containers": [SHIPPER, {"name": "trainer", "securityContext": context}]}


# What a template sets, its place, what the chart must say for it, and what nearly says so.
FENCES: list[tuple[Manifest, str, Manifest, Manifest]] = [
    ({"hostNetwork": True}, "hostNetwork", {"allow": ["HostNetwork"]}, {"allow": ["HostPorts"]}),
    ({"hostPID": True}, "hostPID", {"allow": ["HostPID"]}, {"allow": ["HostIPC"]}),
    ({"hostIPC": True}, "hostIPC", {"level": "privileged"}, {"level": "baseline"}),
    ({"volumes": [{"name": "v", "hostPath": {"path": "/mnt/data/a"}}]}, "volumes[0].hostPath.path",
     {"hostPaths": ["/mnt/data/"]}, {"hostPaths": ["/mnt/dat"]}),
    ({"volumes": [{"name": "v", "hostPath": {"path": "/mnt/data"}}]}, "volumes[0].hostPath.path",
     {"hostPaths": ["/mnt/data/"]}, {"hostPaths": ["/mnt/data/a"]}),
    ({"containers": [SHIPPER, {"name": "trainer", "ports": [{"containerPort": 9, "hostPort": 9}]}]},
     "containers[1].ports[0].hostPort", {"allow": ["HostPorts"]}, {"allow": ["HostNetwork"]}),
    (of_trainer(seLinuxOptions={"type": "IPC_LOCK"}), "containers[1].securityContext.seLinuxOptions.type",
     {"allow": ["SELinux"]}, {"capabilities": ["IPC_LOCK"]}),
    ({"securityContext": {"runAsNonRoot": None}}, "securityContext.runAsNonRoot", {"allow": ["RunAsRoot"]}, {}),
    ({"securityContext": {"sysctls": [{"name": "kernel.shm_rmid_forced", "value": "1"}, MSGMAX]}},
     "securityContext.sysctls[1].name", {"allow": ["Sysctls"]}, {}),
    ({"volumes": [{"name": "v", "hostPath": {"path": "/mnt/data/../../etc"}}]}, "volumes[0].hostPath.path",
     {"allow": ["HostPath"]}, {"hostPaths": ["/mnt/data"]}),
    (of_trainer(capabilities={"add": ["IPC_LOCK"]}), "containers[1].securityContext.capabilities.add[0]",
     {"capabilities": ["IPC_LOCK"]}, {"capabilities": ["SYS_PTRACE"]}),
    (of_trainer(capabilities={"drop": None}), "containers[1].securityContext.capabilities.drop",
     {"level": "baseline"}, {"capabilities": ["ALL"]}),
    (of_trainer(privileged=True), "containers[1].securityContext.privileged",
     {"allow": ["Privileged", "PrivilegeEscalation"]}, {"level": "baseline"}),
    (of_trainer(runAsUser=0), "containers[1].securityContext.runAsUser", {"allow": ["RunAsRoot"]}, {"allow": ["Seccomp"]}),
    ({"initContainers": [{**SHIPPER, "securityContext": {"runAsNonRoot": False}}]},
     "initContainers[0].securityContext.runAsNonRoot", {"level": "baseline"}, {"allow": ["Privileged"]}),
    ({"volumes": [{"name": "t", **TOKEN}]}, "volumes[0].projected.sources[1]",
     {"allow": ["ServiceAccountTokens"]}, {"level": "privileged"}),
    ({"volumes": [{"name": "t", "projected": {"sources": [{"podCertificate": {"signerName": "s", "keyType": "k"}}]}}]},
     "volumes[0].projected.sources[0]", {"allow": ["ServiceAccountTokens"]}, {"level": "privileged"}),
    ({"serviceAccountName": "admin"}, "serviceAccountName",
     {"serviceAccounts": ["adm*"]}, {"serviceAccounts": ["default"], "level": "privileged"}),
    ({"serviceAccount": "admin"}, "serviceAccount", {}, {"serviceAccounts": []}),
    ({"priorityClassName": "system-node-critical"}, "priorityClassName",
     {"priorityClasses": ["system-*"]}, {"priorityClasses": ["research"], "level": "privileged"}),
    ({"schedulerName": "volcano"}, "schedulerName", {"schedulers": ["volcano"]}, {"schedulers": ["default-scheduler"]}),
]  # fmt: skip


def faults(policy: Manifest, enforced: str = "", **spec: Any) -> list[str]:
    """Of a job with this spec, as its condition says them."""
    settings = Settings(templates=template_policy(msgspec.json.encode(policy).decode()))
    observed = replace(Scene(spec=spec).observed, pod_security=enforced)
    context = build_context(observed, NOW, settings)
    assert (context.config is None) == bool(context.faults)
    return [f"{fault.reason}: {fault.message}" for fault in context.faults]


def of_trainers(template: Manifest, policy: Manifest, enforced: str = "") -> list[str]:
    return faults(policy, enforced, trainers={"count": 2, "template": template})


@pytest.mark.parametrize(("spec", "place", "enough", "too_little"), FENCES, ids=lambda value: str(value)[:60])
def test_a_field_is_refused_with_its_place_until_the_administrator_admits_it(
    spec: Manifest, place: str, enough: Manifest, too_little: Manifest
) -> None:
    refused = of_trainers({"spec": spec}, too_little)
    assert [text.split(": ")[:2] for text in refused][:1] == [["TemplateForbidden", f"{TEMPLATE}.{place}"]]
    assert of_trainers({"spec": spec}, enough) == []


@pytest.mark.parametrize("spec", [fence[0] for fence in FENCES[:15]], ids=lambda value: str(value)[:60])
def test_what_the_restricted_level_refuses_is_refused_by_default(spec: Manifest) -> None:
    assert of_trainers({"spec": spec}, {}) != []


@pytest.mark.parametrize("gpus", [0, 8])
def test_pods_of_ordinary_jobs_keep_the_strictest_level(gpus: int) -> None:
    """With the fields that most templates have, and with containers that say nothing of their rights."""
    resources = {"limits": {"nvidia.com/gpu": str(gpus)}}
    spec = {
        "nodeSelector": {"gpu": "h100"}, "tolerations": [{"key": "gpu"}], "serviceAccountName": "trainer",
        "containers": [{"name": "trainer", "resources": resources, "env": [{"name": "A", "value": "b"}]}, SHIPPER],
        "initContainers": [{**SHIPPER, "name": "setup"}],
        "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}, {"name": "e", "emptyDir": {}}],
    }  # fmt: skip
    assert of_trainers({"metadata": {"labels": {"a": "b"}}, "spec": spec}, {}, "restricted") == []


@pytest.mark.parametrize("member", ["coordinator", "loader-0", "trainer-1"])
def test_a_pod_without_a_template_violates_nothing(member: str) -> None:
    pod = made(member)
    assert list(violations(pod["metadata"], pod["spec"], "restricted")) == []


def test_a_namespaces_own_level_holds_instead_of_the_installations() -> None:
    network = {"spec": {"hostNetwork": True}}
    root = {"spec": of_trainer(runAsUser=0)}
    everything = {"level": "privileged", "allow": ["HostNetwork"]}
    assert [bool(of_trainers(network, {}, level)) for level in ("", "privileged", "baseline")] == [True, False, True]
    assert [bool(of_trainers(root, {}, level)) for level in ("", "baseline", "restricted")] == [True, False, True]
    (text,) = of_trainers(network, everything, "baseline")
    assert text.endswith(
        "the cluster's administrator changes the label pod-security.kubernetes.io/enforce of the namespace"
    )
    assert of_trainers(network, {}, "no such level") != []


def test_a_refusal_names_the_field_the_value_what_is_allowed_and_the_way_out() -> None:
    (text,) = of_trainers({"spec": {"hostNetwork": True}}, {})
    assert text == (
        "TemplateForbidden: spec.trainers.template.spec.hostNetwork: True is refused by Pod Security level restricted "
        "(allowed: false); change it, or the cluster's administrator adds HostNetwork to podTemplates.allow, "
        "or labels the namespace pod-security.kubernetes.io/enforce"
    )
    (text,) = of_trainers({"spec": {"serviceAccountName": "admin"}}, {"serviceAccounts": ["default", "train-*"]})
    assert text == (
        "TemplateForbidden: spec.trainers.template.spec.serviceAccountName: service account 'admin' is not admitted "
        "(allowed: default, train-*); name another, or the cluster's administrator adds it to podTemplates.serviceAccounts"
    )


def test_an_empty_list_admits_nothing_and_says_so() -> None:
    (text,) = of_trainers({"spec": {"schedulerName": "volcano"}}, {"schedulers": []})
    assert "scheduler 'volcano' is not admitted (allowed: none); name another" in text


def test_credentials_are_refused_with_the_word_that_admits_them() -> None:
    (text,) = of_trainers({"spec": {"volumes": [{"name": "t", **TOKEN}]}}, {})
    assert text.endswith(
        "gives the pod credentials of Kubernetes (allowed: none); remove it, or the cluster's administrator adds "
        "ServiceAccountTokens to podTemplates.allow"
    )


def test_every_fault_is_reported_in_the_order_of_roles_and_controls() -> None:
    found = faults({}, trainers={"count": 2, "template": {"spec": {"hostPID": True, "hostNetwork": True}}},
                   data={"loaders": {"min": 1}, "template": {"spec": {"hostIPC": True, "hostPID": True}}})  # fmt: skip
    assert [text.split(": ")[1] for text in found] == [
        f"{place}.spec.{field}"
        for place, field in (
            ("spec.data.template", "hostPID"), ("spec.data.template", "hostIPC"), ("spec.trainers.template", "hostNetwork"),
            ("spec.trainers.template", "hostPID"),
        )
    ]  # fmt: skip


def test_a_template_of_the_former_shape_is_judged_at_its_own_places() -> None:
    (text,) = of_trainers({"hostNetwork": True, "env": [{"name": "A", "value": "b"}]}, {})
    assert text.startswith("TemplateForbidden: spec.trainers.template.hostNetwork: True")


def test_a_template_of_the_data_services_is_judged_once_for_both_roles() -> None:
    data = {"loaders": {"min": 1}, "template": {"spec": {"hostPID": True}}}
    (text,) = faults({}, data=data)
    assert text.startswith("TemplateForbidden: spec.data.template.spec.hostPID: ")
    loader = {"loaders": {"min": 1}, "template": {"spec": {"containers": [
        {"name": "loader", "securityContext": {"runAsUser": 0}}]}}}  # fmt: skip
    (text,) = faults({}, data=loader)
    assert text.startswith("TemplateForbidden: spec.data.template.spec.containers[0].securityContext.runAsUser: 0 ")


def test_a_jobs_own_priority_class_needs_the_same_permission() -> None:
    scheduling = {"priorityClassName": "system-node-critical"}
    (text,) = faults({"priorityClasses": ["research"]}, scheduling=scheduling)
    assert text.startswith(
        "TemplateForbidden: spec.scheduling.priorityClassName: priority class 'system-node-critical'"
    )
    assert faults({}, scheduling=scheduling) == []


async def test_a_forbidden_template_is_a_condition_and_no_pod_exists_until_the_namespace_admits_it() -> None:
    trainers = {"count": 2, "template": {"spec": {"hostNetwork": True}}}
    world = with_job(trainers=trainers)
    await passes(world, 5)
    assert world.created == []
    condition = world.condition("Validated")
    assert (condition["status"], condition["reason"], world.state) == ("False", "TemplateForbidden", "Queued")
    world.level = "privileged"
    await passes(world, 5)
    assert len(world.created) == 4 and world.condition("Validated")["status"] == "True"


def test_a_template_that_cannot_be_judged_is_a_condition(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> Manifest:
        raise KeyError("name")

    monkeypatch.setattr("coxswain_operator.children.pods.overlaid", broken)
    (text,) = of_trainers({"spec": {"hostNetwork": True}}, {"level": "privileged"})
    assert text.startswith("TemplateUnusable: spec: no pod can be made of the job's templates: KeyError: 'name'")


@pytest.mark.parametrize("policy", ['{"level": "root"}', '{"allow": ["Everything"]}', '{"hostPath": ["/"]}', "no"])
def test_an_unknown_word_of_the_policy_stops_the_operator(policy: str) -> None:
    with pytest.raises(Refused, match=r"--pod-templates: .*podTemplates"):
        template_policy(policy)
