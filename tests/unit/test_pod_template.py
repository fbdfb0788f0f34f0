"""Pod templates: what is wrong in one is named with its path, and what is right reaches the pods."""

from __future__ import annotations

from typing import Any

import pytest

from coxswain.api.pod_template import split_template, template_faults
from coxswain.api.resolve import resolve
from coxswain.api.validate import check
from coxswain_operator.children.scheduling import POD_SET
from coxswain_operator.controller import Controller
from coxswain_operator.views import Manifest
from docs.tools import pod_template as generator
from tests.api_samples import sample
from tests.unit.fake_cluster import NAMESPACE, FakeCluster, data_mix, data_source, training_job, with_job
from tests.unit.test_reconcile_children import environment, made
from tests.unit.test_reconcile_lifecycle import passes, running

TRAINERS = "spec.trainers.template"


def with_variable(container: str, name: str) -> Manifest:
    env = [{"name": "A", "value": "b"}, {"name": name, "value": "debug"}]
    return {"spec": {"containers": [{"name": container, "image": "own:1", "env": env}]}}


SCRATCH, MOUNT = {"name": "mine", "emptyDir": {}}, {"name": "mine", "mountPath": "/mine"}
SETUP = {"name": "setup", "image": "own:1"}
NEW: list[tuple[Manifest, str, str]] = [
    ({"spec": {"nodeSelectr": {"a": "b"}}}, "spec.nodeSelectr", "unknown field"),
    ({"spec": {"nodeSelector": {"a": 1}}}, "spec.nodeSelector.a", "1 is not a string"),
    ({"spec": {"tolerations": {"key": "gpu"}}}, "spec.tolerations", "is not a list"),
    ({"spec": {"containers": "no"}}, "spec.containers", "'no' is not a list"),
    ({"spec": {"containers": [{"image": "x"}]}}, "spec.containers[0].name", "required, but missing"),
    ({"spec": {"containers": [{"nme": "no"}]}}, "spec.containers[0].nme", "unknown field"),
    ({"spec": {"containers": [{"name": "shipper"}]}}, "spec.containers[0].image", "container 'shipper' needs an image"),
    ({"spec": {"initContainers": [{"name": "setup"}]}}, "spec.initContainers[0].image", "needs an image"),
    ({"spec": {"containers": [{"name": "trainer", "restartPolicy": "Always"}]}},
     "spec.containers[0].restartPolicy", "the operator sets it"),
    ({"spec": {"containers": [{"name": "trainer", "resources": {"limits": {"memory": "12Gx"}}}]}},
     "spec.containers[0].resources.limits.memory", "'12Gx' has not the form"),
    ({"spec": {"containers": [{"name": "trainer", "resources": {"limits": {"cpu": True}}}]}},
     "spec.containers[0].resources.limits.cpu", "neither a whole number nor a string"),
    ({"spec": {"containers": [{"name": "trainer", "env": [{"nam": "B"}]}]}}, "spec.containers[0].env[0].nam", "unknown field"),
    (with_variable("trainer", "COXSWAIN_COORDINATOR_URL"), "spec.containers[0].env[1].name", "COXSWAIN_COORDINATOR_URL is the"),
    (with_variable("trainer", "COXSWAIN_LOGLEVEL"), "spec.containers[0].env[1].name", "COXSWAIN_LOGLEVEL is the operator's"),
    (with_variable("trainer", "POD_IP"), "spec.containers[0].env[1].name", "POD_IP is the operator's"),
    (with_variable("trainer", "A=B"), "spec.containers[0].env[1].name", "no process takes it"),
    (with_variable("trainer", "A\0"), "spec.containers[0].env[1].name", "no process takes it"),
    ({"env": [{"name": "A", "value": "b\0c"}]}, "env[0].value", "a NUL, which no process takes"),
    ({"spec": {"affinity": "yes"}}, "spec.affinity", "'yes' is not a mapping"),
    ({"spec": {"hostNetwork": "yes"}}, "spec.hostNetwork", "'yes' is not true or false"),
    ({"spec": {"priority": True}}, "spec.priority", "True is not a whole number"),
    (
        {"spec": {"containers": [{"name": "trainer", "resources": {"limits": {"memory": "8GB"}}}]}},
        "spec.containers[0].resources.limits.memory",
        "'8GB' has not the form that is needed",
    ),
    ({"spec": {"hostname": "mine"}}, "spec.hostname", "unknown field"),
    ({"spec": {"restartPolicy": "Always"}}, "spec.restartPolicy", "unknown field"),
    ({"spec": {"volumes": [{"emptyDir": {}}]}}, "spec.volumes[0].name", "required, but missing"),
    ({"metadata": {"labels": "x"}}, "metadata.labels", "'x' is not a mapping"),
    ({"metadata": {"labels": {"a": "not a label"}}}, "metadata.labels.a", "has not the form"),
    ({"metadata": {"labels": {"a": "x" * 64}}}, "metadata.labels.a", "64 characters"),
    ({"metadata": {"labels": {"a b": "x"}}}, "metadata.labels", "'a b' is no valid key"),
    ({"metadata": {"annotations": {"/": "x"}}}, "metadata.annotations", "'/' is no valid key"),
    ({"metadata": {"annotations": {"a..b/c": "x"}}}, "metadata.annotations", "'a..b/c' is no valid key"),
    ({"metadata": {"labels": {"A.b/c": "x"}}}, "metadata.labels", "'A.b/c' is no valid key"),
    ({"metadata": {"labels": {f"k{n}": "x" for n in range(65)}}}, "metadata.labels", "65 entries is out of bounds"),
    ({"metadata": {"name": "mine"}}, "metadata.name", "unknown field"),
    ({"spec": {}, "nodeSelector": {}}, "nodeSelector", "unknown field"),
    ({"spec": "no"}, "spec", "'no' is not a mapping"),
    ({"spec": {"tolerations": [{"key": "gpu"}, None]}}, "spec.tolerations[1]", "an item without a value"),
    ({"spec": {"containers": [None]}}, "spec.containers[0]", "an item without a value"),
    ({"spec": {"containers": [{"name": "trainer", "args": ["-v", None]}]}}, "spec.containers[0].args[1]", "without a value"),
    ({"spec": {"volumes": [SCRATCH, SCRATCH]}}, "spec.volumes[1].name", "stands there twice"),
    ({"spec": {"containers": [{"name": "trainer"}, {"name": "trainer"}]}}, "spec.containers[1].name", "stands there twice"),
    ({"spec": {"initContainers": [SETUP, SETUP]}}, "spec.initContainers[1].name", "stands there twice"),
    ({"spec": {"containers": [{**SETUP, "volumeMounts": [MOUNT, MOUNT]}]}},
     "spec.containers[0].volumeMounts[1].mountPath", "stands there twice"),
    ({"spec": {"initContainers": [{"name": "trainer"}]}}, "spec.initContainers[0].name", "is one of containers"),
]  # fmt: skip
FORMER: list[tuple[Manifest, str, str]] = [
    ({"nodeSelectr": {"a": "b"}}, "nodeSelectr", "unknown field"),
    ({"sepc": {"nodeSelector": {}}}, "sepc", "unknown field"),
    ({"resuorces": {}}, "resuorces", "unknown field"),
    ({"containers": [{"image": "x"}]}, "containers[0].name", "required, but missing"),
    ({"containers": [{"name": "shipper"}]}, "containers[0].image", "needs an image"),
    ({"tolerations": {"key": "gpu"}}, "tolerations", "is not a list"),
    ({"env": {"A": "B"}}, "env", "is not a list"),
    ({"tolerations": [None]}, "tolerations[0]", "an item without a value"),
    ({"volumes": [SCRATCH, SCRATCH]}, "volumes[1].name", "stands there twice"),
    ({"env": [{"name": "COXSWAIN_NAME", "value": "mine"}]}, "env[0].name", "COXSWAIN_NAME is the operator's"),
    ({"resources": {"limits": {"memory": "12Gx"}}}, "resources.limits.memory", "'12Gx' has not the form"),
]  # fmt: skip


