"""A writer that is killed in the midst of a write leaves a staging file, which the next coordinator deletes, and no other."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from coxswain_coordinator.checkpoint.store import CheckpointStore
from coxswain_link.store import Store, open_store
from tests.unit.coordinator_fakes import make_job

WRITER = """
import os, sys
from coxswain_link.store import open_store
def stop(_):
    print("in the midst", flush=True)
    sys.stdin.read()
os.fsync = stop
open_store(sys.argv[1], create=True).put(sys.argv[2], b"content")
"""


class Writer:
    """A process in the midst of a write."""

    def __init__(self, uri: str, key: str) -> None:
        command = [sys.executable, "-c", WRITER, uri, key]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._process.stdout
        assert self._process.stdout.readline() == b"in the midst\n"

    def end(self) -> int:
        """It writes the rest."""
        self._process.communicate(b"")
        return self._process.returncode

    def kill(self) -> None:
        self._process.send_signal(signal.SIGKILL)
        self._process.communicate()


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(tmp_path.as_uri(), create=True)


def files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize(
    "key", ["shards/a.safetensors", "log/membership/00000000.json.zst", "index/a/b.npz", "run.json"]
)
def test_orphans_include_what_a_killed_writer_has_left(tmp_path: Path, key: str) -> None:
    store = open_store((tmp_path / "store").as_uri(), create=True)
    Writer(store.uri, key).kill()
    assert [name.partition("#")[0] for name in files(tmp_path / "store")] == [key]
    CheckpointStore(make_job(tmp_path), store).collect_orphans()
    assert files(tmp_path / "store") == []


def test_what_a_living_writer_has_stays_and_becomes_the_object(store: Store, tmp_path: Path) -> None:
    writer = Writer(store.uri, "shards/a")
    try:
        assert store.collect_staged(bool) == 0
    finally:
        assert writer.end() == 0
    assert (files(tmp_path), store.get("shards/a")) == (["shards/a"], b"content")


def test_files_of_the_user_stay(store: Store, tmp_path: Path) -> None:
    names = ["log/c#", "notes#1", "steps/a#b"]
    for folder in ("log", "steps"):
        (tmp_path / folder).mkdir()
    for name in names:
        (tmp_path / name).write_bytes(b"x")
    CheckpointStore(make_job(tmp_path), store).collect_orphans()
    assert [name for name in files(tmp_path) if name in names] == names


def test_a_staging_file_that_is_collected_before_it_is_locked_is_made_again(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock, collected = fcntl.flock, list[int]()

    def collect_first(file: int, how: int) -> None:
        if not collected:
            collected.append(0)
            collected[0] = store.collect_staged(bool)
        lock(file, how)

    monkeypatch.setattr(fcntl, "flock", collect_first)
    store.put("a", b"content")
    assert (collected, files(tmp_path), store.get("a")) == ([1], ["a"], b"content")


def test_folders_of_the_user_beside_a_runs_are_not_looked_at(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A corpus beside the checkpoints may have millions of files."""
    for name in ("corpus/en", "shards/a"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "x#1").write_bytes(b"x")
    looked, scan = list[str](), os.scandir

    def scandir(folder: Path) -> os._ScandirIterator[str]:
        looked.append(str(folder))
        return scan(folder)

    monkeypatch.setattr(os, "scandir", scandir)
    assert store.collect_staged(lambda key: key.startswith("shards/")) == 1
    assert looked == [str(tmp_path), str(tmp_path / "shards"), str(tmp_path / "shards/a")]


def test_where_files_cannot_be_locked_all_stay_and_objects_are_written(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)
    (tmp_path / "a#1").write_bytes(b"x")
    store.put("a", b"content")
    assert (store.collect_staged(bool), files(tmp_path)) == (0, ["a", "a#1"])
