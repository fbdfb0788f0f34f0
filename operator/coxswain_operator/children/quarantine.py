"""The NodeQuarantine that the operator makes for a job which asks for another node."""

from __future__ import annotations

from coxswain import names
from coxswain.wire import NodeRequest
from coxswain_operator.views import Manifest

REASON = "Slow"


def quarantine(job: Manifest, request: NodeRequest, until: str, node_uid: str = "") -> Manifest:
    """Named after its node: a node has one of the operator's. No job owns it, since it is about all jobs.

    Without `node_uid` it is of whatever node has the name.
    """
    meta = job["metadata"]
    labels = {names.LABEL_JOB: meta["name"], names.LABEL_JOB_UID: meta["uid"]}
    place = f"{meta['namespace']}/{meta['name']}, {request.trainer}"
    return {
        "apiVersion": names.API_VERSION,
        "kind": "NodeQuarantine",
        "metadata": {"name": request.node, "labels": labels},
        "spec": {
            "node": request.node,
            **({"nodeUid": node_uid} if node_uid else {}),
            "reason": REASON,
            "evidence": f"{place}: {request.evidence}"[:1024],
            "until": until,
        },
    }
