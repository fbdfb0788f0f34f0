"""Experiment trackers that a job may name: TensorBoard's event files and Weights & Biases. Their packages are optional."""

from __future__ import annotations

import importlib
import importlib.util
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from coxswain.config import JobConfig, TensorBoardConfig, WandbConfig
from coxswain.errors import Refused
from coxswain.wire import StepLine


class Sink(Protocol):
    """One tracker. Any call may raise or take long: `Tracking` calls from a thread of its own."""

    def write(self, step: int, scalars: Mapping[str, float]) -> None: ...

    def close(self) -> None: ...


def scalars(line: StepLine) -> dict[str, float]:
    """The numbers of a step by the names that trackers show. What is unknown is left out."""
    rate = line.tokens / line.seconds if line.seconds else None
    found = {
        "train/loss": line.loss, "train/gradient_norm": line.gradient_norm, "train/learning_rate": line.learning_rate,
        "evaluation/loss": line.evaluation_loss, "throughput/tokens_per_second": rate, "throughput/mfu": line.mfu,
        "throughput/idle_fraction": line.idle_fraction, "throughput/step_seconds": line.seconds,
    }  # fmt: skip
    return {name: value for name, value in found.items() if value is not None}


class TensorBoard:
    """Event files in a folder. A step that is computed again hides what later steps wrote before."""

    def __init__(self, folder: Path) -> None:
        self._module, self._folder = importlib.import_module("tensorboardX"), folder
        self._writer: Any = None
        self._next = self._files = 0

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        if self._writer is None or step < self._next:
            self.close()
            self._files += 1
            suffix = f".{os.getpid()}.{self._files}"  # two files of one second would have one name
            self._writer = self._module.SummaryWriter(
                str(self._folder), purge_step=step, flush_secs=10, filename_suffix=suffix
            )
        for name, value in scalars.items():
            self._writer.add_scalar(name, value, step)
        self._next = step + 1

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None


class Wandb:
    """A run of Weights & Biases, the same for all attempts of a job."""

    def __init__(self, config: WandbConfig, job: JobConfig, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._module: Any = importlib.import_module("wandb")
        settings = self._module.Settings(console="off", silent=True, disable_git=True, x_disable_stats=True)
        self._run = self._module.init(
            project=config.project, entity=config.entity or None, name=job.name, id=job.uid, resume="allow",
            mode=config.mode.lower(), dir=str(folder), settings=settings,
        )  # fmt: skip
        self._run.define_metric("*", step_metric="step")

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        self._run.log({"step": step, **scalars})

    def close(self) -> None:
        self._run.finish()
        self._module.teardown()  # its service writes the file behind the end of the run, and would be killed with a container


def sinks_of(job: JobConfig, run_dir: Path | None) -> dict[str, Callable[[], Sink]]:
    """How to open each tracker that the job names, by its field."""
    folder, tracking = run_dir or Path("/tmp"), job.tracking
    found: dict[str, Callable[[], Sink]] = {}
    if (board := tracking.tensorboard) is not None:
        found["tensorboard"] = lambda: TensorBoard(_folder_of(board, folder))
    if (wandb := tracking.wandb) is not None:
        found["wandb"] = lambda: Wandb(wandb, job, folder)
    return found


def _folder_of(config: TensorBoardConfig, run_dir: Path) -> Path:
    return Path(config.directory) if config.directory else run_dir / "tensorboard"


_PACKAGES = {"tensorboard": "tensorboardX", "wandb": "wandb"}


def check_packages(job: JobConfig) -> None:
    """Raises Refused when the package of a tracker that the job names is not installed."""
    absent = [field for field in sinks_of(job, None) if importlib.util.find_spec(_PACKAGES[field]) is None]
    if absent:
        named = ", ".join(f"spec.tracking.{field}: the package {_PACKAGES[field]} is not installed" for field in absent)
        raise Refused(
            "TrackerMissing",
            f"{named} where the coordinator runs; install `coxswain[tracking]` there (data.image on Kubernetes), or "
            "remove the field",
        )
