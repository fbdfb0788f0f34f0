"""Steps reach TensorBoard and Weights & Biases through their own packages, and no tracker can stop a training."""

from __future__ import annotations

import importlib.util
import json
import struct
import threading
import tracemalloc
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from msgspec.structs import replace

from coxswain.config import JobConfig, TensorBoardConfig, TrackingConfig, WandbConfig
from coxswain.errors import Refused
from coxswain.wire import DeliveredDigests, StepLine
from coxswain_coordinator.state.job_state import JobState
from coxswain_coordinator.tracking.sinks import check_packages, scalars, sinks_of
from coxswain_coordinator.tracking.tracking import Tracking
from coxswain_link.metrics import build
from tests.unit.coordinator_fakes import make_job
from tests.unit.coordinator_samples import committed, replace_cursors, report, session

LINE = StepLine(
    step=0, worldGeneration=1, tokens=4000, sequences=3, loss=2.5, stream_digest="", delivered_digest="", seconds=2.0,
    idle_fraction=0.25, makespan_over_bound=1.0, gradient_norm=1.5, learning_rate=0.5, tokens_by_source={},
    data_wait_seconds=0.0, time=0.0,
)  # fmt: skip
EVERYTHING = TrackingConfig(tensorboard=TensorBoardConfig(), wandb=WandbConfig(project="p", mode="Offline"))


def tracked(folder: Path, tracking: TrackingConfig) -> JobConfig:
    return replace(make_job(folder), tracking=tracking)


def write(job: JobConfig, folder: Path, *lines: StepLine) -> list[tuple[str, str]]:
    """Writes the lines through all trackers of the job; returns their failures."""
    failures: list[tuple[str, str]] = []
    tracking = Tracking(sinks_of(job, folder), lambda field, error: failures.append((field, error)))
    for line in lines:
        tracking.add(line)
    tracking.close(60.0)
    return failures


def test_what_a_step_does_not_have_is_left_out() -> None:
    assert set(scalars(LINE)) == {
        "train/loss", "train/gradient_norm", "train/learning_rate", "throughput/tokens_per_second",
        "throughput/idle_fraction", "throughput/step_seconds",
    }  # fmt: skip
    whole = scalars(replace(LINE, mfu=0.4, evaluation_loss=2.25))
    assert (whole["throughput/mfu"], whole["evaluation/loss"], whole["throughput/tokens_per_second"]) == (
        0.4,
        2.25,
        2000.0,
    )
    assert "throughput/tokens_per_second" not in scalars(replace(LINE, seconds=0.0))


# --- TensorBoard ----------------------------------------------------------------------------------------------------


def records(path: Path) -> Iterator[bytes]:
    """Of a TFRecord file: length, its checksum, content, its checksum."""
    data, place = path.read_bytes(), 0
    while place < len(data):
        (size,) = struct.unpack_from("<Q", data, place)
        yield data[place + 12 : place + 12 + size]
        place += size + 16


def shown(folder: Path) -> dict[str, dict[int, float]]:
    """What TensorBoard shows, by name and step: a session that starts at a step hides earlier events from there on."""
    from tensorboardX.proto.event_pb2 import Event

    found: dict[str, dict[int, float]] = defaultdict(dict)
    for path in sorted(folder.iterdir()):
        for event in map(Event.FromString, records(path)):
            if event.HasField("session_log"):
                found = defaultdict(
                    dict, {n: {s: v for s, v in at.items() if s < event.step} for n, at in found.items()}
                )
            for value in event.summary.value:
                found[value.tag][event.step] = value.simple_value
    return found


