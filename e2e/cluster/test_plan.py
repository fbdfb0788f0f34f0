"""Addresses, wires, settings and DNS of the test cluster follow from its plan."""

from __future__ import annotations

import io
import json
import tarfile
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path

import pytest
import yaml

from e2e.cluster import dns, images, networking, settings
from e2e.cluster.plan import NoRangeFree, Plan, free_range, make_plan

PLAN = make_plan(Path("/somewhere"), 100, ["default", "192.0.2.0/24"])


def test_a_cluster_takes_a_range_that_no_route_of_the_machine_leads_to() -> None:
    assert free_range(["default"]) == IPv4Network("10.99.0.0/16")
    assert free_range(["10.99.7.0/24", "10.98.0.1"]) == IPv4Network("10.97.0.0/16")


def test_a_machine_without_a_free_range_is_refused_with_the_ranges_that_were_tried() -> None:
    with pytest.raises(NoRangeFree, match=r"10\.99\.0\.0/16.*10\.93\.0\.0/16"):
        free_range(["10.0.0.0/8"])


def test_two_folders_have_two_names_that_fit_a_network_link() -> None:
    other = make_plan(Path("/elsewhere"), 1, [])
    assert other.name != PLAN.name
    assert len(PLAN.name) <= 15


def test_no_address_is_given_twice_and_all_lie_in_the_range() -> None:
    single = [PLAN.control_plane, PLAN.machine, PLAN.gateway, *map(PLAN.node_address, PLAN.nodes)]
    assert len(set(single)) == len(single)
    assert all(IPv4Address(address) in IPv4Network(PLAN.network) for address in single)
    assert not any(IPv4Address(address) in IPv4Network(PLAN.pods) for address in single)


def test_pods_of_each_node_lie_in_the_pods_range_and_apart_from_the_others() -> None:
    ranges = [IPv4Network(PLAN.pods_of(node)) for node in PLAN.nodes]
    assert all(range_.subnet_of(IPv4Network(PLAN.pods)) for range_ in ranges)
    assert len(set(ranges)) == len(ranges)


def test_a_node_knows_the_way_to_every_other_nodes_pods_and_none_to_its_own() -> None:
    plan = Plan("name", "10.99.0.0/16", ["node-0", "node-1", "node-2"])
    routes = [line for line in networking.node_lines(plan, "node-1") if line.startswith("route add 10.")]
    assert routes == ["route add 10.99.128.0/24 via 10.99.0.10", "route add 10.99.130.0/24 via 10.99.0.12"]


def test_the_machine_gets_one_link_and_one_route() -> None:
    lines = [*networking.machine_lines(PLAN, 7), networking.machine_route(PLAN)]
    assert sum(line.startswith("link add") for line in lines) == 1
    assert [line for line in lines if line.startswith("route")] == [
        f"route add {PLAN.network} via {PLAN.gateway} dev {PLAN.name}"
    ]


def test_the_kubelet_stays_in_its_own_cgroup_and_keeps_imported_images() -> None:
    config = yaml.safe_load(settings.kubelet(PLAN, "node-3", Path("/authority"), Path("/names")))
    assert config["cgroupRoot"] == f"/{PLAN.name}/node-3"
    assert config["imageGCHighThresholdPercent"] == 100
    assert config["authentication"]["anonymous"] == {"enabled": False}


def test_kube_proxy_leaves_the_machines_connection_limits_alone() -> None:
    config = yaml.safe_load(settings.kube_proxy(PLAN, "node-3", Path("/kubeconfig")))
    assert (config["conntrack"]["maxPerCore"], config["conntrack"]["min"]) == (0, 0)


def test_names_outside_the_cluster_are_in_a_block_of_their_own() -> None:
    """In one block CoreDNS would ask `template` before `kubernetes`, and no Service would have a name."""
    blocks = dns.corefile("10.99.0.1", Path("/kubeconfig")).split("\n}\n")
    assert ["kubernetes {" in block for block in blocks[:2]] == [True, False]
    assert ["template" in block for block in blocks[:2]] == [False, True]


def test_the_pause_archive_is_a_tagged_image_of_one_executable(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"program")
    path = images.write_pause_archive(tmp_path / "binary", "coxswain.test/pause:1", tmp_path / "pause.tar")
    with tarfile.open(path) as archive:
        manifest = json.load(archive.extractfile("manifest.json") or io.BytesIO())
        layer = archive.extractfile(manifest[0]["Layers"][0])
        assert layer is not None
        with tarfile.open(fileobj=layer) as inner:
            assert [(entry.name, oct(entry.mode)) for entry in inner] == [("pause", "0o755")]
    assert manifest[0]["RepoTags"] == ["coxswain.test/pause:1"]
