"""What a store has written to files is on disk: a power cut leaves no empty object, and takes none back."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from coxswain_link.store import Store, StoreUnavailable, open_store
from coxswain_operator.local.objects import write_atomically

CONTENT = b"content"


class Disk:
    """What a power cut now would leave: the bytes of each synced file, and the names in each synced folder."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.bytes: dict[int, int] = {}
        self.names: dict[Path, set[str]] = {}
        self.shown_early: list[str] = []
        self._sync, self._link, self._rename = os.fsync, os.link, os.replace
        patch.setattr(os, "fsync", self.fsync)
        for name in ("link", "rename", "replace"):
            patch.setattr(os, name, self._watched(getattr(os, name)))

    def fsync(self, descriptor: int) -> None:
        self._sync(descriptor)
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        if path.is_dir():
            self.names[path] = {each.name for each in path.iterdir()}
        else:
            self.bytes[os.fstat(descriptor).st_ino] = os.fstat(descriptor).st_size

    def _watched(self, publish: Callable[[Path, Path], None]) -> Callable[[Path, Path], None]:
        def watched(source: Path, target: Path) -> None:
            if self.bytes.get(Path(source).stat().st_ino) != len(CONTENT):
                self.shown_early.append(str(target))
            publish(source, target)

        return watched

    def has(self, path: Path, below: Path) -> bool:
        """Whether the file and each folder of it `below` have their name and content on disk."""
        names = [each for each in (path, *path.parents) if below in each.parents]
        return self.bytes.get(path.stat().st_ino) == len(CONTENT) and all(
            each.name in self.names.get(each.parent, set()) for each in names
        )


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(tmp_path.as_uri(), create=True)


@pytest.fixture
def disk(store: Store, monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


@pytest.mark.parametrize("write", [Store.put, Store.create])
def test_an_object_is_on_disk_with_its_name_and_folders_when_the_call_returns(
    store: Store, disk: Disk, tmp_path: Path, write: Callable[[Store, str, bytes], object]
) -> None:
    write(store, "log/membership/0", CONTENT)
    assert disk.has(tmp_path / "log/membership/0", tmp_path)


@pytest.mark.parametrize("write", [Store.put, Store.create])
def test_an_object_has_no_name_before_its_content_is_on_disk(
    store: Store, disk: Disk, write: Callable[[Store, str, bytes], object]
) -> None:
    write(store, "a", CONTENT)
    assert disk.bytes and not disk.shown_early


def test_a_claim_that_another_process_made_is_on_disk_before_it_counts(
    store: Store, disk: Disk, tmp_path: Path
) -> None:
    (tmp_path / "a").write_bytes(CONTENT)  # its writer was killed before it could sync the folder
    assert store.create("a", CONTENT)
    assert "a" in disk.names[tmp_path]


def test_an_object_of_the_local_cluster_has_no_name_before_its_content_is_on_disk(disk: Disk, tmp_path: Path) -> None:
    write_atomically(tmp_path / "Pod/default/a.json", CONTENT)
    assert disk.bytes and not disk.shown_early


@pytest.mark.parametrize("code", [errno.EINVAL, errno.EACCES])
def test_a_folder_that_cannot_be_synced_stops_no_write(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def refuse(descriptor: int) -> None:
        if Path(f"/proc/self/fd/{descriptor}").readlink().is_dir():
            raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "fsync", refuse)
    store.put("a", CONTENT)
    assert store.get("a") == CONTENT


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC, errno.EDQUOT])
def test_a_write_that_the_disk_refuses_leaves_the_former_object_and_nothing_else(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    store.put("a", b"former")

    def refuse(descriptor: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "fsync", refuse)
    for key in ("a", "b"):
        with pytest.raises(StoreUnavailable):
            store.put(key, CONTENT)
        with pytest.raises(StoreUnavailable):
            store.create(key, CONTENT)
    assert [each.name for each in tmp_path.iterdir()] == ["a"]
    assert store.get("a") == b"former"
