"""The local object store behaves like an API server and survives a SIGKILL of its process."""

import asyncio
import errno
import gc
import json
import os
import resource
import shutil
from pathlib import Path

import pytest

from coxswain.errors import Refused
from coxswain_operator.cluster import AlreadyExists, Cluster, Conflict
from coxswain_operator.local import LocalCluster, objects
from coxswain_operator.views import Event
from tests.local.pods import container, pod, run_to_end, until, until_gone


def job(name="j", **metadata):
    return {"kind": "TrainingJob", "metadata": {"name": name, "namespace": "default", **metadata}, "spec": {"seed": 1}}


@pytest.fixture
async def cluster(tmp_path):
    async with LocalCluster(tmp_path) as cluster:
        yield cluster


async def test_a_local_cluster_has_the_methods_of_the_cluster_protocol(cluster):
    assert isinstance(cluster, Cluster)


async def test_create_gives_uid_version_and_generation_and_refuses_a_second_object(cluster):
    stored = await cluster.create(job())
    assert {"uid", "resourceVersion", "creationTimestamp", "generation"} <= stored["metadata"].keys()
    with pytest.raises(AlreadyExists):
        await cluster.create(job())


async def test_a_status_write_on_an_older_version_is_a_conflict(cluster):
    stored = await cluster.create(job())
    version = stored["metadata"]["resourceVersion"]
    written = await cluster.patch_status("TrainingJob", "default", "j", {"step": 1}, version)
    assert written["status"] == {"step": 1}
    with pytest.raises(Conflict):
        await cluster.patch_status("TrainingJob", "default", "j", {"step": 2}, version)


async def test_a_status_write_does_not_touch_the_generation_but_another_spec_does(cluster):
    stored = await cluster.create(job())
    written = await cluster.patch_status("TrainingJob", "default", "j", {"a": 1}, "")
    replaced = await cluster.replace({**written, "spec": {"seed": 2}})
    assert [m["metadata"]["generation"] for m in (stored, written, replaced)] == [1, 1, 2]
    assert replaced["status"] == {"a": 1}


async def test_a_replacement_keeps_the_status_whatever_it_says_of_it(cluster):
    await cluster.create(job())
    await cluster.patch_status("TrainingJob", "default", "j", {"step": 1}, "")
    for said in ({}, {"status": {"step": 2}}):
        assert (await cluster.replace(job() | said))["status"] == {"step": 1}


async def test_a_replacement_of_an_older_version_is_a_conflict(cluster):
    stored = await cluster.create(job())
    await cluster.patch_status("TrainingJob", "default", "j", {"step": 1}, "")
    with pytest.raises(Conflict):
        await cluster.replace({**stored, "spec": {"seed": 2}})
    assert (await cluster.list("TrainingJob", "default"))[0]["spec"] == {"seed": 1}


async def test_a_change_while_a_watch_shows_what_is_there_is_shown_next_and_as_a_copy(cluster):
    await cluster.create(job("a"))
    watch = cluster.watch("TrainingJob", "default")
    await anext(watch)
    await cluster.create(job("b"))
    change = await asyncio.wait_for(anext(watch), 5)
    assert (change.kind, change.object["metadata"]["name"]) == ("ADDED", "b")
    change.object["spec"]["seed"] = 99
    assert (await cluster.get("TrainingJob", "default", "b"))["spec"] == {"seed": 1}


async def test_get_returns_a_copy(cluster):
    (await cluster.create(job()))["spec"]["seed"] = 99
    assert (await cluster.list("TrainingJob", "default"))[0]["spec"]["seed"] == 1


async def test_labels_select(cluster):
    await cluster.create(job("a", labels={"x": "1"}))
    await cluster.create(job("b", labels={"x": "2"}))
    assert [m["metadata"]["name"] for m in await cluster.list("TrainingJob", "default", {"x": "2"})] == ["b"]


async def test_a_watch_shows_what_is_there_and_then_every_change(cluster):
    await cluster.create(job("a"))
    seen = []

    async def follow():
        async for change in cluster.watch("TrainingJob", "default"):
            seen.append((change.kind, change.object["metadata"]["name"]))
            if change.kind == "DELETED":
                return

    follower = asyncio.create_task(follow())
    await asyncio.sleep(0)
    await cluster.create(job("b"))
    await cluster.patch_status("TrainingJob", "default", "a", {}, "")
    await cluster.delete("TrainingJob", "default", "b")
    await asyncio.wait_for(follower, 5)
    assert seen == [("ADDED", "a"), ("ADDED", "b"), ("MODIFIED", "a"), ("MODIFIED", "b"), ("DELETED", "b")]


