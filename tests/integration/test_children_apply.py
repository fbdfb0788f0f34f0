"""Every child's manifest, in every variant that a spec can bring about, is what a real API server
takes without a warning.
"""

from __future__ import annotations

from typing import Any

import pytest

from coxswain.api.resolve import resolve
from coxswain.config import JobConfig
from coxswain_operator.children import PodPlan, children
from coxswain_operator.children.configuration import attempt_record
from coxswain_operator.children.job_token import secret
from coxswain_operator.kubernetes.resources import BY_KIND
from coxswain_operator.settings import Settings
from tests.integration.apiserver import ApiServer
from tests.integration.operator_parts import new_namespace, within
from tests.unit.fake_cluster import data_mix, data_source, training_job

_TEMPLATE = {
    "nodeSelector": {"gpu": "h100"},
    "tolerations": [{"key": "gpu", "operator": "Exists"}],
    "resources": {"limits": {"nvidia.com/gpu": "8"}, "requests": {"cpu": "8"}},
    "env": [{"name": "NCCL_DEBUG", "value": "INFO"}],
    "volumes": [{"name": "scratch", "hostPath": {"path": "/fast"}}],
}
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "gpus": {"trainers": {"count": 2, "devicesPerTrainer": 8}},
    "template": {"trainers": {"count": 2, "template": _TEMPLATE}, "data": {"template": {"resources": {}}}},
    "required topology": {"scheduling": {"topology": {"required": "topology.kubernetes.io/zone"}}},
    "preferred topology": {"scheduling": {"topology": {"preferred": "topology.kubernetes.io/zone"}}},
    "queue": {"scheduling": {"queueing": {"backend": "Kueue", "queueName": "research"}}},
    "claim": {"checkpoint": {"uri": "pvc://runs/demo"}},
    "secret": {"checkpoint": {"uri": "s3://runs/demo", "endpoint": {"secretRef": {"name": "s3"}}}},
}


@pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS.keys())
def test_the_api_server_takes_every_child_without_a_warning(api: ApiServer, variant: dict[str, Any]) -> None:
    namespace = new_namespace(api)
    job = within(namespace, training_job(**variant))
    job["metadata"] |= {"uid": "4b1d9f3e-0000-4000-8000-000000000000"}
    config = resolve(job, [data_source()], [data_mix()], [], job["metadata"]["uid"])
    assert isinstance(config, JobConfig), config
    plan = PodPlan(job, config, Settings(), attempt=0, start=0)
    pods = [plan.pod(member, 0) for member in ("coordinator", "loader-0", "trainer-1")]
    record = attempt_record(job, config, {"TrainingJob": {"demo": job["spec"]}}, "ab12")
    for manifest in (secret(job, "token"), *children(job, config, Settings(), attempt=0), record, *pods):
        place = BY_KIND[manifest["kind"]].path(namespace)
        strict = {"dryRun": "All", "fieldValidation": "Strict"}
        answer = api.http.post(place, json=manifest, params=strict)
        assert answer.is_success, answer.text
        assert "Warning" not in answer.headers, answer.headers["Warning"]


def test_a_data_template_may_change_only_while_the_job_is_suspended(api: ApiServer) -> None:
    namespace = new_namespace(api)
    place = api.path("trainingjobs", namespace=namespace)
    made = api.http.post(place, json=within(namespace, training_job(data={"template": {"nodeSelector": {"a": "b"}}})))
    assert made.is_success, made.text
    change = {"spec": {"data": {"template": {"nodeSelector": {"a": "c"}}}}}
    merge = {"Content-Type": "application/merge-patch+json"}
    refused = api.http.patch(f"{place}/demo", json=change, headers=merge)
    assert "data may change only while the job is suspended" in refused.text
    assert api.http.patch(f"{place}/demo", json={"spec": {"suspend": True}}, headers=merge).is_success
    assert api.http.patch(f"{place}/demo", json=change, headers=merge).is_success
