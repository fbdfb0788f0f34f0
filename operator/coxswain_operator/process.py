"""The operator's process: waits for the Lease, then reconciles TrainingJobs until it loses it or gets SIGTERM."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import socket
import sys
import uuid
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from coxswain.errors import Refused, Retryable
from coxswain.exits import Exit
from coxswain.names import CONTROLLER, host_port
from coxswain.structs import UNDECODABLE
from coxswain_link import metrics
from coxswain_operator.children.gangs import CHOICES
from coxswain_operator.children.job_token import TokenKeys
from coxswain_operator.clock import SteadyClock
from coxswain_operator.cluster import Conflict
from coxswain_operator.controller import Controller
from coxswain_operator.health import HealthStatus, LoopLag, serve_health
from coxswain_operator.jobcontrol import HttpJobControl
from coxswain_operator.kopf_watches import adds_words, run_watches
from coxswain_operator.kubernetes import Connection, KubernetesCluster, find_access
from coxswain_operator.kubernetes.connection import AuthorityChanged
from coxswain_operator.kubernetes.discovery import find_gang_backend
from coxswain_operator.kubernetes.token_keys import load_keys
from coxswain_operator.leader import Leader, Timing
from coxswain_operator.report_poller import ReportPoller
from coxswain_operator.settings import Settings, TemplatePolicy
from coxswain_operator.workqueue import Key, RequeueDelay, WorkQueue

log = logging.getLogger("coxswain_operator")

LEASE = "coxswain-operator"
POLL_SECONDS = 60.0  # between two passes over a job without changes
_DEFAULTS = Settings()


@dataclass(frozen=True, slots=True)
class Options:
    """Options of the command line."""

    kubeconfig: Path | None
    namespaces: tuple[str, ...]
    timing: Timing
    identity: str
    host: str
    port: int
    settings: Settings
    gang_scheduling: str = "None"  # a key of CHOICES


def main(
    kubeconfig: Annotated[Path | None, typer.Option(help="Default: the pod's service account.")] = None,
    namespace: Annotated[list[str] | None, typer.Option(help="Reconcile only here; repeatable. Default: all.")] = None,
    operator_namespace: Annotated[str, typer.Option(help="Where the Lease is.")] = "coxswain-system",
    lease_seconds: Annotated[
        float, typer.Option(help="Another operator takes over after a holder's silence of that long.")
    ] = 15,
    renew_seconds: Annotated[float, typer.Option(help="A leader that cannot renew for that long exits.")] = 10,
    retry_seconds: Annotated[float, typer.Option(help="Between two attempts.")] = 2,
    identity: Annotated[str, typer.Option(help="As the Lease's holder; must be of one process. Default: random.")] = "",
    host: Annotated[str, typer.Option(help="Of /healthz, /readyz and /metrics. Default: every address.")] = "",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: the kernel's choice.")] = 8080,
    data_image: Annotated[str, typer.Option(help="Coordinator, loaders, constructors.")] = _DEFAULTS.data_image,
    train_image: Annotated[str, typer.Option(help="Trainers that name no image.")] = _DEFAULTS.train_image,
    pull_policy: Annotated[str, typer.Option(help="imagePullPolicy of both.")] = _DEFAULTS.pull_policy,
    prometheus_namespace: Annotated[str, typer.Option(help="Its pods may scrape jobs; empty: no pod may.")] = "",
    gang_scheduling: Annotated[str, typer.Option(help=f"What places gangs: {', '.join(CHOICES)}.")] = "None",
    gang_scheduler: Annotated[str, typer.Option(help="schedulerName of pods in gangs; empty: as usual.")] = "",
    managed_by: Annotated[str, typer.Option(help="spec.managedBy of the jobs to reconcile.")] = CONTROLLER,
    pod_templates: Annotated[
        str, typer.Option(help="What templates may set: the chart's podTemplates as JSON.")
    ] = "{}",
    quarantine: Annotated[bool, typer.Option(help="Read NodeQuarantines, and make them for jobs that ask.")] = False,
    quarantine_limit: Annotated[int, typer.Option(min=0, help="Nodes that it quarantines itself, at a time.")] = 1,
) -> None:
    """Runs the operator."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    for chatty in ("httpx", "kopf"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    for handler in logging.getLogger().handlers:
        handler.addFilter(adds_words)
    try:
        settings = Settings(
            data_image, train_image, pull_policy, prometheus_namespace=prometheus_namespace,
            operator_namespace=operator_namespace, managed_by=managed_by, templates=template_policy(pod_templates),
            gang_scheduler=gang_scheduler, quarantine=quarantine, quarantine_limit=quarantine_limit,
        )  # fmt: skip
        timing = Timing(lease_seconds, renew_seconds, retry_seconds)
        options = Options(kubeconfig, tuple(namespace or ()), timing, identity, host, port, settings, gang_scheduling)
        asyncio.run(run(options))
    except Refused as error:
        sys.exit(_say(error, Exit.USER_FAULT))
    except (AuthorityChanged, Retryable, OSError) as error:
        sys.exit(_say(error, Exit.RETRYABLE))
    except asyncio.CancelledError:  # SIGTERM
        log.info("SIGTERM received on standby")