def test_event_files_have_the_scalars_of_each_step_and_a_step_computed_again_replaces_later_ones(
    tmp_path: Path,
) -> None:
    job = tracked(tmp_path, TrackingConfig(tensorboard=TensorBoardConfig()))
    lines = [replace(LINE, step=step, loss=loss) for step, loss in enumerate((4.0, 3.0, 2.0))]
    again = replace(LINE, step=1, loss=3.5, evaluation_loss=3.25)
    assert write(job, tmp_path / "run", *lines, again) == []
    found = shown(tmp_path / "run/tensorboard")
    assert found["train/loss"] == {0: 4.0, 1: 3.5}
    assert found["evaluation/loss"] == {1: 3.25}
    assert found["train/learning_rate"] == {0: 0.5, 1: 0.5}


def test_event_files_lie_in_the_folder_that_the_job_names(tmp_path: Path) -> None:
    job = tracked(tmp_path, TrackingConfig(tensorboard=TensorBoardConfig(directory=f"{tmp_path}/events")))
    assert write(job, tmp_path / "run", LINE) == []
    assert shown(tmp_path / "events")["train/loss"] == {0: 2.5}


# --- Weights & Biases -----------------------------------------------------------------------------------------------


def history(folder: Path) -> list[dict[str, float]]:
    """Rows of an offline run: after a header of 7 bytes, blocks of 32 KiB with (checksum, length, type, content)."""
    from wandb.proto.wandb_internal_pb2 import Record

    (path,) = folder.glob("wandb/offline-run-*/run-*.wandb")
    data, place, rows, part = path.read_bytes(), 7, [], b""
    while place + 7 <= len(data):
        left = 32768 - place % 32768
        if left < 7:
            place += left
            continue
        _, size, kind = struct.unpack_from("<IHB", data, place)
        part += data[place + 7 : place + 7 + size]
        place += 7 + size
        if kind in (1, 4):  # a whole record, or the last part of one
            record, part = Record.FromString(part), b""
            if record.HasField("history"):
                rows.append({i.key or "/".join(i.nested_key): json.loads(i.value_json) for i in record.history.item})
    return rows


def services() -> list[str]:
    """Processes of Weights & Biases that this one has started."""
    pids = " ".join(path.read_text() for path in Path("/proc/self/task").glob("*/children")).split()
    names = (Path(f"/proc/{pid}/comm").read_text().strip() for pid in pids)
    return [name for name in names if name.startswith("wandb")]


@pytest.mark.timeout(120)
def test_an_offline_run_of_weights_and_biases_has_a_row_a_step(tmp_path: Path) -> None:
    job = tracked(tmp_path, TrackingConfig(wandb=WandbConfig(project="p", mode="Offline")))
    assert write(job, tmp_path / "run", LINE, replace(LINE, step=1, loss=2.0, evaluation_loss=2.25)) == []
    assert services() == []  # one that went on would be killed with a coordinator's container, and writes the rows last
    first, second = history(tmp_path / "run")
    assert (first["step"], first["train/loss"], first["train/gradient_norm"]) == (0, 2.5, 1.5)
    assert (second["step"], second["train/loss"], second["evaluation/loss"]) == (1, 2.0, 2.25)
    assert "evaluation/loss" not in first


# --- failures -------------------------------------------------------------------------------------------------------


class Broken:
    """Fails at the second step."""

    def __init__(self) -> None:
        self.steps: list[int] = []

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        if step:
            raise OSError("no space left")
        self.steps.append(step)

    def close(self) -> None:
        raise AssertionError("closed after an error")


def test_a_tracker_that_fails_is_given_up_and_the_others_go_on(tmp_path: Path) -> None:
    broken, failures = Broken(), []
    board = sinks_of(tracked(tmp_path, EVERYTHING), tmp_path)["tensorboard"]
    tracking = Tracking({"wandb": lambda: broken, "tensorboard": board}, lambda *failure: failures.append(failure))
    for step in range(4):
        tracking.add(replace(LINE, step=step))
    tracking.close(60.0)
    assert (broken.steps, failures) == ([0], [("wandb", "OSError: no space left")])
    assert list(shown(tmp_path / "tensorboard")["train/loss"]) == [0, 1, 2, 3]


