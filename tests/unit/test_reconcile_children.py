"""The manifests of a job's children: what others rely on, and what keeps them in their place."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from coxswain.api.pod_template import template_schema
from coxswain.api.resolve import resolve
from coxswain.config import EndpointConfig, JobConfig
from coxswain.names import PORT_COORDINATOR
from coxswain.wire import NodeRequest
from coxswain_operator.children import PodPlan, children
from coxswain_operator.children.common import child, controller_of
from coxswain_operator.children.configuration import attempt_record
from coxswain_operator.children.containers import endpoint_secrets
from coxswain_operator.children.network import METRICS_PORTS
from coxswain_operator.children.overlay import merged
from coxswain_operator.children.quarantine import quarantine
from coxswain_operator.settings import Settings, TemplatePolicy
from coxswain_operator.views import Manifest
from tests.unit.fake_cluster import data_mix, data_source, training_job

ROLES = ("coordinator", "loader-0", "trainer-1")
NOTHING = TemplatePolicy()


def job_and_config(source: Manifest | None = None, **spec: Any) -> tuple[Manifest, JobConfig]:
    job = training_job(**spec)
    job["metadata"] |= {"uid": "uid-of-demo"}
    config = resolve(job, [source or data_source()], [data_mix()], [], "uid-of-demo")
    assert isinstance(config, JobConfig), config
    return job, config


def made(member: str, number: int = 0, **spec: Any) -> Manifest:
    job, config = job_and_config(**spec)
    return pod(job, config, member, number)


def pod(
    job: Manifest, config: JobConfig, member: str, number: int = 0, templates: TemplatePolicy = NOTHING
) -> Manifest:
    return PodPlan(job, config, Settings(templates=templates), attempt=0, start=0).pod(member, number)


def environment(container: Manifest) -> dict[str, str]:
    return {e["name"]: e.get("value", "") for e in container["env"]}


def test_a_pods_host_name_does_not_change_with_its_incarnation_but_its_name_does() -> None:
    first, second = made("trainer-1", 0), made("trainer-1", 1)
    assert first["spec"]["hostname"] == second["spec"]["hostname"] == "demo-trainer-1"
    assert (first["metadata"]["name"], second["metadata"]["name"]) == ("demo-trainer-1-0", "demo-trainer-1-1")


@pytest.mark.parametrize("member", ROLES)
def test_every_container_knows_how_many_pods_its_member_had_before(member: str) -> None:
    spec = made(member, 3)["spec"]
    for container in (*spec.get("initContainers", ()), *spec["containers"]):
        assert environment(container)["COXSWAIN_INCARNATION"] == "3"


@pytest.mark.parametrize("member", ROLES)
def test_no_container_runs_with_more_rights_than_it_needs(member: str) -> None:
    spec = made(member)["spec"]
    assert spec["automountServiceAccountToken"] is False and spec["restartPolicy"] == "Never"
    assert spec["securityContext"]["runAsNonRoot"] is True
    for container in (*spec.get("initContainers", ()), *spec["containers"]):
        rights = container["securityContext"]
        assert rights["readOnlyRootFilesystem"] and not rights["allowPrivilegeEscalation"]
        assert rights["capabilities"] == {"drop": ["ALL"]}


@pytest.mark.parametrize("member", ROLES)
@pytest.mark.parametrize(
    ("platform", "ids"),
    [(False, dict.fromkeys(("runAsUser", "runAsGroup", "fsGroup"), 65532)), (True, {})],
    ids=["the chart's", "the platform's"],
)
def test_a_pod_runs_as_the_user_of_the_chart_or_leaves_it_to_a_platform_that_gives_one(member, platform, ids) -> None:
    spec = pod(*job_and_config(), member, templates=TemplatePolicy(platform_user=platform))["spec"]
    assert spec["securityContext"] == {
        "runAsNonRoot": True, "fsGroupChangePolicy": "OnRootMismatch", "seccompProfile": {"type": "RuntimeDefault"}, **ids
    }  # fmt: skip
    for container in (*spec.get("initContainers", ()), *spec["containers"]):
        assert not {"runAsUser", "runAsGroup"} & container["securityContext"].keys()


@pytest.mark.parametrize("member", ROLES)
def test_every_mount_has_its_volume(member: str) -> None:
    spec = made(member)["spec"]
    volumes = {v["name"] for v in spec["volumes"]}
    for container in (*spec.get("initContainers", ()), *spec["containers"]):
        assert {m["name"] for m in container["volumeMounts"]} <= volumes


def test_a_trainer_has_its_constructor_as_a_native_sidecar() -> None:
    spec = made("trainer-1")["spec"]
    (sidecar,), (trainer,) = spec["initContainers"], spec["containers"]
    assert (sidecar["name"], sidecar["restartPolicy"]) == ("constructor", "Always")
    assert sidecar["command"] == ["python", "-m", "coxswain_link.start", "coxswain_data.constructor"]
    assert environment(sidecar)["COXSWAIN_NAME"] == environment(trainer)["COXSWAIN_NAME"] == "trainer-1"


def test_only_the_coordinator_has_a_run_directory() -> None:
    has = {m: "COXSWAIN_RUN_DIR" in environment(made(m)["spec"]["containers"][0]) for m in ROLES}
    assert has == {"coordinator": True, "loader-0": False, "trainer-1": False}


def test_a_service_that_hangs_is_ended_by_its_kubelet() -> None:
    """Nothing else would end it: its peers wait for it, or give up and meet it again."""
    specs = [made(member)["spec"] for member in ROLES]
    containers = [c for spec in specs for c in (*spec.get("initContainers", ()), *spec["containers"])]
    probes = {c["name"]: (c["livenessProbe"], c["readinessProbe"]["httpGet"]["port"]) for c in containers}
    assert probes.keys() == {"coordinator", "loader", "constructor", "trainer"}
    for probe, port in probes.values():
        assert probe["httpGet"] == {"path": "/healthz", "port": port}
        assert (probe["initialDelaySeconds"], probe["periodSeconds"] * probe["failureThreshold"]) == (300, 60)
        assert probe["terminationGracePeriodSeconds"] == 10  # one that hangs hears no SIGTERM


def test_a_budget_lets_a_drain_take_pods_that_do_not_work() -> None:
    job, config = job_and_config()
    *_, budget = children(job, config, Settings(), attempt=0)
    assert budget["spec"]["unhealthyPodEvictionPolicy"] == "AlwaysAllow"


def test_a_budget_counts_only_pods_of_its_attempt() -> None:
    """Pods of the attempt before, which leave, must not let a drain take those that have come."""
    job, config = job_and_config()
    *_, budget = children(job, config, Settings(), attempt=1)
    chosen = budget["spec"]["selector"]["matchLabels"].items()
    of = [PodPlan(job, config, Settings(), attempt, 0).pod("trainer-1", 0)["metadata"]["labels"] for attempt in (0, 1)]
    assert [chosen <= labels.items() for labels in of] == [False, True]


@pytest.mark.parametrize(("member", "uid", "chosen"), [
    ("coordinator", "uid-of-demo", True), ("coordinator", "uid-of-other", False), ("loader-0", "uid-of-demo", False),
    ("trainer-1", "uid-of-demo", False),
])  # fmt: skip
def test_the_host_name_of_a_coordinator_leads_to_that_of_its_own_job_alone(member: str, uid: str, chosen: bool) -> None:
    """Else services of a job would call another job's coordinator in the same namespace, which refuses their token."""
    job, config = job_and_config()
    (service,) = (m for m in children(job, config, Settings(), attempt=0) if m["kind"] == "Service")
    theirs = {**job, "metadata": {**job["metadata"], "uid": uid}}
    labels = pod(theirs, config, member)["metadata"]["labels"]
    assert (service["spec"]["selector"].items() <= labels.items()) == chosen


