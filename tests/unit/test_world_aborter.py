"""Which connections an abort cuts, and which it leaves alone."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from coxswain_train.parallel.process_groups import WorldAborter, listen

CUT = os.strerror(32)


class Ends:
    """Sockets of one test, closed behind it."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self.listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))

    def connect(self) -> socket.socket:
        return self._stack.enter_context(socket.create_connection(self.listener.getsockname(), timeout=10))

    def local(self) -> socket.socket:
        ours, theirs = socket.socketpair()
        self._stack.enter_context(theirs)
        return self._stack.enter_context(ours)


@pytest.fixture
def ends() -> Iterator[Ends]:
    with ExitStack() as stack:
        yield Ends(stack)


def is_cut(end: socket.socket) -> bool:
    try:
        end.send(b"x")
    except BrokenPipeError as error:
        assert error.strerror == CUT
        return True
    return False


def test_an_abort_cuts_the_connections_of_this_world_and_no_others(ends: Ends) -> None:
    before = ends.connect()
    aborter = WorldAborter()
    first, local, late = ends.connect(), ends.local(), socket.create_server(("127.0.0.1", 0))
    with late:
        aborter.abort_world()
        assert (is_cut(before), is_cut(first), is_cut(local)) == (False, True, False)
        for listener in (ends.listener, late):
            socket.create_connection(listener.getsockname(), timeout=10).close()


def test_what_is_open_as_a_world_begins_is_not_of_it_and_what_was_cut_stays_open_as_a_descriptor(ends: Ends) -> None:
    """The store of the next world is opened before the worker says that it has begun there."""
    aborter = WorldAborter()
    one = ends.connect()
    aborter.begin()
    other = ends.connect()
    aborter.abort_world()
    assert (is_cut(one), is_cut(other)) == (False, True)
    assert other.fileno() > 0 and os.fstat(other.fileno())
    aborter.abort_world()
    assert not is_cut(one), "a second abort of the same world"


def open_descriptors() -> list[str]:
    return sorted(entry.name for entry in Path("/proc/self/fd").iterdir())


def test_an_abort_leaves_no_descriptor_open_that_was_not(ends: Ends) -> None:
    aborter = WorldAborter()
    ends.connect(), ends.local()
    before = open_descriptors()
    for _ in range(3):
        aborter.abort_world()
    assert open_descriptors() == before


def test_pipes_and_files_are_no_sockets_of_a_world(ends: Ends) -> None:
    aborter = WorldAborter()
    reads, writes = os.pipe()
    try:
        aborter.abort_world()
        assert os.write(writes, b"x") == 1 and os.read(reads, 1) == b"x"
    finally:
        os.close(reads), os.close(writes)


def test_a_wait_for_a_key_that_no_rank_sets_ends_with_the_abort() -> None:
    aborter = WorldAborter()
    store = listen("127.0.0.1", 2)
    thread = threading.Thread(target=aborter.abort_world)
    thread.start()
    with pytest.raises(RuntimeError):
        store.get("a key that no rank sets")
    thread.join()
    assert aborter.is_aborted()
