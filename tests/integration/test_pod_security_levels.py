"""What our table says of Pod Security is what a real API server enforces: no template passes us that a level refuses there."""

from __future__ import annotations

import pytest

from coxswain_operator.children.pod_security import violations
from coxswain_operator.children.template_policy import ENFORCE
from e2e.tools.other_kubernetes import minor
from tests.integration.apiserver import ApiServer
from tests.integration.operator_parts import new_namespace
from tests.unit.test_pod_security import REFUSED, TAKEN, pod

CASES = [*(case[0] for case in REFUSED), *TAKEN]


@pytest.mark.skipif(minor() < 35, reason="templates are judged by the standards of Kubernetes 1.35")
@pytest.mark.parametrize("level", ["privileged", "baseline", "restricted"])
def test_the_server_refuses_the_pods_that_we_refuse_and_no_others(api: ApiServer, level: str) -> None:
    namespace = new_namespace(api)
    place = f"/api/v1/namespaces/{namespace}"
    merge = {"Content-Type": "application/merge-patch+json"}
    label = {"metadata": {"labels": {ENFORCE: level, f"{ENFORCE}-version": "latest"}}}
    assert api.http.patch(place, json=label, headers=merge).is_success
    account = {"metadata": {"name": "default"}}
    assert api.http.post(f"{place}/serviceaccounts", json=account).status_code in (201, 409)
    differing = []
    for number, change in enumerate(CASES):
        spec = {"automountServiceAccountToken": False, **pod(change)}
        body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": f"p-{number}"}, "spec": spec}
        answer = api.http.post(f"{place}/pods", json=body, params={"dryRun": "All"})
        refused = answer.status_code == 403 and "violates PodSecurity" in answer.text
        assert refused or answer.is_success, f"{change}: {answer.text}"
        if refused != any(violations({}, spec, level)):
            differing.append((change, answer.text))
    assert differing == []
