"""Runs the operator beside a real Kueue and tries what its queues do to jobs: simulated nodes, no container starts.

    python -m bench.kueue --binary manager --config config/components --version v0.19.2

Kueue is given by its binary and the folder `config/components` of its source: its module is not on every Go proxy, so it is
none of the tools that e2e/tools builds. Prints one JSON object; exit code 1 if a claim does not hold.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx

from bench.kueue.manager import GROUP, STORED, Kueue, Manifest, create
from bench.kueue.team import Team, kueue_object
from bench.scale.control_plane import Plane
from bench.scale.coxswain import Coxswain
from e2e.cluster.process import REPOSITORY


def admission(team: Team) -> None:
    """All pods of a job are admitted together; a job that does not fit waits, and follows when the first is deleted."""
    team.submit("first")
    team.until(lambda: team.runs("first"))
    team.submit("second")
    team.until(lambda: team.waits("second"))
    assert team.runs("first") and set(team.workloads()) == team.groups("first") | team.groups("second")
    team.delete("first")
    team.until(lambda: team.runs("second"), lambda: set(team.workloads()) == team.groups("second"))


def waiting(team: Team) -> None:
    """A job that waits is suspended, resumed and deleted: neither pods nor Workloads stay behind."""
    team.submit("first")
    team.until(lambda: team.runs("first"))
    team.submit("second")
    team.until(lambda: team.waits("second"))
    team.change("second", suspend=True)
    team.until(lambda: team.state("second") == "Suspended", lambda: team.pods("second") == [])
    team.change("second", suspend=False)
    team.until(lambda: team.waits("second"))
    team.delete("second")
    team.until(lambda: team.pods("second") == [], lambda: set(team.workloads()) == team.groups("first"))


def preemption(team: Team) -> None:
    """A WorkloadPriorityClass: the urgent job takes the place of the other, which returns in its group, uncounted."""
    team.submit("low", priority="low")
    team.until(lambda: team.runs("low"))
    group = team.groups("low")
    team.submit("urgent", priority="urgent")
    team.until(lambda: team.runs("urgent"), lambda: team.waits("low"))
    assert team.groups("low") == group
    assert {one["spec"]["priority"] for one in team.workloads().values()} == {10, 1000}
    team.delete("urgent")
    team.until(lambda: team.runs("low"))
    assert team.status("low")["restarts"]["counted"] == 0


def replacement(team: Team) -> None:
    """A pod that is deleted gets a successor in the same group and the same share."""
    team.submit("first")
    team.until(lambda: team.runs("first"))
    group, names = team.groups("first"), {p["metadata"]["name"] for p in team.pods("first")}
    lost = next(name for name in names if "-trainer-" in name)
    team.http.delete(f"/api/v1/namespaces/{team.name}/pods/{lost}").raise_for_status()
    team.until(lambda: team.runs("first") and lost not in {p["metadata"]["name"] for p in team.pods("first")})
    assert team.groups("first") == group and len(team.workloads()) == 1


def versions(team: Team) -> None:
    """A Workload is the same in v1beta1 and v1beta2; its deletion by either lets gated pods go."""
    for version in ("v1beta1", "v1beta2"):
        team.submit("large", 3)
        team.until(lambda: team.waits("large", 5))
        (name,) = team.groups("large")
        assert set(team.workloads("v1beta1")) == set(team.workloads("v1beta2")) == {name}
        team.delete("large")
        team.until(lambda: all("deletionTimestamp" in p["metadata"] for p in team.pods("large")))
        team.http.delete(f"/apis/{GROUP}/{version}/namespaces/{team.name}/workloads/{name}")
        team.until(lambda: team.pods("large") == [], lambda: team.workloads() == {})


def partial(team: Team) -> None:
    """A job with minCount begins with as many trainers as there is room for; preempted, it waits without pods and comes back."""
    team.submit("large", 3, minCount=1)
    team.until(lambda: team.runs("large", 4), lambda: team.status("large")["trainers"]["desired"] == 2)
    assert admitted(team, "large") == {"coordinator": 1, "loader": 1, "trainer": 2}
    group = team.groups("large")
    team.submit("urgent", priority="urgent")
    team.until(lambda: team.runs("urgent"), lambda: team.waits("large", 0), lambda: len(team.workloads()) == 2)
    team.delete("urgent")
    team.until(lambda: team.runs("large", 4), lambda: set(team.workloads()) == team.groups("large"))
    assert team.groups("large") != group and team.status("large")["restarts"]["counted"] == 0


def minimum(team: Team) -> None:
    """A job whose minimum does not fit waits without pods; suspended, it leaves no Workload; deleted, neither."""
    team.submit("large", 5, minCount=3)
    team.until(lambda: team.waits("large", 0), lambda: len(team.workloads()) == 1)
    team.change("large", suspend=True)
    team.until(lambda: team.state("large") == "Suspended", lambda: team.workloads() == {})
    team.change("large", suspend=False)
    team.until(lambda: len(team.workloads()) == 1)
    team.submit("small")
    team.until(lambda: team.runs("small"))
    assert team.waits("large", 0)


def successor(team: Team) -> None:
    """A trainer of a job that was admitted with fewer is replaced in its group, and its Workload stays as it is."""
    team.submit("large", 3, minCount=1)
    team.until(lambda: team.runs("large", 4))
    group, names = team.groups("large"), {p["metadata"]["name"] for p in team.pods("large")}
    lost = next(name for name in names if "-trainer-" in name)
    team.http.delete(f"/api/v1/namespaces/{team.name}/pods/{lost}").raise_for_status()
    team.until(lambda: team.runs("large", 4) and lost not in team.alive("large"))
    assert team.groups("large") == group and set(team.workloads()) == group


def admitted(team: Team, name: str) -> dict[str, int]:
    """Pods by role of its Workload, as Kueue has admitted them."""
    (group,) = team.groups(name)
    sets = team.workloads()[group]["status"]["admission"]["podSetAssignments"]
    return {one["name"]: one["count"] for one in sets}


CLAIMS = (admission, waiting, preemption, replacement, versions, partial, minimum, successor)


def tried(http: httpx.Client, names: list[str]) -> Iterator[Manifest]:
    for claim in (one for one in CLAIMS if one.__name__ in names):
        found = {"name": claim.__name__, "claim": claim.__doc__, "holds": True}
        try:
            claim(Team(http, claim.__name__))
        except (AssertionError, TimeoutError, RuntimeError) as error:
            found |= {"holds": False, "error": f"{type(error).__name__}: {error}"}
        print(json.dumps(found), file=sys.stderr, flush=True)
        yield found


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", type=Path, required=True, help="Kueue's manager")
    parser.add_argument("--config", type=Path, required=True, help="config/components of its source")
    parser.add_argument("--version", required=True, help="of both, for the record")
    parser.add_argument("--claims", nargs="*", default=[one.__name__ for one in CLAIMS], help="only these")
    return parser.parse_args()


def prepare(plane: Plane, binary: Path, config: Path) -> None:
    """Nodes, Kueue with what all queues share, and the operator."""
    http = plane.control.http
    Kueue(plane, binary.resolve(), config.resolve()).start()
    asyncio.run(plane.add_nodes(2))
    create(http, f"/apis/{GROUP}/{STORED}/resourceflavors", kueue_object("ResourceFlavor", "any", {"spec": {}}))
    for name, value in (("low", 10), ("urgent", 1000)):
        path = f"/apis/{GROUP}/{STORED}/workloadpriorityclasses"
        create(http, path, kueue_object("WorkloadPriorityClass", name, {"value": value}))
    operator = Coxswain(plane)
    operator.prepare()
    operator.start()


def main() -> int:
    options = parsed()
    with Plane() as plane:
        prepare(plane, options.binary, options.config)
        found = list(tried(plane.control.http, options.claims))
        failed = not all(one["holds"] for one in found)
        for log in ("kueue", "coxswain-1") if failed else ():
            print((plane.root / f"{log}.log").read_text()[-6000:], file=sys.stderr)
    commit = subprocess.check_output(["git", "rev-parse", "HEAD"], cwd=REPOSITORY, text=True).strip()
    print(json.dumps({"kueue": options.version, "commit": commit, "claims": found}, indent=1))
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
