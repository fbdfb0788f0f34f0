"""Files of any name: which of them a source lists, reads, and refuses."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import obstore
import pytest
from obstore.exceptions import InvalidPathError
from obstore.store import LocalStore

from coxswain.errors import Refused
from coxswain_link.files import Files
from coxswain_link.store import NotFound, ObjectChanged, open_store
from coxswain_link.store_faults import translated

ODD = ("part#7", "a\nb", "d#1/x", "x.txt")


def everything(key: str) -> bool:
    return True


def write(folder: Path, *keys: str) -> None:
    for key in keys:
        (folder / key).parent.mkdir(parents=True, exist_ok=True)
        (folder / key).write_text(key)


def listed(folder: Path, wanted: Callable[[str], bool] = everything) -> list[str]:
    return [info.path for info in open_store(folder.as_uri()).corpus(wanted)]


def test_files_are_listed_and_read_whatever_they_are_called(tmp_path: Path) -> None:
    write(tmp_path, *ODD)
    store = open_store(tmp_path.as_uri())
    assert listed(tmp_path) == sorted(ODD)
    for info in store.corpus(everything):
        assert store.head(info.path) == info
        assert store.get(info.path) == store.get_range(info.path, 0, info.size, info.etag) == info.path.encode()


def test_what_we_list_of_our_own_has_no_file_that_a_write_left(tmp_path: Path) -> None:
    write(tmp_path, "log/1", "log/2#1")
    assert [info.path for info in open_store(tmp_path.as_uri()).list()] == ["log/1"]


def test_the_etag_of_a_file_is_that_of_the_indexes_of_earlier_releases(tmp_path: Path) -> None:
    write(tmp_path, "a")
    assert Files(tmp_path).head("a").etag == obstore.head(LocalStore(prefix=tmp_path), "a")["e_tag"]


def test_a_file_that_is_no_longer_the_listed_one_is_not_read(tmp_path: Path) -> None:
    write(tmp_path, "a")
    etag = Files(tmp_path).head("a").etag
    (tmp_path / "a").write_text("longer")
    with pytest.raises(ObjectChanged):
        Files(tmp_path).read("a", 0, 1, etag)


@pytest.mark.parametrize("key", ["../x", "/etc/hostname", "a//x", "folder", "x/below", "./x"])
def test_a_key_leads_to_no_file_outside_the_folder_and_to_no_folder(tmp_path: Path, key: str) -> None:
    write(tmp_path / "in", "x", "a/x", "folder/x")
    write(tmp_path, "x")
    for call in (lambda s: s.get(key), lambda s: s.head(key), lambda s: s.get_range(key, 0, 1)):
        with pytest.raises(NotFound):
            call(open_store((tmp_path / "in").as_uri()))


def test_a_link_to_a_folder_above_it_adds_nothing(tmp_path: Path) -> None:
    write(tmp_path, "a/x", "b/y")
    (tmp_path / "a/up").symlink_to(tmp_path)
    (tmp_path / "c").symlink_to("b")
    assert listed(tmp_path) == ["a/x", "b/y", "c/y"]


def link_densely(folder: Path, count: int) -> None:
    """Folders that each link to each other."""
    write(folder, *(f"{n}/x" for n in range(count)))
    for n in range(count):
        for other in {*range(count)} - {n}:
            (folder / f"{n}/to-{other}").symlink_to(folder / str(other))


def test_each_way_by_links_to_a_folder_adds_its_files(tmp_path: Path) -> None:
    link_densely(tmp_path, 3)
    below_first = ["0/to-1/to-2/x", "0/to-1/x", "0/to-2/to-1/x", "0/to-2/x", "0/x"]
    assert [key for key in listed(tmp_path) if key.startswith("0/")] == below_first


def test_a_folder_that_many_links_lead_to_is_listed_by_each(tmp_path: Path) -> None:
    write(tmp_path, "a/x")
    for n in range(150):
        (tmp_path / f"copy-{n:03d}").symlink_to("a")
    assert listed(tmp_path) == ["a/x", *(f"copy-{n:03d}/x" for n in range(150))]


@pytest.mark.timeout(60)
def test_folders_that_link_to_each_other_without_end_are_refused_by_name(tmp_path: Path) -> None:
    link_densely(tmp_path, 12)
    says = r"/to-\d+ is one of more than 100 ways to the same folder, each by several links; remove links, or narrow"
    with pytest.raises(Refused, match=says):
        listed(tmp_path, lambda key: key.endswith("/x"))


@pytest.mark.timeout(60)
def test_folders_that_link_to_each_other_and_hold_nothing_wanted_forbid_no_source(tmp_path: Path) -> None:
    link_densely(tmp_path / "linked", 12)
    write(tmp_path, "good")
    store = open_store(tmp_path.as_uri())
    found = store.corpus(lambda key: key == "good", lambda folder: not folder.startswith("linked"))
    assert "good" in [info.path for info in found]


def not_utf8(folder: Path) -> None:
    (Path(os.fsdecode(os.fsencode(folder) + b"/\xff.txt"))).write_text("x")


def to_itself(folder: Path) -> None:
    (folder / "me.txt").symlink_to("me.txt")


def to_nothing(folder: Path) -> None:
    (folder / "me.txt").symlink_to("absent")


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (not_utf8, r"/\xff.txt has a name that is not UTF-8"),
        (to_itself, "/me.txt leads to no file (Too many levels of symbolic links)"),
        (to_nothing, "/me.txt leads to no file (No such file or directory)"),
    ],
)
def test_a_wanted_file_that_cannot_be_read_is_refused_and_another_is_left_out(
    tmp_path: Path, make: Callable[[Path], None], says: str
) -> None:
    write(tmp_path, "good.jsonl")
    make(tmp_path)
    assert listed(tmp_path, lambda key: key.endswith(".jsonl")) == ["good.jsonl"]
    with pytest.raises(Refused, match=re.escape(says) + "; rename it, or narrow uri or include") as caught:
        listed(tmp_path)
    assert caught.value.reason == "ObjectUnreadable"


@pytest.fixture
def locked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in which the user of the job may list no folder called `locked` or `lost+found`. Tests may run as root."""
    write(tmp_path, "a/x", "a/locked/y", "lost+found/z")
    scan = os.scandir

    def allowed(path: Path) -> object:
        if path.name in ("locked", "lost+found"):
            raise PermissionError(errno.EACCES, "Permission denied")
        return scan(path)

    monkeypatch.setattr(os, "scandir", allowed)
    return tmp_path


