"""An operator that is newer than the installed CustomResourceDefinitions: the server cannot place a field of a status."""

from __future__ import annotations

from typing import Any

import pytest
from aiohttp import web

from coxswain_operator.cluster import Denied
from coxswain_operator.kubernetes.cluster import KubernetesCluster
from coxswain_operator.refusals import fault_of
from tests.answering import answering

WORDS = (
    "failed to create typed patch object (lab/demo; coxswain.dev/v1alpha1, Kind=TrainingJob): .status.tokenSecret: field not "
    "declared in schema"
)  # of kube-apiserver 1.35


async def test_a_status_that_the_installed_kinds_do_not_know_is_refused_at_once_and_names_the_way_out() -> None:
    """The server answers 500. Repeated as a failure of the server, it would be in the operator's log alone, as `unhealthy`."""
    asked = list[str]()

    async def answer(request: web.Request) -> web.Response:
        asked.append(request.method)
        body: dict[str, Any] = {"kind": "Status", "status": "Failure", "message": WORDS, "code": 500}
        return web.json_response(body, status=500)

    async with answering(answer) as connection:
        with pytest.raises(Denied) as refused:
            await KubernetesCluster(connection).patch_status("TrainingJob", "lab", "demo", {"attempt": 1}, "7")
    assert asked == ["PATCH"]
    fault = fault_of("the status of TrainingJob demo", refused.value)
    assert (fault.reason, fault.retryable) == ("KindsOutdated", True)
    assert fault.message.endswith("; apply the CustomResourceDefinitions of the operator's release")
