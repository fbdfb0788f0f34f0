"""What a checkpoint location says of its run: the newest world, the steps, and the mix records in force."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
import zstandard
from msgspec.structs import replace

from coxswain.config import CheckpointConfig, EndpointConfig
from coxswain.membership.values import MixRecord
from coxswain.planlog import generation_key, manifest_key, membership_key, mix_key, steps_key
from coxswain_cli.readers import stored_run
from coxswain_cli.readers.stored_run import open_location, steps_before
from tests.unit.test_cox_workdir import LINE

Segment = tuple[int, list[int]]  # number of its mix record, and its steps


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "run"


def write(place: Path, key: str, content: bytes) -> None:
    (place / key).parent.mkdir(parents=True, exist_ok=True)
    (place / key).write_bytes(content)


def pack(value: object) -> bytes:
    return zstandard.compress(msgspec.json.encode(value))


def line(step: int) -> bytes:
    return msgspec.json.encode(replace(LINE, step=step)) + b"\n"


def write_mixes(place: Path, records: int, *segments: Segment) -> None:
    for number in range(records):
        write(place, mix_key(number), pack(MixRecord(number, {"code": number + 1}, {})))
    for number, (mix, steps) in enumerate(segments):
        memberships = [{"step": step} for step in steps]
        write(place, membership_key(number), pack({"memberships": memberships, "mix": mix}))


def first_steps(place: Path) -> list[tuple[int, int]]:
    """Of each mix record in force: its number and the first step that it holds for."""
    return [(each.record.number, each.first_step) for each in open_location(place.as_uri()).mixes()]


def test_a_mix_record_holds_from_the_first_of_all_segments_that_name_it(place: Path) -> None:
    write_mixes(place, 2, (0, [0, 1]), (0, [2, 3]), (1, [4, 5]), (1, [6, 7]))
    assert first_steps(place) == [(0, 0), (1, 4)]


def test_a_mix_record_that_no_segment_names_is_not_in_force(place: Path) -> None:
    write_mixes(place, 2, (0, [0, 1]))
    assert first_steps(place) == [(0, 0)]


def test_a_mix_record_that_was_edited_before_its_first_step_holds_from_that_of_the_next(place: Path) -> None:
    write_mixes(place, 3, (0, [0, 1]), (2, [2, 3]))
    assert first_steps(place)[-1] == (2, 2)


def test_a_segment_behind_the_end_of_the_data_begins_no_mix_record(place: Path) -> None:
    write_mixes(place, 2, (0, [0, 1]), (1, []))
    assert first_steps(place) == [(0, 0)]


def test_the_generation_is_that_of_the_newest_world(place: Path) -> None:
    for generation in (1, 2, 10):
        write(place, generation_key(generation), b"")
    assert open_location(place.as_uri()).generation() == 10


def test_the_last_steps_are_those_of_the_newest_checkpoint_and_of_a_run_that_was_killed_behind_it(place: Path) -> None:
    for saved in (4, 8):
        write(place, manifest_key(saved), b"{}")
    for before, steps in ((4, range(4)), (8, range(4, 8)), (12, range(8, 12))):
        write(place, steps_key(before, 1), b"".join(map(line, steps)))
    lines = open_location(place.as_uri()).step_lines(last=True)
    assert [msgspec.json.decode(each)["step"] for each in lines] == list(range(4, 12))


@pytest.mark.parametrize("name", ["step-0000000012.json.bak", "step-0000000012 (copy).json", "z.txt"])
def test_what_a_user_keeps_beside_the_manifests_is_no_checkpoint(place: Path, name: str) -> None:
    for saved in (4, 8):
        write(place, manifest_key(saved), msgspec.json.encode({"step": saved}))
        write(place, steps_key(saved, 1), line(saved - 1))
    write(place, steps_key(12, 1), line(11))
    write(place, f"manifests/{name}", b"a manifest that was set aside")
    found = open_location(place.as_uri())
    kept, newest = found.checkpoints()
    assert newest is not None
    assert (kept, newest.step) == ([4, 8], 8)
    assert [msgspec.json.decode(each)["step"] for each in found.step_lines(last=True)] == [7, 11]


def test_the_last_steps_are_found_under_the_names_of_an_earlier_release_and_of_each_world(place: Path) -> None:
    write(place, manifest_key(8), b"{}")
    write(place, "steps/before-0000000004.jsonl", line(3))
    write(place, "steps/before-0000000008.jsonl", line(6))
    write(place, steps_key(8, 2), line(7))
    write(place, steps_key(12, 1), line(11))
    found = open_location(place.as_uri())
    assert [msgspec.json.decode(each)["step"] for each in found.step_lines(last=True)] == [7, 6, 11]
    assert [msgspec.json.decode(each)["step"] for each in found.step_lines()] == [3, 7, 6, 11]


def test_steps_before_a_resumption_end_at_its_first_one(place: Path) -> None:
    write(place, steps_key(4, 1), b"".join(map(line, range(4))))
    found, why = steps_before(3, CheckpointConfig(uri=place.as_uri(), every_steps=4))
    assert ([each.step for each in found], why) == ([0, 1, 2], "")


def test_a_location_is_read_with_the_users_own_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    """The Secret is mounted in the job's pods, not on the user's machine."""
    used: list[EndpointConfig] = []
    monkeypatch.setattr(stored_run, "open_store", lambda uri, endpoint, patience: used.append(endpoint))
    open_location("s3://runs/demo", EndpointConfig(url="http://s3:7070", secret="job-keys"))
    assert used == [EndpointConfig(url="http://s3:7070")]