async def test_deleting_an_object_deletes_what_it_owns(cluster):
    owner = await cluster.create(job())
    child = {
        "kind": "Secret",
        "metadata": {"name": "s", "namespace": "default", "ownerReferences": [{"uid": owner["metadata"]["uid"]}]},
    }
    await cluster.create(child)
    await cluster.delete("TrainingJob", "default", "j")
    await until_gone(cluster, "Secret")
    assert await cluster.list("Secret", "default") == []


async def test_a_second_deletion_while_the_first_is_under_way_fails_nowhere(cluster):
    problems = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: problems.append(context))
    await cluster.create(job())
    await cluster.delete("TrainingJob", "default", "j")
    await cluster.delete("TrainingJob", "default", "j")
    await until_gone(cluster, "TrainingJob")
    gc.collect()  # of a task whose error has no reader
    assert problems == []


async def test_a_file_that_cannot_be_removed_is_tried_again_and_its_object_is_there_until_then(cluster, skip):
    owner = await cluster.create(job())
    await cluster.create(job("owned", ownerReferences=[{"uid": owner["metadata"]["uid"]}]))
    path = cluster.path_of(owner)
    await cluster.delete("TrainingJob", "default", "j")
    path.unlink()
    path.mkdir()
    for _ in range(5):
        await asyncio.sleep(0)
    assert [m["metadata"]["name"] for m in await cluster.list("TrainingJob", "default")] == ["j", "owned"]
    path.rmdir()
    skip(1)
    async with asyncio.timeout(10):
        while await cluster.list("TrainingJob", "default"):  # noqa: ASYNC110
            await asyncio.sleep(0)


async def test_a_close_leaves_a_file_that_cannot_be_removed_to_the_next_start(tmp_path):
    async with LocalCluster(tmp_path) as cluster:
        stored = await cluster.create(job())
        await cluster.delete("TrainingJob", "default", "j")
        marked = (path := cluster.path_of(stored)).read_bytes()
        path.unlink()
        path.mkdir()
    path.rmdir()
    path.write_bytes(marked)
    async with LocalCluster(tmp_path) as cluster:
        assert await cluster.list("TrainingJob", "default") == []


async def test_a_name_that_would_leave_the_folder_is_refused(cluster):
    with pytest.raises(Refused, match="lower-case letters"):
        await cluster.create(job("../../etc"))


async def test_a_name_that_is_too_long_for_a_file_is_refused_and_the_longest_is_stored(cluster):
    assert await cluster.create(job("a" * 245))
    with pytest.raises(Refused, match="at most 245 on one machine; rename it"):
        await cluster.create(job("a" * 246))


async def test_objects_survive_and_versions_go_on(tmp_path):
    async with LocalCluster(tmp_path) as cluster:
        first = await cluster.create(job())
    async with LocalCluster(tmp_path) as cluster:
        assert await cluster.list("TrainingJob", "default") == [first]
        second = await cluster.create(job("k"))
    assert int(second["metadata"]["resourceVersion"]) > int(first["metadata"]["resourceVersion"])


async def test_a_broken_object_file_is_refused_by_name(tmp_path):
    async with LocalCluster(tmp_path) as cluster:
        await cluster.create(job())
    (tmp_path / "cluster/TrainingJob/default/j.json").write_text("{")
    for _ in range(2):  # the refusal lets go of the work directory
        with pytest.raises(Refused, match=r"j\.json is not an object"):
            async with LocalCluster(tmp_path):
                pass


async def test_a_second_cluster_in_the_same_workdir_is_refused(tmp_path):
    (tmp_path / "cluster.lock").write_text("4194304123\n")  # a longer number, of an earlier run
    async with LocalCluster(tmp_path):
        with pytest.raises(Refused, match=rf"in use by another run \(process {os.getpid()}\); wait for it"):
            async with LocalCluster(tmp_path, lock_seconds=0.1):
                pass


async def test_published_events_are_lines_of_a_file(cluster):
    await cluster.publish(job(), Event("Completed", "done"))
    line = json.loads((cluster.workdir / "events.jsonl").read_text())
    assert (line["reason"], line["message"], line["object"]) == ("Completed", "done", "TrainingJob/j")


async def test_an_event_is_a_line_of_its_own_behind_one_that_a_full_disk_has_torn(tmp_path):
    (tmp_path / "events.jsonl").write_text('{"reason": "Resumed"}\n{"reason": "Chec')
    async with LocalCluster(tmp_path) as cluster:
        await cluster.publish(job(), Event("Completed", "done"))
    lines = (tmp_path / "events.jsonl").read_text().splitlines()
    assert [json.loads(line)["reason"] for line in lines] == ["Resumed", "Completed"]


