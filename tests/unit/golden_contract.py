"""The contract besides the messages: paths, names, keys, hashes, binary forms, `--json` lines.

`python -m tests.unit.golden_contract` writes the other files of `tests/unit/golden` from the code of today.
"""

from __future__ import annotations

import ast
import asyncio
import io
import json
import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import redirect_stderr
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

import msgspec
import numpy as np

from coxswain import config, digests, index, layout, membership, metrics, names, planlog, wire
from coxswain.api.field_errors import FieldError
from coxswain.block import BlockEntry
from coxswain.cost.constants import Constants
from coxswain.errors import Refused, Retryable, Stale
from coxswain.membership.values import Sequence
from coxswain.plan import assemble, values
from coxswain_cli.jsonlines import JsonOutput
from coxswain_cli.progress import View
from coxswain_cli.workdir import LoggedEvent
from coxswain_coordinator.api.handlers import Handlers
from coxswain_coordinator.checkpoint import store, validation
from coxswain_coordinator.state.job_state import JobState
from coxswain_coordinator.world import formation
from coxswain_link import flight
from coxswain_link.http_server import HttpService
from coxswain_link.step_buffer import StepArrays, StepSlice, pack, unpack
from coxswain_link.store import BucketNotFound, NotFound, StoreUnavailable
from coxswain_operator.local import LocalCluster
from coxswain_operator.local.objects import Objects
from coxswain_operator.views import Event
from tests.unit.golden_samples import full

Object = dict[str, Any]

ROOT = Path(__file__).parents[2]
GOLDEN = Path(__file__).parent / "golden"
CONTRACT, STRINGS, BLOCK = GOLDEN / "contract.json", GOLDEN / "strings.json", GOLDEN / "block-index.npz"
BLOCK_INDEX = index.BlockIndex(np.array([3, 5]), np.array([7, 11], np.uint32), np.array([13]))
ARRAYS = StepArrays(
    2, 3, *(np.array(row, np.int32) for row in ([5, 7], [7, -100], [11, 12])), slices=(StepSlice(13, 17, 19, 21, 0),)
)
_JOB = {"kind": "TrainingJob", "metadata": {"name": "small"}}


def contract() -> Object:
    """As JSON keeps it."""
    found = {
        "routes": routes(), "headers": [wire.TOKEN_HEADER, wire.GENERATION_HEADER], "keys": keys(), "hashes": hashes(),
        "names": constants(), "metrics": [[m.service, m.name, m.kind, m.labels, m.buckets] for m in metrics.METRICS],
        "binary": binary(),
        "cox run --json": run_lines(), "cox validate --json": asdict(FieldError(*"abcdef", 7, "h")), "errors": errors(),
        "local cluster": local_files(), "constants of cox plan": [*msgspec.structs.asdict(full(Constants))],
    }  # fmt: skip
    return cast("Object", json.loads(json.dumps(found)))


class _Table:
    """Takes what `Calls.routes` gives to a service."""

    def __init__(self) -> None:
        self.found: list[str] = []

    def route(self, method: str, path: str, *_: Any) -> None:
        self.found.append(f"{method} {path}")

    def page(self, path: str, *_: Any) -> None:
        self.found.append(f"page {path}")


def routes() -> list[str]:
    table = _Table()
    Handlers(cast("JobState", None), lambda: None).routes(cast("HttpService", table))
    return sorted(table.found)


def keys() -> list[str]:
    log = [
        planlog.generation_key(1),
        planlog.takeover_key(2, 3),
        planlog.membership_key(4),
        planlog.placement_key(5, 6),
    ]
    return [*log, planlog.manifest_key(7), planlog.steps_key(8, 2), index.object_key("abcd"), store.RUN_KEY]


def constants() -> list[Any]:
    """Every name and port that two parts spell alike, in the order of the code."""
    return [value for name, value in vars(names).items() if name.isupper()] + [names.constructor_socket("uid")]


def hashes() -> Object:
    """Of encoded samples: runs, indices and plans are recognised by them."""
    job, entry = full(config.JobConfig), full(BlockEntry)
    one, tokens = full(Sequence), np.array([2, 3, 5])
    token_digest = digests.tokens_digest(tokens)
    return {
        "job": formation.digest_of(job),
        "run": [validation.stream_hash(job), validation.stream_fields(job)],
        "model": job.model_hash(),
        "layout": full(layout.Layout).digest(),
        "placement": assemble.digest(full(values.Placement)),
        "block": index.block_key(entry, "tokenizer", "format"),
        "source": index.fingerprint([entry]),
        "tokens": token_digest,
        "stream": digests.chain(digests.STREAM_SEED, 7, [one], [token_digest]),
        "delivered": digests.delivered(1, np.array([2, 3, 5]), tokens),
        "permutation": membership.permutation.VERSION,
    }


