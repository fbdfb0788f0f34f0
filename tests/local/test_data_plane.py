"""Loaders and constructors as processes: what workers get, what is refused, how they end."""

from __future__ import annotations

from dataclasses import replace

import httpx
import msgspec
import numpy as np
import pytest

from coxswain import names
from coxswain.errors import Refused, Stale
from coxswain.exits import Exit
from coxswain.layout import Device, Layout, Replica, Stage
from coxswain.wire import Fault, Finished
from coxswain_link.flight import Request, SliceClient, SlicePart, SliceRequest
from coxswain_link.handover import Handover
from coxswain_link.step_buffer import Columns
from tests.local.data_plane import TOKEN, DataPlane, check, data_plane, digests_of, sequences_of
from tests.local.jobs import Footprint


@pytest.fixture(scope="module")
def plane(tmp_path_factory):
    """Two loaders, one trainer of three devices; tests only move it to newer generations."""
    with data_plane(tmp_path_factory.mktemp("plane"), loaders=2, devices=3) as plane:
        yield plane


def ask(plane: DataPlane, generation: int, token: str = TOKEN) -> list[SlicePart]:
    """The first slices of step 0, from loader 0."""
    plane.coordinator.await_registrations("loader", 2)
    wanted = [SliceRequest(s, 0, s.tokens) for s in sequences_of(plane.corpus, 0)]
    client = SliceClient(plane.address(1), names.PORT_LOADER, token)
    try:
        return list(client.fetch(Request(generation, tuple(wanted)), 30.0))
    finally:
        client.close()


def test_every_token_arrives_once_with_its_label_and_the_digests_are_those_of_the_documents(plane):
    plane.coordinator.begin(replicas=3)
    for step in range(4):
        check(plane, step, plane.receive(step))
        assert plane.coordinator.await_served(step) == digests_of(plane.corpus, step)


def test_each_stage_of_a_replica_gets_its_columns_and_its_tensor_ranks_the_same(plane):
    stages = (Stage((Device(0, 0), Device(0, 1)), 0, 1), Stage((Device(0, 2),), 1, 2))
    plane.coordinator.begin(replicas=1, layout=Layout((Replica(stages),)))
    plane.coordinator.served.clear()
    first, same, last = plane.receive(0).values()
    assert (first.columns, last.columns) == (Columns(labels=False), Columns(tokens=False))
    assert np.array_equal(first.tokens, same.tokens)
    check(plane, 0, {0: replace(last, tokens=first.tokens)})
    assert plane.coordinator.await_served(0) == digests_of(plane.corpus, 0)


def test_loader_and_constructor_serve_their_readiness_and_metrics(plane):
    plane.coordinator.begin(replicas=2)
    for step in range(4):
        plane.receive(step)
    for host, port, metrics in (
        (1, names.PORT_LOADER_HTTP, ("request_seconds_sum", "request_seconds_count", "cache_bytes", "open_objects")),
        (11, names.PORT_CONSTRUCTOR_HTTP, ("handover_seconds_sum", "assembly_seconds_sum", "assembly_seconds_count")),
    ):
        url = f"http://{plane.address(host)}:{port}"
        assert httpx.get(f"{url}/readyz", trust_env=False).status_code == 200
        lines = httpx.get(f"{url}/metrics", trust_env=False).text.splitlines()
        found = {line.split()[0].split("_", 2)[2]: float(line.split()[1]) for line in lines if line[0] != "#"}
        assert [name for name in metrics if not found[name] > 0] == []


def test_another_world_with_another_placement_gives_the_same_stream(plane):
    for replicas in (1, 2):
        plane.coordinator.begin(replicas)
        plane.coordinator.served.clear()
        check(plane, 0, plane.receive(0))
        assert plane.coordinator.await_served(0) == digests_of(plane.corpus, 0)


def test_ranks_of_an_older_world_are_refused_as_stale(plane):
    old = plane.coordinator.begin(replicas=1)
    plane.receive(0)
    plane.coordinator.begin(replicas=1)
    plane.receive(0)
    with plane.worker(0) as worker, pytest.raises(Stale, match=f"generation {old} is over"):
        worker.receive(old, 1, 0, 5.0)


def test_a_loader_refuses_requests_of_a_world_that_is_over(plane):
    generation = plane.coordinator.begin(replicas=1)
    assert ask(plane, generation)[0].item == 0
    with pytest.raises(Stale, match="is over"):
        ask(plane, generation - 1)


def test_a_loader_refuses_a_wrong_token(plane):
    with pytest.raises(Refused, match="token") as caught:
        ask(plane, 99, "another")
    assert caught.value.reason == "TokenRejected"


def test_a_constructor_refuses_a_wrong_token(plane):
    generation = plane.coordinator.begin(replicas=1)
    plane.receive(0)
    socket = names.constructor_socket(f"{plane.prefix}-trainer-0")
    with Handover(socket, "another") as stranger, pytest.raises(Refused, match="token"):
        stranger.receive(generation, 0, 0, 5.0)


def test_content_that_changes_under_a_job_reaches_the_worker_by_its_name(tmp_path):
    with data_plane(tmp_path) as plane:
        plane.coordinator.begin(replicas=1)
        plane.receive(0)
        for path in plane.corpus.folder.rglob("*.*"):
            path.write_bytes(path.read_bytes() + b"\n")
        with pytest.raises(Refused, match=r"was (indexed with|replaced since it was listed)") as caught:
            for step in range(1, 12):
                plane.receive(step)
        assert caught.value.reason == "SourceChanged"


def test_at_the_end_loaders_leave_with_the_code_that_is_named_and_constructors_after_their_trainer(tmp_path):
    with data_plane(tmp_path) as plane:
        files = set(tmp_path.rglob("*"))
        plane.coordinator.begin(replicas=1)
        plane.receive(0)
        plane.coordinator.finished = Finished(Exit.STOPPED, "Suspended", "asked to stop")
        loader, constructor = (plane.children[name].process for name in ("loader-0", "trainer-0"))
        footprint = Footprint.of_processes(tmp_path, (loader.pid, constructor.pid))
        assert footprint.sockets
        assert loader.wait(30) == Exit.STOPPED
        assert constructor.poll() is None
        constructor.terminate()
        constructor.wait(30)
        left = {p for p in set(tmp_path.rglob("*")) - files if "runs" not in p.parts}
        assert not left
    footprint.assert_gone()


def test_a_missing_source_ends_the_loader_and_is_reported_to_the_coordinator(tmp_path):
    with data_plane(tmp_path, without=("docs",)) as plane:
        assert plane.children["loader-0"].process.wait(60) == Exit.USER_FAULT
        fault = msgspec.json.decode((tmp_path / "loader-0.termination").read_bytes(), type=Fault)
        reported = [i.fault for i in plane.coordinator.indexed.values() if i.fault]
    assert fault.reason == reported[0].reason == "SourceNotFound"
    assert "docs" in fault.message