@pytest.mark.parametrize("member", ROLES)
def test_each_container_has_the_keys_of_the_checkpoints_and_puts_its_temporary_files_where_it_may_write(
    member: str,
) -> None:
    """The root of each is read-only, and no source needs keys here."""
    endpoint = {"url": "http://s3:7070", "secretRef": {"name": "runs-s3"}}
    spec = made(member, checkpoint={"uri": "s3://runs/demo", "endpoint": endpoint})["spec"]
    volumes = {volume["name"]: volume for volume in spec["volumes"]}
    for container in (*spec.get("initContainers", ()), *spec["containers"]):
        mounted = {mount["mountPath"]: mount for mount in container["volumeMounts"]}
        keys, writable = mounted["/etc/coxswain/secrets/runs-s3"], mounted[environment(container)["TMPDIR"]]
        assert volumes[keys["name"]]["secret"]["secretName"] == "runs-s3"
        assert "emptyDir" in volumes[writable["name"]] and not writable.get("readOnly")


def test_one_look_that_is_missed_makes_no_service_unready() -> None:
    """A pod that is not ready leaves the coordinator's name, and the job its condition PodsReady."""
    for member in ROLES:
        for container in made(member)["spec"]["containers"]:
            assert container["readinessProbe"]["failureThreshold"] > 1


