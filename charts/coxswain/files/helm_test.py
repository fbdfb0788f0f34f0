"""The program of `helm test`, run in the operator's image.

It checks that an operator leads, that the API server validates jobs by our schema and rules, and that it serves the kinds
that a release needs besides.
"""

from __future__ import annotations

import copy
import sys
import time
from typing import Any

from kubernetes import client, config

LEASE = "coxswain-operator"
SECONDS = 120  # for an operator to come up and lead
JOB: dict[str, Any] = {
    "apiVersion": "coxswain.dev/v1alpha1",
    "kind": "TrainingJob",
    "metadata": {"name": "helm-test"},
    "spec": {
        "model": {"preset": "llama-tiny"},
        "mixRef": {"name": "mix"},
        "parallelism": {"hybridData": {"tokensPerReplica": 1024}},
        "batch": {"tokensPerStep": 8192, "maxSequenceTokens": 2048},
        "optimizer": {"learningRate": "3e-4"},
        "stop": {"steps": 100},
        "trainers": {"count": 4},
        "checkpoint": {"uri": "s3://runs/helm-test/"},
    },
}


def holder(namespace: str) -> str:
    """Identity of the leader; empty if there is none."""
    try:
        lease = client.CoordinationV1Api().read_namespaced_lease(LEASE, namespace)
    except client.ApiException as error:
        if error.status == 404:
            return ""
        raise
    return str(lease.spec.holder_identity or "")


def leader(namespace: str, seconds: int) -> str:
    end = time.monotonic() + seconds
    while not (found := holder(namespace)):
        if time.monotonic() > end:
            sys.exit(f"no operator has taken the Lease {namespace}/{LEASE} within {seconds} s; look at its pods")
        time.sleep(1)
    return found


def answer(namespace: str, job: dict[str, Any]) -> str:
    """The API server's refusal of a job in a dry run; empty: it accepts it."""
    try:
        client.CustomObjectsApi().create_namespaced_custom_object(
            "coxswain.dev", "v1alpha1", namespace, "trainingjobs", job, dry_run="All", field_validation="Strict"
        )
    except client.ApiException as error:
        return f"{error.status} {error.body}"
    return ""


def lacking(kinds: tuple[str, ...]) -> list[str]:
    """Those of the kinds that the API server does not serve."""
    found = client.CustomObjectsApi().get_api_resources("coxswain.dev", "v1alpha1").resources
    return sorted(set(kinds) - {resource.name for resource in found})


def main(namespace: str, *kinds: str, seconds: int = SECONDS) -> None:
    config.load_incluster_config()
    print(f"{leader(namespace, seconds)} leads")
    if words := answer(namespace, JOB):
        sys.exit(f"a right TrainingJob was refused: {words}")
    wrong = copy.deepcopy(JOB)
    wrong["spec"]["trainers"]["count"] = 0
    if not answer(namespace, wrong).startswith("422"):
        sys.exit(
            "a TrainingJob without trainers was not refused: the kinds in this cluster are not those of this release"
        )
    if absent := lacking(kinds):
        sys.exit(
            f"the API server serves no {', '.join(absent)}: set crds.enabled=true, or apply what `cox crds` prints "
            "with `kubectl apply --server-side`"
        )
    print("jobs are judged")


if __name__ == "__main__":
    main(*sys.argv[1:])
