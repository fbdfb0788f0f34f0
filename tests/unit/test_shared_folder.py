"""What is shared is made once by all workers of a run of the tests, and again after a failure."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from tests.shared import shared_folder


class Factory:
    """A worker's place for temporary files."""

    def __init__(self, base: Path) -> None:
        self.base = base
        base.mkdir(exist_ok=True)

    def getbasetemp(self) -> Path:
        return self.base


@pytest.fixture
def factories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Factory]:
    monkeypatch.setenv("PYTEST_XDIST_WORKER", "gw0")
    return [Factory(tmp_path / f"popen-gw{n}") for n in range(2)]


def test_workers_that_ask_at_once_get_one_folder_that_was_filled_once(factories: list[Factory]) -> None:
    made, found, entered = [], [], threading.Barrier(2)

    def fill(folder: Path) -> None:
        made.append(folder)
        (folder / "file").write_text("whole")

    def ask(factory: Factory) -> None:
        entered.wait(10)
        folder = shared_folder(factory, "thing", fill)  # type: ignore[arg-type]
        found.append((folder, (folder / "file").read_text()))

    threads = [threading.Thread(target=ask, args=(factory,)) for factory in factories]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert found == 2 * [(made[0], "whole")]
    assert len(made) == 1


def test_a_folder_that_could_not_be_filled_is_filled_from_nothing_by_the_next(factories: list[Factory]) -> None:
    def fail(folder: Path) -> None:
        (folder / "half").touch()
        raise OSError("full")

    with pytest.raises(OSError, match="full"):
        shared_folder(factories[0], "thing", fail)  # type: ignore[arg-type]
    folder = shared_folder(factories[1], "thing", lambda folder: (folder / "file").touch())  # type: ignore[arg-type]
    assert [entry.name for entry in folder.iterdir()] == ["file"]
