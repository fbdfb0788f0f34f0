"""Where a job's cost data comes from: its profile in a store, else the hardware that its policy names."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from coxswain.config import JobConfig
from coxswain.cost.constants import load_hardware
from coxswain.errors import Refused
from coxswain_link.hardware import hardware_of
from tests.unit.coordinator_fakes import make_job


def job_with(folder: Path, profile: str) -> JobConfig:
    job = make_job(folder)
    return replace(job, parallelism=replace(job.parallelism, profile=profile))


def test_a_job_without_a_profile_goes_by_the_constants_of_its_hardware(tmp_path: Path) -> None:
    assert hardware_of(job_with(tmp_path, ""), None) == load_hardware("cpu")


def test_a_profile_is_read_from_where_its_uri_says(tmp_path: Path) -> None:
    measured = replace(load_hardware("cpu"), note="measured")
    (tmp_path / "class a.json").write_bytes(msgspec.json.encode(measured))
    assert hardware_of(job_with(tmp_path, f"file://{tmp_path}/class%20a.json"), None) == measured


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "does not exist; write it there with python -m coxswain_train.profile, or remove the field"),
        (b"{", "mine.json"),
        (b'{"linear_us_per_token": 1}', "mine.json"),
    ],
)
def test_a_profile_that_is_none_is_refused_by_its_uri(tmp_path: Path, content: bytes | None, says: str) -> None:
    if content is not None:
        (tmp_path / "mine.json").write_bytes(content)
    with pytest.raises(Refused, match=says) as refused:
        hardware_of(job_with(tmp_path, f"file://{tmp_path}/mine.json"), None)
    assert refused.value.reason == "BadHardware"


def test_a_profile_in_a_folder_that_is_not_there_is_refused_too(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="does not exist"):
        hardware_of(job_with(tmp_path, f"file://{tmp_path}/none/mine.json"), None)