def test_the_content_of_a_child_is_the_same_in_whichever_order_it_is_written() -> None:
    """Another release that writes it in another order replaces none of a running job's children."""
    job, _ = job_and_config()
    one, other = (
        child(job, "v1", "ConfigMap", "demo", {"data": data}) for data in ({"a": "", "b": ""}, {"b": "", "a": ""})
    )
    assert one["metadata"] == other["metadata"]


@pytest.mark.parametrize(("length", "kept"), [(10, 10), (2000, 900)])
def test_evidence_of_any_length_fits_into_a_quarantine(length: int, kept: int) -> None:
    """The server refuses more than its kind allows, and the slow node would stay."""
    request = NodeRequest("n", "trainer-1", "x" * length)
    evidence = quarantine(job_and_config()[0], request, "2026-01-01T00:00:00Z")["spec"]["evidence"]
    assert len(evidence) <= 1024
    assert evidence.count("x") >= kept


def test_from_other_namespaces_the_operator_reaches_the_coordinator_and_prometheus_the_metrics() -> None:
    job, config = job_and_config()
    settings = Settings(operator_namespace="ops", prometheus_namespace="monitoring")
    _, _, policy, *_ = children(job, config, settings, attempt=0)
    own, *others = policy["spec"]["ingress"]
    assert own == {"from": [{"podSelector": {"matchLabels": {"coxswain.dev/job-uid": "uid-of-demo"}}}]}
    reached = {
        rule["from"][0]["namespaceSelector"]["matchLabels"]["kubernetes.io/metadata.name"]: [
            port["port"] for port in rule["ports"]
        ]
        for rule in others
    }
    assert reached == {"ops": [PORT_COORDINATOR], "monitoring": list(METRICS_PORTS)}


def test_the_owner_of_an_object_is_its_controller_and_no_other_that_it_names() -> None:
    other, controller = {"uid": "other"}, {"uid": "controller", "controller": True}
    assert controller_of({"metadata": {"ownerReferences": [other, controller]}}) == controller
    assert controller_of({"metadata": {"ownerReferences": [other]}}) == {}


def test_secrets_of_endpoints_are_mounted_under_their_names() -> None:
    source = data_source()
    source["spec"]["endpoint"] = {"url": "http://s3:7070", "secretRef": {"name": "corpus-s3"}}
    job, config = job_and_config(source)
    (container,) = pod(job, config, "loader-0")["spec"]["containers"]
    assert "/etc/coxswain/secrets/corpus-s3" in [m["mountPath"] for m in container["volumeMounts"]]
    assert environment(container)["COXSWAIN_SECRETS_DIR"] == "/etc/coxswain/secrets"


def test_secrets_are_mounted_by_name_in_order_so_that_a_pod_is_the_same_whichever_operator_makes_it() -> None:
    _, config = job_and_config()
    names = [f"s3-{n}" for n in range(9)]
    (one,) = config.mix.sources
    sources = tuple(replace(one, endpoint=EndpointConfig(secret=name)) for name in reversed(names))
    assert endpoint_secrets(replace(config, mix=replace(config.mix, sources=sources))) == tuple(names)


def test_what_an_attempt_began_with_cannot_be_changed() -> None:
    job, config = job_and_config()
    assert attempt_record(job, config, {"TrainingJob": {"demo": job["spec"]}}, "ab12")["immutable"] is True


