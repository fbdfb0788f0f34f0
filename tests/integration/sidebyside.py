"""Runs many lifecycles at once: each mostly waits, so a dozen take little longer than one."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from tests.integration.apiserver import ApiServer, Manifest
from tests.integration.audit import created
from tests.integration.lifecycle import Stage
from tests.integration.operator_parts import new_namespace

Lifecycle = Callable[[Stage], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a lifecycle and the objects created in it. `error`: the failure that ended it."""

    result: Manifest = field(default_factory=dict)
    created: Counter[str] = field(default_factory=Counter)
    error: Exception | None = None


async def all_lived(api: ApiServer, lifecycles: Mapping[str, Lifecycle], at_once: int) -> dict[str, Outcome]:
    """The outcome of every lifecycle by its name. One that fails does not affect the others."""
    places = asyncio.Semaphore(at_once)
    outcomes = await asyncio.gather(*(_lived(api, lifecycle, places) for lifecycle in lifecycles.values()))
    return dict(zip(lifecycles, outcomes, strict=True))


async def _lived(api: ApiServer, lifecycle: Lifecycle, places: asyncio.Semaphore) -> Outcome:
    async with places:
        stage = Stage(api, new_namespace(api))
        try:
            await lifecycle(stage)
        except Exception as error:
            return Outcome(error=error)
    return Outcome(stage.result(), created(api, stage.namespace))
