"""Mix records: which weights, passes and phases are in force. Recorded, so a replay is exact."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from coxswain.config import MixConfig
from coxswain.membership.values import MixRecord


def record_of(mix: MixConfig, number: int) -> MixRecord:
    """What of the mix may change while a run goes on."""
    weights = {s.name: s.weight for s in mix.sources}
    return MixRecord(number, weights, {s.name: s.max_passes for s in mix.sources}, mix.phases)


def mix_under(mix: MixConfig, record: MixRecord) -> MixConfig:
    """The mix with a record's weights, passes and phases."""
    sources = tuple(
        replace(s, weight=record.weights[s.name], max_passes=record.max_passes[s.name]) for s in mix.sources
    )
    return replace(mix, sources=sources, phases=record.phases)


def without_record(mix: MixConfig) -> MixConfig:
    """The mix without what records hold: equal for all edits of one mix."""
    return replace(mix, sources=tuple(replace(s, weight=0, max_passes=0) for s in mix.sources), phases=())


def differences(before: MixRecord, after: MixRecord) -> str:
    """What has changed, for people; empty: nothing but perhaps the number."""
    changed = [
        *_changed("weight", before.weights, after.weights),
        *_changed("maxPasses", before.max_passes, after.max_passes),
    ]
    if before.phases != after.phases:
        changed.append(f"phases {len(before.phases)} -> {len(after.phases)}")
    return ", ".join(changed)


def _changed(field: str, before: Mapping[str, int], after: Mapping[str, int]) -> list[str]:
    return [
        f"{field} of {name} {before[name]} -> {after[name]}" for name in sorted(after) if before[name] != after[name]
    ]