@pytest.mark.parametrize("member", ROLES)
def test_claims_of_pvc_uris_are_mounted_and_only_that_of_the_checkpoints_can_be_written(member: str) -> None:
    source = data_source()
    source["spec"]["uri"] = "pvc://corpus/code"
    spec = pod(*job_and_config(source, checkpoint={"uri": "pvc://runs/demo"}), member)["spec"]
    mounted = [v["persistentVolumeClaim"] for v in spec["volumes"] if "persistentVolumeClaim" in v]
    assert mounted == [{"claimName": "corpus", "readOnly": True}, {"claimName": "runs", "readOnly": False}]
    for container in (*spec.get("initContainers", ()), *spec["containers"]):
        paths = [m["mountPath"] for m in container["volumeMounts"]]
        assert {"/mnt/claims/corpus", "/mnt/claims/runs"} <= {*paths}


def test_a_claim_with_sources_and_checkpoints_can_be_written() -> None:
    source = data_source()
    source["spec"]["uri"] = "pvc://both/code"
    spec = pod(*job_and_config(source, checkpoint={"uri": "pvc://both/runs"}), "trainer-1")["spec"]
    mounted = [v["persistentVolumeClaim"] for v in spec["volumes"] if "persistentVolumeClaim" in v]
    assert mounted == [{"claimName": "both", "readOnly": False}]


def test_the_template_adds_to_a_trainer_and_cannot_take_its_identity() -> None:
    template = {
        "nodeSelector": {"gpu": "h100"}, "tolerations": [{"key": "gpu"}], "hostname": "mine", "restartPolicy": "Always",
        "resources": {"limits": {"nvidia.com/gpu": "8"}}, "env": [{"name": "NCCL_DEBUG", "value": "INFO"}],
        "volumes": [{"name": "data", "emptyDir": {}}],
    }  # fmt: skip
    spec = made("trainer-1", trainers={"count": 2, "template": template})["spec"]
    (trainer,) = spec["containers"]
    assert spec["nodeSelector"] == {"gpu": "h100"} and {"key": "gpu"} in spec["tolerations"]
    assert (spec["hostname"], spec["restartPolicy"]) == ("demo-trainer-1", "Never")
    assert trainer["resources"] == {"limits": {"nvidia.com/gpu": "8"}}
    assert environment(trainer)["NCCL_DEBUG"] == "INFO" and environment(trainer)["COXSWAIN_NAME"] == "trainer-1"
    assert {"data", "token", "shm"} <= {v["name"] for v in spec["volumes"]}


def test_an_overlay_merges_named_things_by_name_and_changes_neither_side() -> None:
    base = {"containers": [{"name": "a", "env": [{"name": "X", "value": "1"}]}], "list": [1]}
    laid = merged(
        base, {"containers": [{"name": "a", "env": [{"name": "X", "value": "2"}]}, {"name": "b"}], "list": [2]}
    )
    assert laid == {"containers": [{"name": "a", "env": [{"name": "X", "value": "2"}]}, {"name": "b"}], "list": [1, 2]}
    assert base["containers"] == [{"name": "a", "env": [{"name": "X", "value": "1"}]}]


@pytest.mark.parametrize(
    ("field", "ours", "theirs", "other"),
    [
        ("ports", {"containerPort": 1, "name": "ours"}, {"containerPort": 1, "hostPort": 9}, {"containerPort": 2}),
        (
            "volumeMounts",
            {"mountPath": "/a", "name": "ours"},
            {"mountPath": "/a", "readOnly": True},
            {"mountPath": "/b"},
        ),
        ("imagePullSecrets", {"name": "a"}, {"name": "a"}, {"name": "b"}),
        ("hostAliases", {"ip": "::1", "hostnames": ["x"]}, {"ip": "::1"}, {"ip": "::2"}),
    ],
)
def test_an_item_that_a_template_names_as_ours_is_one_item_and_not_two(
    field: str, ours: Manifest, theirs: Manifest, other: Manifest
) -> None:
    """Kubernetes refuses a pod with two mounts at one path, and merges such lists by the same fields."""
    assert merged({field: [ours]}, {field: [theirs, other]}) == {field: [{**ours, **theirs}, other]}


KINDS = template_schema()["properties"]["spec"]["properties"]["volumes"]["items"]["properties"].keys() - {
    "name",
    "emptyDir",
}


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_a_volume_of_our_name_and_another_kind_replaces_ours(kind: str) -> None:
    """A pod whose volume has two kinds is refused. A team may bring its own scratch space."""
    theirs = [{"name": "scratch", kind: {"x": 1}}]
    assert merged({"volumes": [{"name": "scratch", "emptyDir": {}}]}, {"volumes": theirs}) == {"volumes": theirs}