async def test_an_event_is_a_line_of_its_own_behind_one_that_the_same_run_could_write_in_part_only(cluster):
    await cluster.publish(job(), Event("Resumed", "from step 2"))
    size, limits = (cluster.workdir / "events.jsonl").stat().st_size, resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 20, limits[1]))
    try:
        with pytest.raises(OSError, match="events"):
            await cluster.publish(job(), Event("Completed", "done"))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    await cluster.publish(job(), Event("Completed", "done"))
    lines = (cluster.workdir / "events.jsonl").read_text().splitlines()
    assert [json.loads(line)["reason"] for line in lines] == ["Resumed", "Completed"]


async def test_a_torn_file_and_one_of_another_object_are_refused_alike(tmp_path):
    async with LocalCluster(tmp_path) as cluster:
        await cluster.create(job())
    path = tmp_path / "cluster" / "TrainingJob" / "default" / "j.json"
    other = tmp_path / "cluster" / "DataMix" / "default" / "j.json"
    other.parent.mkdir(parents=True)
    other.write_bytes(path.read_bytes())
    with pytest.raises(Refused, match=r"DataMix/default/j\.json is not an object of this folder"):
        await LocalCluster(tmp_path).__aenter__()
    other.unlink()
    for content in ("{}", "[]", "", '{"kind": "TrainingJob", "metadata": {"name": "other", "uid": "1"}}'):
        path.write_text(content)
        with pytest.raises(Refused, match=r"j\.json is not an object of this folder"):
            await LocalCluster(tmp_path).__aenter__()


async def test_a_deletion_that_a_kill_interrupted_is_finished_at_the_next_start(tmp_path):
    async with LocalCluster(tmp_path) as cluster:
        owner = await cluster.create(job())
        owned = job("owned", ownerReferences=[{"uid": owner["metadata"]["uid"]}])
        await cluster.create({**owned, "kind": "ConfigMap"})
        await cluster.create(job("other"))
    path = tmp_path / "cluster" / "TrainingJob" / "default" / "j.json"
    owner["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    path.write_text(json.dumps(owner))
    async with LocalCluster(tmp_path) as cluster:
        assert [j["metadata"]["name"] for j in await cluster.list("TrainingJob", "default")] == ["other"]
        assert await cluster.list("ConfigMap", "default") == []


async def test_a_deletion_that_is_under_way_at_the_close_ends_before_it_with_all_that_is_owned(tmp_path):
    """Behind the close another run may hold the work directory."""
    async with LocalCluster(tmp_path) as cluster:
        chain = [await cluster.create(job())]
        for number in range(5):
            owners = [{"uid": chain[-1]["metadata"]["uid"]}]
            chain.append(await cluster.create(job(f"owned-{number}", ownerReferences=owners)))
        paths = [cluster.path_of(manifest) for manifest in chain]
        await cluster.delete("TrainingJob", "default", "j")
        assert all(path.exists() for path in paths)
    assert not any(path.exists() for path in paths)


async def test_the_key_of_tokens_is_made_once_and_is_its_owners_alone(tmp_path):
    found, path = set(), tmp_path / "cluster" / "token.key"
    for _ in range(2):
        async with LocalCluster(tmp_path) as cluster:
            cluster.token_keys()
            found.add(path.read_bytes())
            cluster.token_keys()
            found.add(path.read_bytes())
    assert len(found) == 1
    assert path.stat().st_mode & 0o777 == 0o600


async def test_a_path_that_cannot_be_a_work_directory_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    for place in (tmp_path / "file", tmp_path / "file" / "below", Path("/proc/nowhere")):
        with pytest.raises(Refused, match="cannot be a work directory"):
            await LocalCluster(place).__aenter__()


@pytest.mark.parametrize("below", ["", "runs/small"])
async def test_a_link_that_leads_nowhere_is_named_as_what_is_no_folder(tmp_path, below):
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "absent")
    with pytest.raises(Refused) as refused:
        await LocalCluster(link / below).__aenter__()
    assert f"({link} is a link that leads to no folder); choose another --workdir" in refused.value.message


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
async def test_a_work_directory_without_room_is_refused_with_room_as_the_way_out_and_is_free_then(
    tmp_path, monkeypatch, number
):
    def fail(*_):
        raise OSError(number, "no room")

    with monkeypatch.context() as patched, pytest.raises(Refused) as refused:
        patched.setattr(os, "pwrite", fail)
        await LocalCluster(tmp_path).__aenter__()
    assert "(no room); make room there, or choose another --workdir" in refused.value.message
    async with LocalCluster(tmp_path, lock_seconds=0):
        pass


