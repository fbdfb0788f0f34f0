"""The process that probes one device on standby once: between two of them none holds memory of the device."""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from typing import NoReturn

import msgspec
import torch

from coxswain.exits import Exit
from coxswain_link.cgroup import CoreShare
from coxswain_link.environment import Environment, leave, run_service
from coxswain_train.engine.probe import Probe, busy_seconds
from coxswain_train.worker.assignments import ENV_CHANNEL, Probed
from coxswain_train.worker.worker import device_of


def work() -> NoReturn:
    """What the fork server runs in the fork."""
    torch.set_num_threads(1)
    leave(run_service(main))


def main(env: Environment) -> int:
    """Touches the device only once the agent knows of this process, which may need the device for a worker."""
    with socket.socket(fileno=int(os.environ[ENV_CHANNEL])) as agent, suppress(OSError):  # the agent is gone
        if agent.recv(1):
            device = device_of(env.job.parallelism.hardware)
            seconds = busy_seconds(Probe(device), CoreShare() if device.type == "cpu" else None)
            agent.send(msgspec.json.encode(Probed(seconds)))
    return Exit.DONE
