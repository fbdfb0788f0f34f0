"""The report names a store that is away, whichever service noticed; an end does not change."""

from __future__ import annotations

from pathlib import Path

import pytest

from coxswain.exits import Exit
from coxswain.wire import Finished, Register
from coxswain_coordinator.api.report import job_report
from coxswain_coordinator.state.job_state import JobState
from coxswain_link.metrics import build
from tests.unit.coordinator_fakes import make_job

ERROR = "s3://runs/demo/log: there is no such bucket"


@pytest.fixture
def run(tmp_path: Path) -> JobState:
    return JobState(make_job(tmp_path), build("coordinator"), None, lambda: 1.0)


def loader(error: str) -> Register:
    return Register("loader", "loader-0", "pod", "instance", "host", 1, last_error=error)


def reported(run: JobState) -> tuple[str, str]:
    report = job_report(run)
    return report.fault.reason if report.fault else "", report.waiting_for


def test_the_coordinators_own_store_error_is_reported_while_it_lasts(run: JobState) -> None:
    error = [ERROR]
    run.store_executor.watch(lambda: error[0])
    assert reported(run) == ("StoreAway", f"the store: {ERROR}")
    error[0] = ""
    assert reported(run)[0] == ""


def test_a_loaders_store_error_is_reported_while_it_lasts(run: JobState) -> None:
    run.register(loader(ERROR))
    assert reported(run) == ("StoreAway", f"the store: {ERROR}")
    run.register(loader(""))
    assert reported(run)[0] == ""


def test_a_job_that_has_ended_waits_for_no_store(run: JobState) -> None:
    run.register(loader(ERROR))
    run.finish(Finished(Exit.DONE, "StopReached", ""))
    assert reported(run) == ("", "")