async def test_a_full_disk_delays_a_pods_status_and_loses_nothing(cluster, monkeypatch):
    write, full = objects.write_atomically, ["once"]

    def fail_once(path, content, mode=0o600):
        if path.parent.parent.name == "Pod" and b"Succeeded" in content and full:
            full.clear()
            raise OSError(28, "No space left on device")
        write(path, content, mode)

    monkeypatch.setattr(objects, "write_atomically", fail_once)
    assert (await run_to_end(cluster, pod(container("pass"))))["phase"] == "Succeeded"
    assert not full


async def test_a_status_that_a_full_disk_delays_is_given_up_with_its_pod(cluster, monkeypatch):
    loop, failed, problems = asyncio.get_running_loop(), asyncio.Event(), []
    write, now = objects.write_atomically, loop.time

    def fail(path, content, mode=0o600):
        if b"Succeeded" in content and b"deletionTimestamp" not in content:
            failed.set()
            raise OSError(28, "No space left on device")
        write(path, content, mode)

    loop.set_exception_handler(lambda loop, context: problems.append(context))
    monkeypatch.setattr(objects, "write_atomically", fail)
    await cluster.create(pod(container("pass")))
    await failed.wait()
    await cluster.delete("Pod", "default", "p")
    await until_gone(cluster)
    monkeypatch.setattr(loop, "time", lambda: now() + 60)  # the next attempt is due
    await asyncio.sleep(0.01)
    assert problems == []


class Hours:
    """A clock that is an hour later at each look."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        self.now += 3600
        return self.now


@pytest.fixture
async def hourly(tmp_path):
    async with LocalCluster(tmp_path, Hours()) as cluster:
        await cluster.create(job())
        yield cluster


async def assert_named_as_lasting(cluster, write, path):
    cluster.check_writable()
    for _ in range(2):
        with pytest.raises(OSError, match=f"'{path}'"):
            await write()
    with pytest.raises(OSError, match=f"'{path}'"):
        cluster.check_writable()


async def test_an_object_that_cannot_be_written_again_and_again_is_named_until_it_is_written(hourly):
    path = hourly.path_of(job())
    draft = path.with_name(f".{path.name}.new")
    draft.mkdir()

    async def write():
        await hourly.patch_status("TrainingJob", "default", "j", {"step": 1}, "")

    await assert_named_as_lasting(hourly, write, path)
    draft.rmdir()
    await write()
    hourly.check_writable()


async def test_a_file_of_events_that_cannot_be_written_again_and_again_is_named(hourly):
    path = hourly.workdir / "events.jsonl"
    path.mkdir()
    await assert_named_as_lasting(hourly, lambda: hourly.publish(job(), Event("Completed", "done", False, 0.0)), path)


async def test_a_draft_that_could_not_be_written_leaves_its_room_to_others(tmp_path):
    path = tmp_path / "there"
    path.mkdir()
    with pytest.raises(OSError, match="there'"):
        objects.write_atomically(path, b"as a file")
    assert [p.name for p in tmp_path.iterdir()] == ["there"]


async def test_an_object_that_is_deleted_while_the_folder_is_read_is_left_out(cluster, monkeypatch):
    stored = await cluster.create(job())
    path = cluster.path_of(stored)
    listed = [path, path.with_name("gone.json")]
    monkeypatch.setattr(Path, "glob", lambda folder, pattern: iter(listed))
    assert objects.read_objects(cluster.workdir / "cluster") == [stored]


async def test_an_object_of_another_user_is_not_to_be_deleted(cluster, monkeypatch):
    path = cluster.path_of(await cluster.create(job()))

    def refuse(path):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_bytes", refuse)
    with pytest.raises(Refused) as refused:
        objects.read_objects(path.parents[2])
    assert (
        f"{path} cannot be read (Permission denied); repeat this as the user that ran the job" in refused.value.message
    )
    assert "delete" not in refused.value.message


@pytest.mark.parametrize("away", [lambda folder: folder.rename(folder.with_name("moved")), shutil.rmtree])
async def test_a_work_directory_that_is_moved_or_deleted_meanwhile_is_named_and_not_made_again(tmp_path, away):
    """A run went on in a folder that its next write had made, and another one could take the lock of that."""
    async with LocalCluster(tmp_path / "work") as cluster:
        await cluster.create(pod(container("import time; time.sleep(60)")))
        await until(cluster, lambda p: "running" in p["status"].get("containerStatuses", [{"state": ()}])[0]["state"])
        cluster.check_writable()
        away(tmp_path / "work")
        with pytest.raises(OSError, match=f"moved or deleted while the job ran: '{tmp_path}/work'"):
            cluster.check_writable()
    assert not (tmp_path / "work").exists()
