"""The operator on a control plane with kwok nodes, beside a bare loop that only POSTs the same pods (the limit), in turns.

    python -m bench.operator_scale [--trainers 1000,3000] [--many 200x16] [--rounds 3] [--nodes 200] [--write]

Prints one JSON object, then the table; `--write` puts the table into docs/design/scale.md. Run it from the repository's root.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import sys
from pathlib import Path

from bench.scale import cases
from bench.scale.coxswain import Coxswain, pods_of
from bench.scale.plane import Plane
from bench.scale.table import into_page, lines, summary

PAGE = Path(__file__).resolve().parents[1] / "docs" / "design" / "scale.md"


async def measure(jobs: int, trainers: int, rounds: int, nodes: int) -> list[dict[str, cases.Figures]]:
    """So many rounds of: the bare loop, ours, a restart of ours where it is one job. A control plane of their own."""
    found = []
    with Plane() as plane:
        await plane.add_nodes(nodes)
        operator = Coxswain(plane)
        operator.prepare()
        operator.start()
        pods = [pod for n in range(jobs) for pod in pods_of(f"j{n}", trainers, "any")]
        for _ in range(rounds):
            bare = await cases.bare(plane, pods)
            found.append({"bare": bare, "coxswain": await cases.creation(plane, operator, jobs, trainers, jobs == 1)})
            print(json.dumps(found[-1]), file=sys.stderr, flush=True)
        if jobs == 1:
            found[-1]["kill"] = await cases.killed(plane, operator, trainers)
    return found


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the control plane goes as well
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trainers", default="1000,3000", help="sizes of the one job")
    parser.add_argument("--many", default="200x16", help="jobs x trainers; empty: none")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--nodes", type=int, default=200, help="of 32 pods each")
    parser.add_argument("--write", action="store_true", help="the table into docs/design/scale.md")
    options = parser.parse_args()
    shapes = [(1, int(n)) for n in options.trainers.split(",") if n]
    shapes += [(int(j), int(t)) for j, _, t in (options.many.partition("x"),) if j]
    rows = [summary(j, t, asyncio.run(measure(j, t, options.rounds, options.nodes))) for j, t in shapes]
    print(json.dumps({"rounds": options.rounds, "rows": rows}))
    print("\n".join(lines(rows)))
    if options.write:
        PAGE.write_text(into_page(PAGE.read_text(), lines(rows)))


if __name__ == "__main__":
    main()