def test_a_tracker_that_is_given_up_keeps_no_lines(tmp_path: Path) -> None:
    """A hundred thousand of them would take some 50 MB for the rest of the job."""
    tracking = Tracking({"wandb": Broken}, lambda *_: None)
    for step in range(4):
        tracking.add(replace(LINE, step=step))
    tracking.close(60.0)
    tracemalloc.start()
    for step in range(4, 1004):
        tracking.add(replace(LINE, step=step))
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held < 50_000, "bytes: those of a thousand lines are some 500,000"


def test_a_tracker_that_hangs_delays_no_step_and_not_the_end(tmp_path: Path) -> None:
    forever = threading.Event()
    tracking = Tracking({"wandb": lambda: forever.wait() and Broken()}, lambda *_: None)
    for step in range(1000):
        tracking.add(replace(LINE, step=step))
    tracking.close(0.01)
    assert not forever.is_set()
    forever.set()


def test_a_step_that_waits_for_a_slow_tracker_takes_as_much_memory_whatever_the_number_of_sources() -> None:
    forever = threading.Event()
    tracking = Tracking({"wandb": lambda: forever.wait() and Broken()}, lambda *_: None)
    sizes = []
    for sources in (0, 300):
        tracemalloc.start()
        for step in range(100):
            tracking.add(replace(LINE, step=step, tokens_by_source={f"source-{n}": step for n in range(sources)}))
        sizes.append(tracemalloc.get_traced_memory()[0] / 100)
        tracemalloc.stop()
    forever.set()
    assert max(sizes) < 2000, f"bytes of a step by number of sources: {sizes}"


def test_a_job_without_trackers_starts_no_thread(tmp_path: Path) -> None:
    before = threading.active_count()
    assert write(make_job(tmp_path), tmp_path, LINE) == []
    assert (sinks_of(make_job(tmp_path), tmp_path), threading.active_count()) == ({}, before)


def test_a_package_that_is_not_installed_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = tracked(tmp_path, EVERYTHING)
    check_packages(job)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "wandb" else object())
    with pytest.raises(
        Refused, match=r"spec.tracking.wandb: the package wandb is not installed .* `coxswain\[tracking\]`"
    ) as no:
        check_packages(job)
    assert no.value.reason == "TrackerMissing"
    assert "tensorboard" not in no.value.message
    check_packages(make_job(tmp_path))


def close_step(job: JobConfig, run_dir: Path) -> None:
    """A coordinator closes the first step of this job, and ends."""
    state, world = JobState(job, build("coordinator"), run_dir, lambda: 0.0), session(job)
    world.add(replace_cursors(committed(*range(8)), world))
    state.enter_world(world)
    for rank in (0, 1):
        world.book.add_report(report(rank))
    world.book.add_delivered(DeliveredDigests(1, 0, ((0, "11" * 32), (1, "22" * 32))))
    assert state.close_step(world)
    state.tracking.close(60.0)


def test_the_coordinator_hands_each_closed_step_to_the_trackers_and_logs_the_end_of_one(tmp_path: Path, caplog) -> None:
    (tmp_path / "run").mkdir()
    close_step(tracked(tmp_path, TrackingConfig(tensorboard=TensorBoardConfig())), tmp_path / "run")
    assert list(shown(tmp_path / "run/tensorboard")["train/loss"]) == [0]
    assert "is given up" not in caplog.text
    (tmp_path / "file").touch()
    below = TensorBoardConfig(directory=f"{tmp_path}/file/events")
    close_step(tracked(tmp_path, TrackingConfig(tensorboard=below)), tmp_path)
    assert "tracking.tensorboard is given up, and training goes on: NotADirectoryError: " in caplog.text


def test_a_process_that_may_start_no_thread_goes_on_without_its_trackers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    failures = write(tracked(tmp_path, TrackingConfig(tensorboard=TensorBoardConfig())), tmp_path, LINE, LINE)
    assert failures == [("tensorboard", "RuntimeError: can't start new thread")]