@pytest.mark.parametrize(("template", "path", "message"), [*NEW, *FORMER])
def test_a_mistake_in_a_template_is_named_with_its_path(template: Manifest, path: str, message: str) -> None:
    for field in ("trainers", "data"):
        fault, *_ = template_faults({field: {"template": rename(template, field)}})
        assert fault.path == f"spec.{field}.template.{path}" and message in fault.message
        assert fault.way_out


def rename(value: Any, field: str) -> Any:
    """The same mistake in the container of the other template."""
    if isinstance(value, dict):
        return {k: rename(v, field) for k, v in value.items()}
    if isinstance(value, list):
        return [rename(v, field) for v in value]
    return "loader" if (value, field) == ("trainer", "data") else value


def test_the_constructor_is_an_init_container() -> None:
    (fault,) = template_faults({"trainers": {"template": {"spec": {"containers": [{"name": "constructor"}]}}}})
    assert fault.text == (
        "spec.trainers.template.spec.containers[0].name: constructor is one of initContainers; put it under initContainers"
    )


def test_an_unknown_field_of_the_former_shape_shows_the_shape_of_today() -> None:
    (fault,) = template_faults({"trainers": {"template": {"nodeSelectr": {}}}})
    assert fault.text == (
        "spec.trainers.template.nodeSelectr: unknown field (allowed: metadata, spec); did you mean nodeSelector?; "
        "a template has metadata and spec, such as template: {spec: {nodeSelector: {gpu: h100}}}"
    )


