"""The operator's log of `cox run`."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from coxswain_cli.logfile import LogFile


def test_a_line_of_the_log_that_a_full_disk_does_not_take_prints_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    log = LogFile(Path("/dev/full"))
    log.handle(logging.LogRecord("cox", logging.INFO, "", 0, "a line", (), None))
    assert capsys.readouterr().err == ""
    with pytest.raises(OSError, match="No space"):
        log.close()
