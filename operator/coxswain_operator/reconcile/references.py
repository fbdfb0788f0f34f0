"""Which objects a job reads: its mix, the sources of that mix, and its policy. The API server has judged their shape."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from coxswain_operator.views import Manifest


def mix_name(job: Manifest) -> str:
    """Empty: the mix stands in the job."""
    return _name(job["spec"].get("mixRef"))


def policy_name(job: Manifest) -> str:
    """Empty: the policy stands in the job."""
    return _name(job["spec"].get("parallelismRef"))


def source_names(job: Manifest, mixes: Iterable[Manifest]) -> frozenset[str]:
    """Empty as long as the mix does not exist. `mixes`: of the job's namespace."""
    name = mix_name(job)
    specs = (m.get("spec") for m in mixes if m["metadata"]["name"] == name) if name else (job["spec"].get("mix"),)
    return frozenset(_name(entry.get("sourceRef")) for spec in specs for entry in (spec or {}).get("sources") or ())


def reads(job: Manifest, kind: str, name: str, mixes: Iterable[Manifest]) -> bool:
    """Whether the job reads the object of this kind and name in its namespace."""
    match kind:
        case "DataMix":
            return mix_name(job) == name
        case "ParallelismPolicy":
            return policy_name(job) == name
        case _:
            return name in source_names(job, mixes)


def named(objects: Collection[Manifest], names: Collection[str]) -> Collection[Manifest]:
    """Those of the names; all where one is missing: the refusal of the job says which there are."""
    found = [o for o in objects if o["metadata"]["name"] in names]
    return found if len(found) == len(names) else objects


def _name(reference: Manifest | None) -> str:
    return str((reference or {}).get("name", ""))