def binary() -> Object:
    """The hand-over's memory, the block index and the schema of Flight."""
    buffer = pack(ARRAYS)
    arrays = np.load(io.BytesIO(index.encode(BLOCK_INDEX)))
    return {
        "step": os.pread(buffer.fd, 1 << 16, 0).hex(),
        "index": {name: [arrays[name].dtype.str, arrays[name].tolist()] for name in arrays.files},
        "flight": str(flight.SCHEMA),
        "flight batch": [
            str(part) for part in flight.record_batch([flight.SlicePart(2, np.array([3, 5], np.int32), "d")])
        ],
    }


def unpacked(content: bytes) -> StepArrays:
    """The arrays of a recorded hand-over."""
    fd = os.memfd_create("golden")
    try:
        os.write(fd, content)
        return unpack(fd)
    finally:
        os.close(fd)


def errors() -> Object:
    """What a loader adds to an error of Flight, and the errors that a termination message names."""
    raised = (Stale("a"), Retryable("b"), Refused("Reason", "c"))
    found = [flight.to_flight(error).extra_info.decode() for error in raised]
    return {
        "of a loader": found,
        "kinds": [kind.reason for kind in (Stale, Retryable, StoreUnavailable, NotFound, BucketNotFound)],
    }


def run_lines() -> list[str]:
    """Each kind of line; the work directory's path is not part of it."""
    out, event = io.StringIO(), LoggedEvent("Reason", "message", "2026-01-02T03:04:05Z")
    lines = JsonOutput(out)
    step = full(wire.StepLine)
    lines.show(
        View("small", "Running", "", 1, 2, 3.5, 4.5, 5.5, 6.5, "trainer-1", 7, "layout", (step,), (event,), (), 0.0)
    )
    lines.say("words")
    with redirect_stderr(io.StringIO()):
        lines.refuse(2, "Reason", "words")
    with tempfile.TemporaryDirectory() as folder:
        lines.end(_JOB, Path(folder))
        return out.getvalue().replace(folder, "FOLDER").splitlines()


def local_files() -> Object:
    """What a local cluster writes, without the random uid."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        stored = Objects(folder / "cluster", lambda: 0.0).create({**_JOB, "spec": {"image": "image"}})
        path = next((folder / "cluster").rglob("*.json"))
        event = Event("Reason", "message", True, 1.5)
        asyncio.run(LocalCluster(folder).publish(_JOB, event))
        text = path.read_text().replace(stored["metadata"]["uid"], "UID")
        return {str(path.relative_to(folder)): text, "events.jsonl": (folder / "events.jsonl").read_text()}


# --- strings of the code --------------------------------------------------------------------------------------------


_COMPOUND = re.compile(r"[A-Z][a-z]+([A-Z][a-z0-9]*)+")
_SINGLE = re.compile(r"[A-Z][A-Za-z]+")
_OUTSIDE = re.compile(r"(COXSWAIN|AWS|POD)_[A-Z_]+|coxswain\.dev/[-a-z]+")


def literals() -> set[str]:
    """All string constants of the code."""
    return {node.value for node in _nodes() if isinstance(node, ast.Constant) and isinstance(node.value, str)}


def strings() -> list[str]:
    """Reasons, environment variables, labels and annotations that stand in the code; no names of its classes."""
    nodes = _nodes()
    classes = {node.name for node in nodes if isinstance(node, ast.ClassDef)}
    found = literals()
    named = {t for t in found - classes if _COMPOUND.fullmatch(t)} | {t for t in found if _OUTSIDE.fullmatch(t)}
    return sorted(named | set(_refusals(nodes)))


def _nodes() -> list[ast.AST]:
    paths = [path for part in ("core", "runtime", "operator", "cli") for path in sorted((ROOT / part).rglob("*.py"))]
    return [node for path in paths for node in ast.walk(ast.parse(path.read_text()))]


def _refusals(nodes: list[ast.AST]) -> Iterator[str]:
    """First arguments of `Refused(...)` and its like, and each `reason=...`."""
    for call in (node for node in nodes if isinstance(node, ast.Call)):
        given = [keyword.value for keyword in call.keywords if keyword.arg == "reason"]
        if isinstance(call.func, ast.Name) and call.func.id in ("Refused", "Fault", "Event", "FieldError", "JobEvent"):
            given += call.args[:1]
        for value in given:
            if isinstance(value, ast.Constant) and _SINGLE.fullmatch(str(value.value)):
                yield str(value.value)


def main() -> None:
    CONTRACT.write_text(json.dumps(contract(), indent=1) + "\n")
    STRINGS.write_text(json.dumps(strings(), indent=1) + "\n")
    BLOCK.write_bytes(index.encode(BLOCK_INDEX))


if __name__ == "__main__":
    main()
