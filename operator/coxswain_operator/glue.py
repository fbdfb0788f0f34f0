"""kopf as glue: it watches our four kinds and rings for the jobs concerned. What is done about it is reconcile's business.

Only `on.event` handlers: kopf's others write annotations and finalizers into objects, and remember what they handled.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import kopf

from coxswain.api.kinds import KINDS
from coxswain.names import GROUP, LABEL_JOB, VERSION
from coxswain_operator.cluster import Change, Manifest
from coxswain_operator.kubernetes import KubernetesCluster
from coxswain_operator.kubernetes.access import Access
from coxswain_operator.kubernetes.keyed import Key

Ring = Callable[[Key], None]


async def operate(cluster: KubernetesCluster, access: Access, ring: Ring, namespaces: tuple[str, ...] = ()) -> None:
    """Rings for jobs until SIGTERM, which kopf takes for itself. Raises RuntimeError when a watch ends otherwise."""
    scopes = namespaces or ("",)
    await cluster.served([kind.plural for kind in KINDS])  # kopf looks for them once, as it starts
    for namespace in scopes:
        # Jobs before pods: what a job's status says of its pods must never be newer than what is known of them.
        await cluster.list("TrainingJob", namespace)
    pods = [asyncio.create_task(_ring_for_pods(cluster, namespace, ring)) for namespace in scopes]
    ours = asyncio.create_task(_kopf(_registry(cluster, access, ring), namespaces))
    try:
        await asyncio.wait({ours, *pods}, return_when=asyncio.FIRST_COMPLETED)
        if not ours.done():
            raise RuntimeError("the watch of pods has ended by itself; the operator must start anew")
        await ours
    finally:
        for task in (ours, *pods):
            task.cancel()


async def _kopf(registry: kopf.OperatorRegistry, namespaces: tuple[str, ...]) -> None:
    await kopf.operator(
        registry=registry, settings=_settings(), standalone=True, clusterwide=not namespaces, namespaces=namespaces
    )


async def _ring_for_pods(cluster: KubernetesCluster, namespace: str, ring: Ring) -> None:
    async for change in cluster.watch("Pod", namespace):
        meta = change.object["metadata"]
        if job := (meta.get("labels") or {}).get(LABEL_JOB):
            ring((meta["namespace"], job))


def _registry(cluster: KubernetesCluster, access: Access, ring: Ring) -> kopf.OperatorRegistry:
    registry = kopf.OperatorRegistry()

    async def log_in(**_: Any) -> kopf.ConnectionInfo:
        return _connection_info(access)

    async def heard(event: Any, **_: Any) -> None:
        """The object comes along into the cache: a turn that this ring brings about must find it there."""
        change = Change("DELETED" if event["type"] == "DELETED" else "MODIFIED", _plain(event["object"]))
        if cluster.note(change):  # not what we wrote ourselves
            for key in await _concerned(cluster, change.object):
                ring(key)

    kopf.on.login(registry=registry)(log_in)
    for kind in KINDS:
        kopf.on.event(GROUP, VERSION, kind.plural, registry=registry, id=kind.plural)(heard)
    return registry


async def _concerned(cluster: KubernetesCluster, item: Manifest) -> list[Key]:
    """A job itself; of anything else all jobs of its namespace, since any of them may refer to it."""
    namespace = item["metadata"]["namespace"]
    if item["kind"] == "TrainingJob":
        return [(namespace, item["metadata"]["name"])]
    return [(namespace, job["metadata"]["name"]) for job in await cluster.list("TrainingJob", namespace)]


def _plain(body: Any) -> Manifest:
    """kopf may hand out read-only views."""
    return {**body, "metadata": {**body["metadata"]}}


def _settings() -> kopf.OperatorSettings:
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False  # events are ours: stable reasons, after the status write
    settings.peering.standalone = True  # a Lease decides who acts, not kopf's peering
    settings.scanning.disabled = True  # no rights on namespaces and CRDs; new CRDs need a restart
    settings.watching.chunk_size = 500
    return settings


def _connection_info(access: Access) -> kopf.ConnectionInfo:
    scheme, _, token = access.authorization().partition(" ")
    c = access.configuration
    return kopf.ConnectionInfo(
        server=access.url,
        ca_path=c.ssl_ca_cert,
        insecure=not c.verify_ssl,
        scheme=scheme if token else None,
        token=token or None,
        certificate_path=c.cert_file,
        private_key_path=c.key_file,
    )
