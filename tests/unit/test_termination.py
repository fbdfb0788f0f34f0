"""What stands in a termination message, of which a kubelet keeps the last 4,096 bytes."""

from __future__ import annotations

import msgspec
import pytest
from msgspec.structs import replace

from coxswain.termination import TERMINATION_BYTES, fitting
from coxswain.wire import Fault, JobEvent, JobReport
from coxswain_coordinator.api.report import termination_message
from coxswain_link.environment import write_fault
from coxswain_operator.local.containers import read_termination_message
from tests.unit.golden_samples import least

LETTERS = pytest.mark.parametrize("letter", ["a", "ö", "☃", "\x01", '"', "🐟"])
FAULT = Fault("SourceEmpty", "no objects", object="code")


def bytes_of(fault: Fault) -> int:
    return len(msgspec.json.encode(fault))


@LETTERS
def test_a_fault_of_any_length_and_letters_is_read_again_as_json(tmp_path, letter):
    write_fault(tmp_path / "log", Fault("Refused", "first " + letter * 9000, retryable=True))
    read = msgspec.json.decode((tmp_path / "log").read_bytes(), type=Fault)
    assert (read.reason, read.retryable, read.message[:7]) == ("Refused", True, f"first {letter}")
    assert TERMINATION_BYTES - 16 <= (tmp_path / "log").stat().st_size <= TERMINATION_BYTES


@LETTERS
def test_a_fault_that_just_fits_stays_and_a_byte_less_of_room_cuts_it(letter):
    fault = replace(FAULT, message="m" * 50 + letter)
    assert fitting(fault, bytes_of(fault)) == fault
    cut = fitting(fault, bytes_of(fault) - 1)
    assert cut.message.endswith("…") and bytes_of(cut) < bytes_of(fault)
    assert fitting(fault, 0).message == "…"


@LETTERS
def test_the_last_report_of_a_job_with_a_long_fault_fits_with_its_reason(letter):
    events = (JobEvent(1, 0.0, "Failed", letter * 900),)
    report = replace(
        least(JobReport), phase="Failed", events=events, fault=Fault("Refused", letter * 9000), slow=letter * 900
    )
    message = termination_message(report)
    assert TERMINATION_BYTES - 32 <= len(message) <= TERMINATION_BYTES
    assert msgspec.json.decode(message, type=JobReport).fault.reason == "Refused"


def test_a_local_container_keeps_the_last_bytes_as_a_kubelet_does(tmp_path):
    (tmp_path / "log").write_bytes(b"a" * 10 + b"b" * TERMINATION_BYTES)
    assert read_termination_message(tmp_path / "log") == "b" * TERMINATION_BYTES
    (tmp_path / "log").write_bytes(b"short")
    assert read_termination_message(tmp_path / "log") == "short"
    assert read_termination_message(tmp_path / "none") == ""
