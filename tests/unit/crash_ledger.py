"""Checks each answer of a simulated coordinator: directives agree, a stop stops, repeated and stale messages change nothing."""

from __future__ import annotations

from typing import Any

import msgspec
from aiohttp import web

from coxswain import wire
from coxswain_coordinator.state.job_state import JobState
from tests.unit.crash_simulation import Call, Incarnation

MESSAGES = ("/v1/saved", "/v1/reports", "/v1/served", "/v1/exits", "/v1/rendezvous")
STOP, STEPS = "/v1/stop", "/v1/steps"
REFUSED, TAKEN = (409, 410), (200, 204)


def facts(state: JobState) -> Any:
    """What a message may change, but for signs of life."""
    session = state.session
    job = (state.generation, state.stop, state.finished, state.failures, state.worlds_lost)
    if session is None:
        return job
    book, pending = session.book, session.pending
    world = (session.lost, session.stop_at, session.move, session.ending, session.begun, session.rendezvous)
    return (
        job,
        world,
        dict(session.exited),
        msgspec.msgpack.encode((book.open, book.reports, book.delivered, pending.saved)),
    )


def generation_of(call: Call) -> int | None:
    """The world that a message is of."""
    body = msgspec.json.decode(call.content or b"null")
    found = body.get("generation") if isinstance(body, dict) else None
    return found if isinstance(found, int) else None


def _begun_before(life: Incarnation) -> int:
    """The first step that has not begun in the world of an earlier coordinator. The world behind it goes as far."""
    session = life.run.session
    return session.begun + 1 if session is not None and session.adopted else 0


class Ledger:
    """Of all coordinators of a run, with what is wrong in their answers."""

    def __init__(self) -> None:
        self.wrong: list[str] = []
        # The first step that has not begun when a stop arrives, as far as is known.
        self.stopped: dict[Incarnation, int] = {}
        self._begun: dict[Incarnation, int] = {}  # the first step that has not begun
        self._directives: dict[tuple[Incarnation, int, int], tuple[str, bytes]] = {}
        self._heard: dict[str, Call] = {}  # the latest message by sender and path

    def hear(self, life: Incarnation, caller: str, call: Call, answer: web.Response) -> None:
        """Hears an answer before anything else happens in that coordinator."""
        path, taken = call.route[1], answer.status in TAKEN
        if path == STEPS and answer.status == 200:
            self._agree(life, caller, call, answer)
        if path == STOP and taken:
            self.stopped.setdefault(life, self._begun.get(life, 0))
        if life in self.stopped:  # a stop may arrive before the world of the earlier coordinator is adopted
            self.stopped[life] = max(self.stopped[life], _begun_before(life))
        if path in (*MESSAGES, STOP) and call.route[0] == "POST" and taken:
            self._repeat(life, caller, call, answer.status)
            self._send_stale(life)
            self._heard[f"{caller} {path}"] = call

    def _agree(self, life: Incarnation, caller: str, call: Call, answer: web.Response) -> None:
        assert isinstance(answer.body, bytes)
        directive = msgspec.json.decode(answer.body, type=wire.StepDirective)
        if not directive.end and directive.plan is None:
            return  # the rank may continue alone
        where = life, int(call.headers[wire.GENERATION_HEADER]), directive.step
        first, body = self._directives.setdefault(where, (caller, answer.body))
        if body != answer.body:
            self.wrong.append(f"{where[1:]}: {first} got {body[:80]!r}, {caller} got {answer.body[:80]!r}")
        if directive.plan is not None:
            self._begin(life, directive.step)

    def _begin(self, life: Incarnation, step: int) -> None:
        session = life.run.session
        adopted = session is not None and session.adopted
        if life in self.stopped and step >= self.stopped[life] and not adopted:
            self.wrong.append(f"step {step} begins behind a stop before step {self.stopped[life]}")
        self._begun[life] = max(self._begun.get(life, 0), step + 1)

    def _repeat(self, life: Incarnation, caller: str, call: Call, status: int) -> None:
        before = facts(life.run)
        again = life.answer_now(call)
        if facts(life.run) != before:
            self.wrong.append(f"{caller} {call.route[1]} {call.content[:80]!r} changes something when it is repeated")
        if again != status and not (again in REFUSED and facts(life.run) == before and self._is_over(life, call)):
            self.wrong.append(f"{caller} {call.route[1]} is answered {status}, then {again}")

    def _is_over(self, life: Incarnation, call: Call) -> bool:
        found = generation_of(call)
        return life.run.finished is not None or (found is not None and found < life.run.generation)

    def _send_stale(self, life: Incarnation) -> None:
        """Sends what was heard in earlier worlds once more."""
        for name, call in list(self._heard.items()):
            if (found := generation_of(call)) is None or found >= life.run.generation or life.run.finished is not None:
                continue
            del self._heard[name]
            before, status = facts(life.run), life.answer_now(call)
            if facts(life.run) != before:
                self.wrong.append(f"{name} of generation {found} changes generation {life.run.generation}")
            if status not in REFUSED and "exits" not in name:
                self.wrong.append(f"{name} of generation {found} is answered {status} in {life.run.generation}")
