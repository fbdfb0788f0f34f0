"""Changes the number of trainers of a running job: refuses what cannot train, and says what is awaited. Pure but for `resize`."""

from __future__ import annotations

from coxswain.config import JobConfig
from coxswain.layout import Device, Layout, layout_for
from coxswain.wire import SizeReply
from coxswain_coordinator.capacity import capacity_fault, change_fault, devices_of
from coxswain_coordinator.state.imports import awaited_imports
from coxswain_coordinator.state.job_state import JobState
from coxswain_coordinator.state.registry import join
from coxswain_coordinator.world.presence import least_trainers
from coxswain_coordinator.world.saves import last_save


async def resize(state: JobState, trainers: int) -> SizeReply:
    """Asks for this many trainers. Idempotent; the driver does the rest. What devices would hold is counted beside the loop."""
    why = await state.store_executor(refusal, state.sized_job, state.size, trainers, state.registry.nodes())
    present = here(state)
    if why:
        return SizeReply("Refused", len(present), why)
    state.resize(trainers)
    if present == set(range(trainers)):
        return SizeReply("Done", trainers)
    return SizeReply("UnderWay", len(present), f"waiting for {_awaited(state, trainers)}")


def _awaited(state: JobState, trainers: int) -> str:
    if missing := state.registry.missing("trainer", trainers):
        return f"{join(missing)} to register"
    if why := awaited_imports(state.registry.present("trainer", trainers)):
        return why
    if state.session and (step := last_save(state.session)) is not None:
        return f"step {step} to be saved, since trainers that leave hold state"
    return "the world to change at a step boundary"


def here(state: JobState) -> set[int]:
    """Indices of the trainers in the current world; none where it is lost."""
    if state.session is None or state.session.lost:
        return set()
    return {device.trainer for device in devices_of(state.session.world.layout)}


def refusal(job: JobConfig, size: int, trainers: int, nodes: tuple[str, ...] = ()) -> str:
    """Why a job of `size` trainers cannot have so many; empty: it can. `nodes`: of each trainer, as far as they are known."""
    parallel, least = job.parallelism, least_trainers(job, trainers)
    if trainers < least:
        return f"trainers {trainers}: at least {least} are allowed (trainers.minCount)"
    if trainers == size:
        return ""
    if parallel.layout and parallel.mode != "Auto":
        return "parallelism.layout names every replica: change it, and the job restarts at a checkpoint"
    before, after = (_layout(job, count) for count in (size, trainers))
    if short := capacity_fault(job, after):
        return short.removesuffix("; waiting for more trainers")
    return "" if parallel.mode == "Auto" else change_fault(job, before, after, nodes)


def _layout(job: JobConfig, trainers: int) -> Layout:
    devices = [Device(t, d) for t in range(trainers) for d in range(job.devices_per_trainer)]
    return layout_for(devices, job.model.layers, job.parallelism)
