"""Many lives at once: most of a life is waiting for others, so a dozen of them take little longer than one."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from tests.integration.apiserver import ApiServer, Manifest
from tests.integration.audit import created
from tests.integration.lifecycle import Stage
from tests.integration.operator_parts import new_namespace

Living = Callable[[Stage], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a life ended, and what was created in it. `error`: what kept it from its end."""

    result: Manifest = field(default_factory=dict)
    created: Counter[str] = field(default_factory=Counter)
    error: Exception | None = None


async def all_lived(api: ApiServer, lives: Mapping[str, Living], at_once: int) -> dict[str, Outcome]:
    """The outcome of every life by its name. One that fails disturbs no other."""
    places = asyncio.Semaphore(at_once)
    outcomes = await asyncio.gather(*(_lived(api, living, places) for living in lives.values()))
    return dict(zip(lives, outcomes, strict=True))


async def _lived(api: ApiServer, living: Living, places: asyncio.Semaphore) -> Outcome:
    async with places:
        stage = Stage(api, new_namespace(api))
        try:
            await living(stage)
        except Exception as error:
            return Outcome(error=error)
    return Outcome(stage.result(), created(api, stage.namespace))
