"""Which devices a trainer has, and the environment that gives them to its processes. No torch, no CUDA."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import takewhile
from pathlib import Path

from coxswain.config import JobConfig
from coxswain.errors import Refused
from coxswain_link.environment import Environment

CPU = "cpu"  # the hardware of jobs that use no CUDA device, also where there are some

# On CPUs workers, not threads, share the cores. What a step frees, the next step takes again: with glibc's own thresholds
# the kernel takes it back in between, and clears it in every step (0 to 8 % of a step, by the heap's order).
ON_CPU = {"OMP_NUM_THREADS": "1", "MALLOC_TRIM_THRESHOLD_": str(1 << 30), "MALLOC_MMAP_THRESHOLD_": str(32 << 20)}

# Tasks of a job have tens of sizes: blocks of fixed size would leave gaps of a GPU's memory that no later task fits into.
ON_GPU = {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}
_OWN_ALLOC_CONF = {"PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"}  # torch reads the second where the first is not set


def fork_server_environment(inherited: Mapping[str, str], devices: Sequence[str]) -> dict[str, str]:
    """What must be set before torch is imported. What the container sets itself wins."""
    on_gpu = {} if _OWN_ALLOC_CONF & inherited.keys() else ON_GPU
    return {**(on_gpu if devices else ON_CPU), **inherited}


def worker_environment(env: Environment, device: int, devices: Sequence[str]) -> dict[str, str]:
    """What one worker has besides the environment of the fork server."""
    if env.job.parallelism.hardware == CPU:
        return {"CUDA_VISIBLE_DEVICES": ""}
    if not devices:
        return {}
    # A pod sees its own devices only. On one machine all pods see all devices, and divide them by index.
    slot = env.index * env.job.devices_per_trainer + device
    return {"CUDA_VISIBLE_DEVICES": devices[slot % len(devices)]}


def trainer_devices(job: JobConfig, environment: Mapping[str, str], folder: Path = Path("/dev")) -> tuple[str, ...]:
    """CUDA devices for this trainer's workers: none where the job's hardware is cpu. Refuses fewer than its workers."""
    devices = () if job.parallelism.hardware == CPU else visible_devices(environment, folder)
    if 0 < len(devices) < job.devices_per_trainer:
        raise Refused(
            "TooFewDevices",
            f"spec.trainers.devicesPerTrainer: {job.devices_per_trainer}, and the trainer sees {len(devices)} CUDA devices "
            f"({', '.join(devices)}); lower devicesPerTrainer, or give the trainer as many devices",
        )
    return devices


def visible_devices(environment: Mapping[str, str], folder: Path = Path("/dev")) -> tuple[str, ...]:
    """CUDA devices of this machine, without loading CUDA. A negative one hides itself and those behind it, as in CUDA."""
    chosen = environment.get("CUDA_VISIBLE_DEVICES")
    if chosen is not None:
        return tuple(takewhile(lambda d: not d.startswith("-"), filter(None, map(str.strip, chosen.split(",")))))
    return tuple(str(i) for i in range(len(list(folder.glob("nvidia[0-9]*")))))