@pytest.mark.parametrize(
    ("kind", "said"), [("exec", {"command": ["true"]}), ("tcpSocket", {"port": 1}), ("grpc", {"port": 1})]
)
def test_a_probe_of_another_kind_replaces_ours_and_keeps_its_times(kind: str, said: dict[str, Any]) -> None:
    """A probe has one kind. A template may ask for more patience alone, as for a debugger."""
    theirs = {"name": "trainer", "livenessProbe": {kind: said, "failureThreshold": 600}}
    spec = made("trainer-1", trainers={"count": 2, "template": {"spec": {"containers": [theirs]}}})["spec"]
    probe = spec["containers"][0]["livenessProbe"]
    assert (probe[kind], "httpGet" in probe, probe["failureThreshold"], probe["periodSeconds"]) == (
        said, False, 600, 10,
    )  # fmt: skip


def test_all_children_belong_to_the_job_and_carry_its_uid() -> None:
    job, config = job_and_config()
    for each in (*children(job, config, Settings(), attempt=0), pod(job, config, "coordinator")):
        (owner,) = each["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["uid"], owner["controller"]) == ("TrainingJob", "uid-of-demo", True)
        assert owner["blockOwnerDeletion"] is True
        assert each["metadata"]["labels"]["coxswain.dev/job-uid"] == "uid-of-demo"


def test_only_the_coordinator_is_behind_the_service() -> None:
    """A list of thousands of addresses would be written and sent around again with each pod that comes or goes."""
    job, config = job_and_config()
    _, service, *_ = children(job, config, Settings(), attempt=0)
    chosen = service["spec"]["selector"].items()
    assert {m: chosen <= pod(job, config, m)["metadata"]["labels"].items() for m in ROLES} == {
        "coordinator": True, "loader-0": False, "trainer-1": False,
    }  # fmt: skip


def test_the_names_of_a_job_of_forty_characters_fit() -> None:
    job, config = job_and_config()
    job["metadata"]["name"] = "j" * 40
    spec = pod(job, config, "trainer-99999", 9999)
    assert len(spec["metadata"]["name"]) <= 63 and len(spec["spec"]["hostname"]) <= 63


@pytest.mark.parametrize("member", ROLES)
def test_a_pod_on_its_nodes_network_finds_services_and_knows_where_it_is(member: str) -> None:
    template = {"template": {"spec": {"hostNetwork": True}}}
    spec = made(member, trainers={"count": 2, **template}, data={"loaders": {"min": 1}, **template})["spec"]
    assert (spec["hostNetwork"], spec["dnsPolicy"]) == (True, "ClusterFirstWithHostNet")
    for container in (*spec.get("initContainers", ()), *spec["containers"]):
        assert environment(container)["COXSWAIN_HOST_NETWORK"] == "true"
    plain = made(member)["spec"]
    assert "dnsPolicy" not in plain
    assert not [c for c in plain["containers"] if "COXSWAIN_HOST_NETWORK" in environment(c)]


def test_a_templates_own_dns_policy_stays_on_the_nodes_network() -> None:
    template = {"spec": {"hostNetwork": True, "dnsPolicy": "Default"}}
    assert made("trainer-0", trainers={"count": 2, "template": template})["spec"]["dnsPolicy"] == "Default"


@pytest.mark.parametrize("template", [{"spec": {"hostNetwork": True}}, {"hostNetwork": True}])
def test_trainers_on_their_nodes_network_reach_coordinator_and_loaders_past_the_jobs_policy(template: Manifest) -> None:
    """They call from addresses of nodes, which no selector of pods admits."""
    ports = [{"port": port, "protocol": "TCP"} for port in (7400, 7410)]
    found = {}
    for which, given in (("nodes", {"template": template}), ("pods", {})):
        job, config = job_and_config(trainers={"count": 2, **given})
        (policy,) = (c for c in children(job, config, Settings(), attempt=0) if c["kind"] == "NetworkPolicy")
        found[which] = policy["spec"]["ingress"]
    assert found["nodes"] == [*found["pods"], {"ports": ports}] and all(rule["from"] for rule in found["pods"])
