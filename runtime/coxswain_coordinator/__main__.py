"""`python -m coxswain_coordinator`: one job's coordinator.

It exits last, with its final report as termination message.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import sys
import time
from functools import partial

from coxswain import names
from coxswain.errors import Retryable
from coxswain.names import PORT_COORDINATOR
from coxswain.uris import file_uri
from coxswain.wire import Finished
from coxswain_coordinator.api.report import termination_message
from coxswain_coordinator.checkpoint.claim import Claim, LiveRun
from coxswain_coordinator.checkpoint.validation import job_of
from coxswain_coordinator.coordinator import Coordinator
from coxswain_coordinator.planning.mix_edits import MixEdits
from coxswain_coordinator.planning.placers import place_step
from coxswain_link import garbage
from coxswain_link.environment import Environment, allow_open_files, leave, run_service
from coxswain_link.hardware import hardware_of
from coxswain_link.store import Store, open_store

_SWITCH = 0.0005
"""Seconds between thread switches. A planning thread would else hold the interpreter for 5 ms at every call to a socket, so
that thousands of ranks wait for one segment of plans."""


def main(environment: Environment) -> int:
    prepare()
    return asyncio.run(_serve(environment))


def prepare() -> None:
    """Makes this process fit for thousands of connections beside a planner."""
    sys.setswitchinterval(_SWITCH)
    garbage.leave_out_what_exists()
    garbage.collect_between_steps_alone()
    allow_open_files()


async def _serve(environment: Environment) -> int:
    job = environment.job
    store = open_store(job.checkpoint.uri, job.checkpoint.endpoint, environment.secrets_dir, create=True)
    hardware = hardware_of(job, environment.secrets_dir)
    planner = partial(place_step, hardware=hardware)
    coordinator = Coordinator(
        job, store, environment.token, planner, environment.pod_name, environment.run_dir, clock=time.time,
        recorded_step=environment.recorded_step, config=environment.config, hardware=hardware,
        edits=MixEdits(environment.job_file, job), claim=claim_of(environment, store),
    )  # fmt: skip
    await coordinator.start(environment.pod_ip, PORT_COORDINATOR)
    try:
        finished = await _run_until_stopped(coordinator)
    finally:
        await coordinator.stop()
    if environment.termination_log is not None:
        environment.termination_log.write_bytes(termination_message(coordinator.report()))
    return finished.exit_code


def claim_of(environment: Environment, store: Store) -> Claim | None:
    """On S3 and on volumes of a cluster: `cox run` locks a folder of this machine."""
    job = environment.job
    if not job.checkpoint.uri.startswith(("s3://", f"{file_uri(names.CLAIMS_ROOT)}/")):
        return None
    place = f"{socket.gethostname()}, {environment.run_dir or 'no run directory'}"
    return Claim(store, LiveRun(job_of(job), job.uid, environment.pod_name, place))


async def _run_until_stopped(coordinator: Coordinator) -> Finished:
    """Cancels the work on SIGTERM: plans and checkpoints are in the store.

    A finished job stays so.
    """
    work = asyncio.ensure_future(coordinator.drive())
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, work.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        return await work
    if (finished := coordinator.finished) is not None:
        return finished
    raise Retryable("stopped by SIGTERM")


if __name__ == "__main__":
    leave(run_service(main))
