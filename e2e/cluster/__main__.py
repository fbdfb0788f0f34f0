"""A test cluster by hand: `python -m e2e.cluster up`, and `down`.

Exit code 2: refused, with the reasons.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from e2e.cluster import preflight
from e2e.cluster.cluster import CannotStart, Cluster
from e2e.cluster.process import REPOSITORY, binary
from e2e.cluster.state import ClusterRuns, NotOurs
from e2e.tools.build import build

STATE = REPOSITORY / ".cache" / "cluster"
TOOLS = (
    "etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy", "kubectl", "coredns",
    "pause", "helm",
)  # fmt: skip


app = typer.Typer(help="A real Kubernetes on this one machine.", no_args_is_help=True, add_completion=False)
State = Annotated[Path, typer.Option(help="The cluster's folder: all it keeps is in there.", resolve_path=True)]


@app.command()
def up(
    state: State = STATE,
    nodes: Annotated[int, typer.Option(min=1, max=100, help="Nodes with a kubelet and containerd each.")] = 2,
    kwok_nodes: Annotated[int, typer.Option(min=0, help="Further nodes that kwok simulates.")] = 0,
) -> None:
    """Starts a control plane and real nodes. The cluster runs until `down`."""
    machine = preflight.look()
    if missing := preflight.lacks(machine, state):
        _refuse("this machine cannot run a cluster yet:", *missing)
    if scarce := [*preflight.demo_lacks(machine), *preflight.demo_room(machine)]:
        print("the cluster can run; `make demo` needs more:", *scarce, sep="\n", file=sys.stderr)
    for tool in (*TOOLS, *(["kwok"] if kwok_nodes else [])):
        build(tool)
    cluster = Cluster(state, nodes, kwok_nodes=kwok_nodes, detached=True)
    try:
        cluster.up()
    except CannotStart as reason:
        _refuse(str(reason))
    except BaseException:
        cluster.down()
        raise
    print(_next_lines(cluster))


@app.command()
def check(state: State = STATE) -> None:
    """Lists what this machine lacks for a cluster and its images; exit code 2 if anything."""
    if missing := preflight.lacks(preflight.look(), state, preflight.BUILDERS):
        _refuse(*missing)


@app.command()
def down(state: State = STATE) -> None:
    """Ends the cluster and removes all that it made; also the remains of a killed one."""
    try:
        Cluster(state).down()
    except (NotOurs, ClusterRuns) as reason:
        _refuse(str(reason))


@app.command()
def load(archive: Path, state: State = STATE) -> None:
    """Imports an image archive into every node."""
    Cluster(state).load_image(archive.resolve(strict=True))


@app.command()
def kill(node: str, state: State = STATE) -> None:
    """Cuts a node's power: kubelet, containerd and its pods' processes end at once."""
    Cluster(state).node(node).kill()


@app.command()
def start(node: str, state: State = STATE) -> None:
    """Starts a killed node again."""
    Cluster(state).node(node).start()


def _refuse(*lines: str) -> NoReturn:
    print(*lines, sep="\n", file=sys.stderr)
    raise typer.Exit(2)


def _next_lines(cluster: Cluster) -> str:
    count = len(cluster.plan.nodes)
    return f"""
{count} node{"s" * (count > 1)} ready. Next:
    export KUBECONFIG={cluster.kubeconfig}
    export PATH={binary("kubectl").parent}:$PATH    # kubectl, helm
    kubectl get nodes
This machine is {cluster.machine_address} for its pods. Images come by `python -m e2e.cluster load ARCHIVE`, not from a registry.
It ends with `make cluster-down` (or `python -m e2e.cluster down --state {cluster.state.root}`)."""


if __name__ == "__main__":
    app()