def template_policy(text: str) -> TemplatePolicy:
    """Raises Refused."""
    try:
        return msgspec.json.decode(text, type=TemplatePolicy)
    except UNDECODABLE as error:
        message = f"--pod-templates: {error}; give the chart's podTemplates as JSON"
        raise Refused("OptionUnusable", message) from error


def _say(error: Exception, code: Exit) -> int:
    log.error("%s", error)
    return int(code)


async def run(options: Options) -> None:
    """Runs until SIGTERM or SIGINT. Exits the process when the Lease is lost."""
    task = asyncio.current_task()
    assert task is not None
    gc.collect()
    gc.freeze()  # of 80,000 objects that imports leave none is garbage: each full collection would look at them for 60 ms
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)  # until it leads
    access, registry = find_access(options.kubeconfig), metrics.build("operator")
    async with AsyncExitStack() as stack:
        requests = registry["coxswain_api_requests_total"]
        # A connection of its own: a renewal must not queue behind requests for a thousand pods.
        leader = _leader(options, await stack.enter_async_context(Connection(access)))
        count, at_once = (lambda method, status: requests.labels(method, status).inc()), options.settings.at_once
        connection = await stack.enter_async_context(Connection(access, 10.0, at_once, count, leader.may_write))
        lag = LoopLag()
        stack.callback(asyncio.create_task(lag.measure(), name="loop lag").cancel)
        vitals = Vitals(leader, lag, options.timing.renew)
        health = await serve_health(options.host, options.port, vitals.status, registry)
        stack.push_async_callback(health.cleanup)
        log.info("health on %s", host_port(*health.addresses[0][:2]))
        backend = await find_gang_backend(connection, options.gang_scheduling)
        settings = replace(options.settings, gang_backend=backend)
        cluster = await stack.enter_async_context(
            KubernetesCluster(connection, bool(options.namespaces), gang_backend=backend)
        )
        keys = TokenKeys(await load_keys(connection, options.settings.operator_namespace))
        control = ReportPoller(HttpJobControl(cluster, keys=keys), lambda key: queue.add(key))
        stack.push_async_callback(control.close)
        clock = SteadyClock(connection.now)  # which knows the server's time: it has answered
        controller = Controller(cluster, control, clock, settings, POLL_SECONDS, keys=keys)
        queue = WorkQueue(measured(controller, registry))
        vitals.watch(cluster, queue)
        quarantine = options.settings.quarantine
        watches = run_watches(cluster, access, queue.add, options.namespaces, quarantine=quarantine)
        await _lead(leader, queue, watches)


class Vitals:
    """What /healthz measures. It is served before the API server has answered: a kubelet must not end an operator that waits."""

    def __init__(self, leader: Leader, lag: LoopLag, renew: float) -> None:
        self._leader, self._lag, self._renew = leader, lag, renew
        self._watched: tuple[KubernetesCluster, WorkQueue] | None = None

    def watch(self, cluster: KubernetesCluster, queue: WorkQueue) -> None:
        """Measures these too from now on."""
        self._watched = cluster, queue

    def status(self, now: float) -> HealthStatus:
        """`now` as time.monotonic()."""
        unrenewed = now - self._leader.renewed if self._leader.renewed else 0.0
        if self._watched is None:
            return HealthStatus(unrenewed=unrenewed, lag=self._lag.seconds, renew=self._renew)
        cluster, queue = self._watched
        waiting, stalled, jobs = queue.oldest(now), queue.stalled(now), len(queue.keys)
        return HealthStatus(cluster.silence(now), waiting, stalled, unrenewed, jobs, self._lag.seconds, self._renew)


def _leader(options: Options, connection: Connection) -> Leader:
    """With `--identity`, a restarted container renews its predecessor's Lease without a wait."""
    identity = options.identity or f"{socket.gethostname()}_{uuid.uuid4().hex[:8]}"
    return Leader(connection, options.settings.operator_namespace, LEASE, identity, options.timing)


async def _lead(leader: Leader, queue: WorkQueue, work: Coroutine[None, None, None]) -> None:
    """Works while this process holds the Lease. Without it no write is allowed: the process exits at once."""
    try:
        await leader.acquire()
    except BaseException:
        work.close()
        raise
    async with queue:
        holding, working = asyncio.create_task(leader.hold()), asyncio.create_task(work)
        await asyncio.wait({holding, working}, return_when=asyncio.FIRST_COMPLETED)
        if holding.done():
            log.critical("no longer the leader: exiting", exc_info=holding.exception())
            logging.shutdown()
            os._exit(Exit.RETRYABLE)
        holding.cancel()
    await leader.release()
    await working


def measured(
    controller: Controller, registry: metrics.MetricsRegistry
) -> Callable[[Key], Awaitable[RequeueDelay | None]]:
    """One pass over a key, measured."""

    async def process(key: Key) -> RequeueDelay | None:
        result = "error"
        with registry["coxswain_reconcile_seconds"].time():
            try:
                rest = await controller.reconcile_job(*key)
                result = "ok"
            except Conflict:
                result = "conflict"
                raise
            finally:
                registry["coxswain_reconcile_total"].labels(result).inc()
        return rest

    return process


if __name__ == "__main__":
    typer.run(main)
