"""The constructor: fetches what its trainer's ranks compute, some steps ahead, and hands it over.

Runs as `python -m coxswain_data.constructor`, a sidecar in the trainer's pod. It can rebuild all
its state from the plan.
"""

from __future__ import annotations

import logging
import sys
import threading
import uuid
from typing import NoReturn

from coxswain import names
from coxswain.wire import Register, Registered, World
from coxswain_data.block_map import BlockMaps
from coxswain_data.builder import Builder
from coxswain_data.fetched import Fetched
from coxswain_data.fetcher import Fetcher
from coxswain_data.step_cache import StepCache
from coxswain_link.environment import Environment, end_as, leave, run_service, until_sigterm
from coxswain_link.handover import HandoverServer
from coxswain_link.http_client import Client, JobEnded
from coxswain_link.metrics import MetricsRegistry, build
from coxswain_link.status import serve_status

log = logging.getLogger(__name__)

POLL_SECONDS = 15.0  # seconds of one long poll: the end of a coordinator cuts it short
_COORDINATOR_AWAY = 120.0  # seconds until a constructor exits, which restarts it
_EXIT_DELAY = 30.0  # seconds for the trainer to exit first
_SWITCH = 0.0005  # seconds between thread switches: a hand-over must not wait for a later step's build


class Constructor:
    """Follows the world: starts a builder for each generation, which drops the former buffers and keeps their tokens."""

    def __init__(self, env: Environment, coordinator: Client, step_cache: StepCache, metrics: MetricsRegistry) -> None:
        self._env, self._coordinator, self._step_cache, self._metrics = env, coordinator, step_cache, metrics
        self.generation = 0
        self._blocks, self._fetched = BlockMaps(coordinator), Fetched()

    def follow(self) -> NoReturn:
        """Registers and follows the world until the job ends (raises JobEnded)."""
        env = self._env
        me = Register("constructor", env.name, env.pod_name, uuid.uuid4().hex, env.pod_ip, 0, config=env.config)
        while True:
            self._coordinator.post("/v1/register", me, Registered)
            world = self._coordinator.get(
                "/v1/world", World, after=self.generation, wait=POLL_SECONDS, instance=me.instance
            )
            if world is not None:
                self._enter(world)

    def _enter(self, world: World) -> None:
        self.generation = world.generation
        log.info("generation %d begins at step %d", world.generation, world.first_step)
        fetcher = Fetcher(world, self._coordinator, self._env.token, self._metrics, self._blocks)
        cache, metrics = self._step_cache, self._metrics
        builder = Builder(world, self._env.name, self._coordinator, fetcher, cache, metrics, self._fetched)
        threading.Thread(target=builder.run, name=f"builder-{world.generation}", daemon=True).start()


def main(env: Environment) -> int:
    """Serves until the job and its trainer have ended; returns the job's exit code.

    The kubelet restarts a sidecar that exits before its pod's main container. A starting process
    ignores SIGTERM, so the pod would use up its grace period.
    """
    sys.setswitchinterval(_SWITCH)
    metrics = build("constructor")
    step_cache = StepCache(env.job.prefetch_steps, metrics["coxswain_constructor_ready_steps"].set)
    observe = metrics["coxswain_constructor_handover_seconds"].observe
    with Client(env.coordinator_url, env.token, _COORDINATOR_AWAY) as coordinator:
        constructor = Constructor(env, coordinator, step_cache, metrics)
        handover = HandoverServer(names.constructor_socket(env.pod_uid), env.token, step_cache.provide, observe)
        status = serve_status(env.pod_ip, names.PORT_CONSTRUCTOR_HTTP, metrics)
        try:
            constructor.follow()
        except JobEnded as end:
            with until_sigterm():
                threading.Event().wait(_EXIT_DELAY)
            return end_as(end.finished, env)
        finally:
            step_cache.close()
            status.close()
            handover.close()


if __name__ == "__main__":
    leave(run_service(main))
