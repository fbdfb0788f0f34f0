"""A long command says which part runs, how long it has taken, and how many bytes."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from e2e.cluster.preflight import DEMO_DISK
from e2e.demo import first_lines
from e2e.progress import Progress, disk, spent

GB = 10**9


@pytest.mark.parametrize(
    ("seconds", "taken", "words"),
    [(3, 0, "3 s, 0 B of disk"), (200, 4_560 * 10**6, "3 m 20 s, 4.56 GB of disk"), (1, -GB, "1 s, 0 B of disk")],
)
def test_what_a_part_took_is_said_in_units_of_people(seconds: float, taken: int, words: str) -> None:
    assert spent(seconds, taken) == words


def test_each_part_is_numbered_and_ends_with_what_it_took() -> None:
    said: list[str] = []
    used = [50 * GB]
    times = iter((100.0, 130.0, 130.0, 131.0))
    progress = Progress(2, lambda: used[0], said.append, lambda: next(times))
    with progress.part("build image data"):
        used[0] = 52 * GB
    with progress.part("start the S3 server"):
        used[0] = 51 * GB
    assert said == [
        "[1/2] build image data", "    30 s, 2.00 GB of disk", "[2/2] start the S3 server", "    1 s, 0 B of disk",
    ]  # fmt: skip
    assert progress.most == 52 * GB


def test_a_part_that_takes_long_says_what_it_has_taken_so_far() -> None:
    said: list[str] = []
    heard = threading.Event()

    def say(line: str) -> None:
        said.append(line)
        if len(said) == 3:
            heard.set()

    with Progress(1, lambda: GB, say, lambda: 0.0, every=0.001).part("load image train"):
        assert heard.wait(20)
    assert said[:3] == ["[1/1] load image train", "    … 0 s, 0 B of disk", "    … 0 s, 0 B of disk"]


def test_the_demo_says_what_it_takes_and_what_is_scarce_before_it_starts() -> None:
    takes, scarce = first_lines(["memory: 2 GiB available"]).splitlines()
    assert f"{DEMO_DISK} GB" in takes and "minutes" in takes
    assert scarce == "memory: 2 GiB available"


def test_the_disk_that_folders_take_is_counted_though_one_is_not_there(tmp_path: Path) -> None:
    with (tmp_path / "file").open("wb") as file:
        file.write(bytes(range(256)) * (1 << 12))
        file.flush()
        os.fsync(file.fileno())
    assert 1 << 20 <= disk(tmp_path, tmp_path / "absent") < 2 << 20


def test_a_part_that_fails_is_not_said_to_be_done() -> None:
    said: list[str] = []
    with pytest.raises(ValueError, match="broken"), Progress(1, lambda: GB, said.append).part("build"):
        raise ValueError("broken")
    assert said == ["[1/1] build"]
