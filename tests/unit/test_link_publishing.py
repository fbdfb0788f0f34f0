"""A new name is taken in one step on file systems without hard links too, as on shares of SMB; else by none."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest

from coxswain.errors import Refused
from coxswain_link import publishing
from coxswain_link.publishing import publish
from coxswain_link.store import open_store

NO_LINKS = [errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS]


def refuse(code: int) -> Callable[..., None]:
    def raises(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    return raises


@pytest.fixture(params=NO_LINKS, ids=[errno.errorcode[code] for code in NO_LINKS])
def without_links(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "link", refuse(request.param))


@pytest.mark.usefixtures("without_links")
def test_a_create_replaces_nothing_without_hard_links_and_leaves_no_staged_file(tmp_path: Path) -> None:
    store = open_store(tmp_path.as_uri(), create=True)
    assert store.create("log/1", b"first") is True
    assert store.create("log/1", b"second") is False
    assert store.get("log/1") == b"first"
    store.put("log/1", b"third")
    assert [path.name for path in (tmp_path / "log").iterdir()] == ["1"]
    assert store.get("log/1") == b"third"


@pytest.mark.usefixtures("without_links")
def test_of_many_creates_at_once_exactly_one_wins_without_hard_links(tmp_path: Path) -> None:
    at_once = Barrier(8)

    def claim(n: int) -> bool:
        at_once.wait()
        return open_store(tmp_path.as_uri(), create=True).create("claim", b"%d" % n)

    with ThreadPoolExecutor(8) as pool:
        won = list(pool.map(claim, range(8)))
    assert won.count(True) == 1
    assert (tmp_path / "claim").read_bytes() == b"%d" % won.index(True)


@pytest.mark.usefixtures("without_links")
@pytest.mark.parametrize("code", [errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP])
def test_a_file_system_with_neither_way_is_refused_by_name_and_keeps_what_it_has(tmp_path, monkeypatch, code) -> None:
    monkeypatch.setattr(publishing, "rename_to_new", refuse(code))
    store = open_store(tmp_path.as_uri(), create=True)
    store.put("log/1", b"first")
    with pytest.raises(Refused, match=rf"{tmp_path}/log/1: its file system has neither hard links nor") as caught:
        store.create("log/1", b"second")
    assert caught.value.reason == "ConditionalWritesMissing"
    assert [(path.name, path.read_bytes()) for path in (tmp_path / "log").iterdir()] == [("1", b"first")]


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EACCES, errno.EROFS])
def test_another_error_of_a_link_is_that_error(tmp_path: Path, monkeypatch, code: int) -> None:
    monkeypatch.setattr(os, "link", refuse(code))
    staged = tmp_path / "staged"
    staged.write_bytes(b"x")
    with pytest.raises(OSError, match=os.strerror(code)):
        publish(staged, tmp_path / "name", new=True)
    assert not (tmp_path / "name").exists()


def test_an_error_of_the_rename_is_that_of_the_system(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(os, "link", refuse(errno.EPERM))
    with pytest.raises(FileNotFoundError):
        publish(tmp_path / "absent", tmp_path / "name", new=True)