def test_a_folder_that_may_not_be_listed_is_refused_by_its_own_name(locked: Path) -> None:
    """Before, the whole source was said to be forbidden."""
    says = (
        "a/locked cannot be listed (Permission denied); give the user of the job the right to, or narrow uri or include"
    )
    with pytest.raises(Refused, match=re.escape(says)) as caught:
        listed(locked)
    assert caught.value.reason == "ObjectUnreadable"


def test_a_folder_that_may_not_be_listed_and_holds_nothing_wanted_is_left_out(locked: Path) -> None:
    assert [info.path for info in open_store(locked.as_uri()).corpus(everything, lambda f: f != "a/locked")] == ["a/x"]


def test_what_a_check_of_a_file_system_leaves_at_its_root_forbids_no_source(locked: Path) -> None:
    """Each volume of ext4 has it, and no job that is not root may list it."""
    (locked / "a/locked").rename(locked / "a/free")
    assert listed(locked) == ["a/free/y", "a/x"]
    (locked / "lost+found").rename(locked / "a/lost+found")
    with pytest.raises(Refused, match=re.escape("a/lost+found cannot be listed")):
        listed(locked)


def test_a_file_that_may_not_be_looked_at_is_refused_with_what_gives_the_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Entry:
        name = "x"

        def is_dir(self) -> bool:
            return False

        def stat(self) -> None:
            raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(os, "scandir", lambda _: nullcontext([Entry()]))
    with pytest.raises(
        Refused, match=r"/x cannot be looked at \(Permission denied\); give the user of the job the right to"
    ):
        listed(tmp_path)


def test_folders_are_listed_however_deep_they_are(tmp_path: Path) -> None:
    """Before, a thousand of them ended the loader with a RecursionError."""
    folder = tmp_path / "/".join(["a"] * 1500)
    at = os.open(tmp_path, os.O_RDONLY)
    for _ in range(1500):
        os.mkdir("a", dir_fd=at)
        below = os.open("a", os.O_RDONLY, dir_fd=at)
        os.close(at)
        at = below
    os.close(os.open("x", os.O_CREAT, dir_fd=at))
    os.close(at)
    try:
        assert [len(path) for path in listed(tmp_path)] == [3001]
    finally:
        (folder / "x").unlink()
        for above in (folder, *list(folder.parents)[:1499]):
            above.rmdir()


def test_a_key_of_s3_that_cannot_be_read_is_refused_by_its_name() -> None:
    said = InvalidPathError(
        'Encountered object with invalid path: Error parsing Path "a//b\n.txt": Path "a//b\n.txt" contained empty path '
        "segment\n\nDebug source:\nInvalidPath"
    )
    fault = translated(said, "s3://data/", "of a Secret")
    assert isinstance(fault, Refused)
    assert fault.reason == "ObjectUnreadable"
    assert r"a//b\n.txt" in fault.message
    assert fault.message.endswith(
        "; rename it, or narrow uri to a folder without it: it is listed whatever include says"
    )
    assert "Debug" not in fault.message


def test_files_are_listed_by_path_although_folders_are_read_one_by_one(tmp_path):
    """Every loader has to see the same order: `a!` and `a-b` sort before and after what is in the folder `a`."""
    names = ["a!", "a/z", "a/!", "a/b/c", "a/b!c", "a-b", "a0", "aa/x", "é", "\U0001f600/x", "￿", "B"]
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"x")
    (tmp_path / "c").symlink_to(tmp_path / "a")
    expected = sorted([*names, "c/z", "c/!", "c/b/c", "c/b!c"])
    assert [info.path for info in open_store(tmp_path.as_uri()).corpus(bool)] == expected