@pytest.mark.parametrize(("template", "path"), [(t, p) for t, p, _ in (*NEW, *FORMER)])
def test_cox_validate_and_the_operator_find_the_same_fault(template: Manifest, path: str) -> None:
    job = sample("TrainingJob", {"spec.trainers.template": template})
    offline = [f for f in check(job) if f.path.startswith(TRAINERS)]
    found = resolve(job, [], [], [], "")
    assert isinstance(found, list)
    assert found == offline and offline[0].path == f"{TRAINERS}.{path}"


GOOD: list[Manifest] = [
    {}, {"spec": {}}, {"metadata": {}}, {"spec": None, "metadata": None},
    {"spec": {"containers": [{"name": "trainer", "resources": {"limits": {"cpu": 8, "memory": "12Gi", "a.io/nic": "1"}}}]}},
    {"spec": {"containers": [{"name": "shipper", "image": "fluent:1", "livenessProbe": {"httpGet": {"port": 80}}}]}},
    {"spec": {"initContainers": [{"name": "constructor", "resources": {"requests": {"memory": "1Gi"}}}]}},
    {"spec": {"tolerations": [{"key": "gpu", "operator": "Exists"}], "runtimeClassName": "nvidia"}},
    {"spec": {"volumes": [{"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "8Gi"}}], "hostNetwork": True}},
    {"metadata": {"labels": {"team": "a", "example.com/cost-centre": ""}, "annotations": {"x": "any text: {}"}}},
    {"metadata": {"labels": {f"k{n}": "x" for n in range(64)}, "annotations": {"Example.org/a": "x"}}},
    {"nodeSelector": {"gpu": "h100"}, "resources": {"limits": {"cpu": 8}}, "env": [{"name": "A", "value": "b"}]},
    {"restartPolicy": "Always", "hostname": "mine"},
    with_variable("trainer", "COXSWAIN_LOG_LEVEL"), with_variable("trainer", "COXSWAIN_STORE_PATIENCE_SECONDS"),
    with_variable("shipper", "POD_IP"), with_variable("shipper", "COXSWAIN_NAME"),
]  # fmt: skip


@pytest.mark.parametrize("template", GOOD)
def test_a_template_as_kubernetes_takes_it_has_no_fault(template: Manifest) -> None:
    assert template_faults({"trainers": {"template": template}}) == []


def test_the_former_shape_means_what_it_meant() -> None:
    former = {
        "nodeSelector": {"gpu": "h100"}, "resources": {"limits": {"cpu": "8"}}, "env": [{"name": "A", "value": "b"}],
        "containers": [{"name": "trainer", "tty": True}, {"name": "shipper", "image": "x"}],
    }  # fmt: skip
    metadata, spec = split_template(former, "trainer")
    trainer = {"name": "trainer", "tty": True, "resources": former["resources"], "env": former["env"]}
    containers = [{"name": "shipper", "image": "x"}, trainer]
    assert (metadata, spec) == ({}, {"nodeSelector": {"gpu": "h100"}, "containers": containers})


def test_labels_and_annotations_reach_the_pods_and_never_replace_the_operators() -> None:
    labels = {"team": "a", "app.kubernetes.io/name": "mine", "coxswain.dev/role": "loader"}
    annotations = {"sidecar.istio.io/inject": "false", "karpenter.sh/do-not-disrupt": "false"}
    template = {"metadata": {"labels": labels, "annotations": annotations}}
    pods = {m: made(m, trainers={"count": 2, "template": template})["metadata"] for m in ("trainer-1", "loader-0")}
    mine = pods["trainer-1"]
    assert (mine["labels"]["team"], mine["labels"]["app.kubernetes.io/name"]) == ("a", "coxswain")
    assert mine["labels"]["coxswain.dev/role"] == "trainer"
    assert mine["annotations"].items() >= annotations.items()
    assert "team" not in pods["loader-0"]["labels"]


def test_annotations_of_a_template_never_replace_those_of_the_pods_queue() -> None:
    """Pods of one group that name another number, or another set, are never admitted."""
    theirs = {"kueue.x-k8s.io/pod-group-total-count": "1", POD_SET: "mine"}
    queue = {"queueing": {"backend": "Kueue", "queueName": "research"}}
    trainers = {"count": 2, "template": {"metadata": {"annotations": theirs}}}
    found = made("trainer-1", trainers=trainers, scheduling=queue)["metadata"]["annotations"]
    assert [found[key] for key in theirs] == ["4", "trainer"]


def test_a_pod_gets_no_service_links_and_a_token_that_its_group_alone_reads() -> None:
    spec = made("loader-0")["spec"]
    (token,) = (v["secret"] for v in spec["volumes"] if v["name"] == "token")
    (mount,) = (m for m in spec["containers"][0]["volumeMounts"] if m["name"] == "token")
    assert (token["defaultMode"], mount["readOnly"], spec["enableServiceLinks"]) == (0o440, True, False)
    assert spec["terminationGracePeriodSeconds"] == 60  # to finish a checkpoint's upload


def test_what_the_operator_fixes_stays_whatever_a_former_template_says() -> None:
    """The schema of today has none of it; a stored template of an earlier release may."""
    former = {"restartPolicy": "Always", "hostname": "x", "subdomain": "y", "automountServiceAccountToken": True}
    plain, laid = (made("trainer-1", trainers={"count": 2, "template": t})["spec"] for t in ({}, former))
    assert laid["automountServiceAccountToken"] is False
    assert {key: laid[key] for key in former} == {key: plain[key] for key in former}


def test_a_list_without_a_value_is_one_without_items() -> None:
    """A local cluster takes a template as it is written; an API server leaves nulls out."""
    shipper = {"name": "shipper", "image": "fluent:1", "env": None}
    nothing = {"name": "trainer", "env": None, "volumeMounts": None}
    plain, *_ = made("trainer-1")["spec"]["containers"]
    for template in (
        {"spec": {"hostNetwork": True, "containers": [nothing, shipper], "volumes": None, "tolerations": None}},
        {"containers": None, "env": None},
    ):
        assert template_faults({"trainers": {"template": template}}) == []
        laid = made("trainer-1", trainers={"count": 2, "template": template})["spec"]
        assert laid["containers"][0]["volumeMounts"] == plain["volumeMounts"]
        assert environment(laid["containers"][0]).items() >= environment(plain).items()


def test_ports_of_one_number_and_two_protocols_reach_the_pod() -> None:
    both = [{"containerPort": 8000, "protocol": protocol} for protocol in ("TCP", "UDP")]
    template = {"spec": {"containers": [{"name": "trainer", "ports": both}]}}
    assert template_faults({"trainers": {"template": template}}) == []
    container, *_ = made("trainer-1", trainers={"count": 2, "template": template})["spec"]["containers"]
    assert [port for port in container["ports"] if port["containerPort"] == 8000] == both


def test_of_two_ports_of_our_number_the_first_is_laid_over_ours() -> None:
    (ours,) = made("trainer-1")["spec"]["containers"][0]["ports"]
    theirs = [{"containerPort": ours["containerPort"], "hostIP": ip} for ip in ("10.0.0.1", "10.0.0.2")]
    template = {"spec": {"containers": [{"name": "trainer", "ports": theirs}]}}
    container, *_ = made("trainer-1", trainers={"count": 2, "template": template})["spec"]["containers"]
    assert container["ports"] == [{**ours, **theirs[0]}, theirs[1]]


@pytest.mark.parametrize(("name", "given"), [("", False), ("gvisor", True)])
def test_a_runtime_class_without_a_name_is_none(name: str, given: bool) -> None:
    """The API server answers 500 to it, as it would to what may be tried again."""
    template = {"spec": {"runtimeClassName": name}}
    assert ("runtimeClassName" in made("trainer-1", trainers={"count": 2, "template": template})["spec"]) is given


def test_a_name_that_is_empty_is_none() -> None:
    names = ("schedulerName", "priorityClassName", "serviceAccountName", "nodeName", "dnsPolicy", "preemptionPolicy")
    template, own = {"spec": dict.fromkeys(names, "")}, {"scheduling": {"priorityClassName": "high"}}
    laid, plain = (made("trainer-1", trainers={"count": 2, "template": t}, **own)["spec"] for t in (template, {}))
    assert laid == plain and plain["priorityClassName"] == "high"


def test_an_image_that_is_empty_is_ours_and_a_variable_may_be_empty() -> None:
    container = {"name": "trainer", "image": "", "imagePullPolicy": "", "env": [{"name": "HOME", "value": ""}]}
    plain, *_ = made("trainer-1")["spec"]["containers"]
    laid, *_ = made("trainer-1", trainers={"count": 2, "template": {"spec": {"containers": [container]}}})["spec"][
        "containers"
    ]
    assert (laid["image"], laid["imagePullPolicy"]) == (plain["image"], plain["imagePullPolicy"])
    assert environment(laid)["HOME"] == ""


@pytest.mark.parametrize(("given", "kept"), [(None, 60), (0, 1), (-1, 1), (1, 1), (600, 600)])
def test_a_pod_has_a_second_at_least_to_end(given: int | None, kept: int) -> None:
    """The API server removes one with 0 at once: its successor would start while its processes still run."""
    template = {"spec": {"terminationGracePeriodSeconds": given}}
    spec = made("trainer-1", trainers={"count": 2, "template": template})["spec"]
    assert spec["terminationGracePeriodSeconds"] == kept


def test_containers_of_the_data_template_go_to_the_pods_of_their_name() -> None:
    def sized(name: str, memory: str) -> Manifest:
        return {"name": name, "resources": {"requests": {"memory": memory}}, "env": [{"name": "A", "value": memory}]}

    shipper = {"name": "shipper", "image": "fluent:1"}
    template = {"spec": {"containers": [sized("coordinator", "1Gi"), sized("loader", "9Gi"), shipper]}}
    for member, memory in (("coordinator", "1Gi"), ("loader-0", "9Gi")):
        ours, other = made(member, data={"template": template})["spec"]["containers"]
        assert ours["resources"] == {"requests": {"memory": memory}} and environment(ours)["A"] == memory
        assert other["name"] == "shipper"


@pytest.mark.parametrize(
    "template",
    [
        {"containers": [{"image": "x"}]},
        {"tolerations": {"key": "gpu"}},
        {"spec": {"containers": "no"}},
        {"nodeSelectr": {}},
    ],
)
async def test_a_job_with_a_wrong_template_says_so_and_starts_nothing(template: Manifest) -> None:
    job = training_job(trainers={"count": 2, "template": template})
    world = FakeCluster(data_source(), data_mix(), job)
    await passes(world)
    condition = world.condition("Validated")
    assert (condition["status"], condition["reason"]) == ("False", "Invalid")
    assert condition["message"].startswith(TRAINERS)
    assert world.created == []


@pytest.mark.parametrize(("template", "noted"), [({"nodeSelector": {}}, True), ({"spec": {}}, False), ({}, False)])
async def test_a_template_of_the_former_shape_runs_and_is_noted(template: Manifest, noted: bool) -> None:
    world = await running(trainers={"count": 2, "template": template})
    condition = world.condition("Validated")
    assert (world.state, condition["status"]) == ("Running", "True")
    assert condition["message"].startswith(f"{TRAINERS}: a bare pod spec is accepted in this release only") is noted


async def test_a_running_job_whose_stored_template_is_found_wrong_goes_on_with_what_runs() -> None:
    world = await running()
    world.job["spec"]["trainers"]["template"] = {"nodeSelectr": {"gpu": "h100"}}
    await passes(world, 20)
    assert (world.state, len([p for p in world.pods() if p["status"]["phase"] == "Running"])) == ("Running", 4)
    assert world.condition("Validated")["status"] == "False"


async def test_a_pod_that_cannot_be_built_is_a_condition_and_not_only_a_line_in_the_log(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whatever the judgement of templates overlooks."""

    def broken(*_: Any) -> Manifest:
        raise KeyError("name")

    world = with_job()
    monkeypatch.setattr("coxswain_operator.children.pods.overlaid", broken)
    operator = Controller(world, world, world.clock)
    for _ in range(20):
        await operator.pass_once(NAMESPACE, "demo")
        world.tick()
    assert "TemplateUnusable: Pod demo-coordinator-0 cannot be made" in world.condition("Succeeded")["message"]
    monkeypatch.undo()
    for _ in range(3):
        await operator.pass_once(NAMESPACE, "demo")
    assert len(world.created) == 4


def test_the_schema_of_templates_is_current() -> None:
    assert generator.TARGET.read_text() == generator.text(), "run `make generate`"


def test_a_quantity_that_is_none_is_refused_in_words_and_not_with_a_regular_expression() -> None:
    container = {"name": "trainer", "resources": {"limits": {"memory": "8GB"}}}
    (fault,) = template_faults({"trainers": {"template": {"spec": {"containers": [container]}}}})
    assert fault.allowed == "a quantity such as 500m, 8G or 8Gi"
