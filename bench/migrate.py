"""A change of layout in running workers: its pause, and what moves, beside what a restart from a checkpoint takes.

Real processes and gloo on this machine. Ranks train a decoder, take over each other's state in another layout, and train on.
The restart of the same state is what a job did without living state: save, end the processes, start them, import torch, join,
load, spread the weights. Both sides are those of workers alone. `--whole` measures both as users see them: `cox run` with
coordinator, agents and loaders goes from one trainer to two by `cox scale`, then is stopped, which saves, and started again at
once; each pause is from the end of the last step to the end of the next one, less a step.

`python -m bench.migrate [--hidden 512] [--layers 6] [--rounds 3] [--whole] [--output FILE]`.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import torch

from bench.recovery import ends
from coxswain.config import ModelConfig
from coxswain.copies import wards_of
from coxswain.holdings import all_holdings
from coxswain.layout import Layout
from coxswain.live import Holder, LiveSource
from coxswain.models import parameter_specs
from coxswain.shards import shards
from coxswain.transfers import held_boxes, least_bytes
from coxswain.wire import Shard
from coxswain_link.environment import leave
from coxswain_link.store import open_store
from coxswain_train.agent.devices import fork_server_environment
from coxswain_train.checkpoint import save_load, snapshots
from coxswain_train.engine.engine import Engine
from coxswain_train.live.state import LiveState
from coxswain_train.parallel.process_groups import ProcessGroups, join, leave_world, listen
from tests.distributed import training
from tests.distributed.plans import random_plan
from tests.distributed.reference import Stream
from tests.distributed.worlds import numbered
from tests.layouts import layout_of
from tests.local.jobs import Run, wait_until, write_corpus
from tests.local.test_run_sizes import living_job, scale, stop

STREAM = Stream(lengths=(64, 64, 64, 64), vocabulary=training.VOCABULARY)
CPU, HOST = torch.device("cpu"), "127.0.0.1"
DEADLINE = 300.0


@dataclass(frozen=True)
class Change:
    """From one layout to another. `lost`: the process of this rank ends first, and copies stand in for it."""

    name: str
    before: Layout
    after: Layout
    lost: int | None = None


def changes(layers: int) -> list[Change]:
    half, whole = layers // 2, [(1, layers)]
    stages = [(1, half), (1, layers)]
    return [
        Change(
            "a layer to the next stage", numbered(layout_of(stages)), numbered(layout_of([(1, half - 1), (1, layers)]))
        ),
        Change("tensor 1 to 2", numbered(layout_of(whole, whole)), numbered(layout_of([(2, layers)]))),
        Change("2 replicas to 3", numbered(layout_of(whole, whole)), numbered(layout_of(whole, whole, whole))),
        Change("a rank of 3 lost", numbered(layout_of(whole, whole, whole)), numbered(layout_of(whole, whole)), lost=2),
    ]


@dataclass(frozen=True)
class Result:
    """Seconds of the slowest rank, medians of the rounds. `pause`: until all ranks are ready for their next step."""

    change: str
    parameters: int
    step: float
    pause: float  # leaving the world, joining the next one, the engine, the change
    join: float
    restart: float
    state_bytes: int
    weight_bytes: int
    least_bytes: int
    gib_per_second: float  # of all ranks, in the change alone; beside `link`
    link: float  # as many bytes in one message between two ranks
    phases: dict[str, float]  # of the pause: seconds, means over ranks, medians of the rounds
    pause_processor: (
        float  # seconds of the processor of all ranks together: other load on the machine changes them little
    )
    restart_processor: float

    @property
    def lines(self) -> str:
        moved = self.state_bytes + self.weight_bytes
        return (
            f"{self.change}: pause {self.pause:.3f} s = {self.pause / self.step:.2f} steps, {moved / 1e6:.1f} MB moved, "
            f"{moved / max(1, self.least_bytes):.3f} x the least, {self.gib_per_second:.2f} GiB/s "
            f"({self.gib_per_second / self.link:.0%} of a bare exchange), "
            f"restart {self.restart:.2f} s = {self.restart / self.pause:.0f} x, "
            f"of the processor {self.pause_processor:.2f} and {self.restart_processor:.2f} s\n    "
            + ", ".join(f"{name} {seconds * 1000:.0f} ms" for name, seconds in self.phases.items())
        )


def engine_of(
    world: ProcessGroups, model: ModelConfig, layout: Layout, live: LiveState, generation: int, copies: bool
) -> Engine:
    wards = wards_of(layout.ranks()) if copies else ()
    return training.engine_of(
        world, torch.float32, model, layout=layout, live=live, generation=generation, wards=wards
    )  # fmt: skip


def train(engine: Engine, layout: Layout, steps: range) -> list[float]:
    seconds = []
    for step in steps:
        plan = random_plan(STREAM.lengths, len(layout.replicas), step, rings=0.0, layout=layout)
        work = training.work_of(STREAM, step, plan, engine.seat.replica, engine.seat.stage)
        began = time.perf_counter()
        engine.step(work, began)
        seconds.append(time.perf_counter() - began)
    return seconds


def run_rank(ports: tuple[int, int], rank: int, change: Change, model: ModelConfig) -> dict[str, Any] | None:
    """One process: three steps, the change, a step."""
    torch.set_num_threads(1)
    live, copies, before = LiveState(), change.lost is not None, len(change.before.ranks())
    seconds: list[float] = []
    if rank < before:
        world = joined_world(ports[0], rank, before)
        engine = engine_of(world, model, change.before, live, 0, copies)
        engine.initialise(1)
        seconds = train(engine, change.before, range(3))
        world.barrier()
    began, spent = time.perf_counter(), time.process_time()
    if rank < before:
        del engine
        leave_world()
    if rank == change.lost:
        return None
    left, after = time.perf_counter(), len(change.after.ranks())
    world = joined_world(ports[1], rank, after)
    joined = time.perf_counter()
    engine = engine_of(world, model, change.after, live, 1, copies)
    built = time.perf_counter()
    engine.take_over(source_of(change))
    taken = time.perf_counter()
    world.barrier()
    ready, spent, moved = time.perf_counter(), time.process_time() - spent, engine.moved
    phases = {
        "leave": left - began,
        "groups": joined - left,
        "engine": built - joined,
        **moved.seconds,
        "others": ready - taken,
    }
    link = bandwidth(world, max(1, moved.state_bytes + moved.weight_bytes))
    train(engine, change.after, range(3, 4))
    leave_world()
    return {
        "step": statistics.median(seconds[1:]) if seconds else 0.0,
        "pause": ready - began if seconds else 0.0, "join": joined - left if seconds else 0.0,  # a new rank waits long
        "processor": spent, "moved": asdict(moved), "link": link, "phases": phases if seconds else {},
    }  # fmt: skip


def joined_world(port: int, rank: int, ranks: int) -> ProcessGroups:
    return ProcessGroups(join(HOST, port, ranks), rank, ranks, CPU)


def source_of(change: Change) -> LiveSource:
    ranks = range(len(change.before.ranks()))
    wards = wards_of(change.before.ranks()) if change.lost is not None else ()
    own = [Holder(rank, rank) for rank in ranks if rank != change.lost]
    copies = [Holder(wards[rank], rank, copy=True) for rank in ranks if wards and rank != change.lost]
    return LiveSource(0, change.before, 3, (*own, *copies))


def bandwidth(world: ProcessGroups, size: int) -> float:
    """GiB a second of one message of so many bytes from rank 0 to rank 1."""
    if world.ranks < 2:
        return 0.0
    buffer = torch.zeros(size, dtype=torch.uint8)
    exchange = world.exchange(tuple(range(world.ranks)))
    world.barrier()
    began = time.perf_counter()
    sends = [(1, buffer)] if world.rank == 0 else []
    receives = [(0, buffer)] if world.rank == 1 else []
    exchange.start(sends, receives).wait()
    world.barrier()
    return size / 2**30 / (time.perf_counter() - began)


def least_of(change: Change, model: ModelConfig, copies: bool) -> int:
    """Bytes that ranks lack, of state and of weights, with what each holds where it is."""
    specs = parameter_specs(model, training.VOCABULARY)
    names = [spec.name for spec in specs]
    held = [list(all_holdings(specs, layout, model.layers)) for layout in (change.before, change.after)]
    old, new = (shards(each) for each in held)
    have = old.table(names).on((h.rank, h.former) for h in source_of(change).holders)
    wards = wards_of(change.after.ranks()) if copies else ()
    need = new.table(names).on([*((rank, rank) for rank in range(new.owners)), *enumerate(wards)])
    living = [rank for rank in range(old.owners) if rank != change.lost]
    weights = least_bytes(
        held_boxes(names, living, [held[0][rank] for rank in living]), held_boxes(names, range(new.owners), held[1]), 4
    )
    return least_bytes(have, need, 12) + weights


def on_ranks(target: Any, ranks: range, *args: Any) -> list[Any]:
    """Results of processes that have imported torch already."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "torch.fx.experimental.symbolic_shapes", "tests.distributed.worlds"])
    results: Any = context.SimpleQueue()
    started = [context.Process(target=_put, args=(results, target, rank, *args)) for rank in ranks]
    for process in started:
        process.start()
    found = dict(results.get() for _ in ranks)
    for process in started:
        process.join()
    return [found[rank] for rank in ranks]


def _put(results: Any, target: Any, rank: int, *args: Any) -> None:
    """Ends as a killed process does: one that takes its modules apart would take a processor from the others meanwhile."""
    results.put((rank, target(rank, *args)))
    os._exit(0)


def _run(rank: int, ports: tuple[int, int], change: Change, model: ModelConfig) -> dict[str, Any] | None:
    return run_rank(ports, rank, change, model)


def restart_seconds(change: Change, model: ModelConfig) -> tuple[float, float]:
    """From the step boundary: saved by the ranks of the first layout, loaded by new processes in the second. Seconds, and seconds
    of the processor."""
    with tempfile.TemporaryDirectory() as folder:
        before, ranks = len(change.before.ranks()), len(change.after.ranks())
        stores = [listen(HOST, each) for each in (before, ranks)]
        saved = on_ranks(_save, range(before), folder, stores[0].port, change, model)
        listed = msgspec.json.encode([shard for each, _, _ in saved for shard in each])
        (Path(folder) / "shards.json").write_bytes(listed)
        began, spent = time.perf_counter(), _children_seconds()
        number = [c.name for c in changes(model.layers)].index(change.name)
        options = json.dumps([stores[1].port, model.layers, model.hidden, number])
        started = [
            subprocess.Popen([sys.executable, "-m", "bench.migrate", "--load", folder, str(rank), options])
            for rank in range(ranks)
        ]
        if any(process.wait(300) for process in started):
            raise RuntimeError("a restarted rank failed")
        seconds, spent = time.perf_counter() - began, _children_seconds() - spent
        return max(each for _, each, _ in saved) + seconds, sum(each for _, _, each in saved) + spent


def _children_seconds() -> float:
    """Of the processor, of processes that this one has waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _save(
    rank: int, folder: str, port: int, change: Change, model: ModelConfig
) -> tuple[tuple[Shard, ...], float, float]:
    torch.set_num_threads(1)
    world = joined_world(port, rank, len(change.before.ranks()))
    engine = engine_of(world, model, change.before, LiveState(), 0, copies=False)
    engine.initialise(1)
    train(engine, change.before, range(1))
    world.barrier()
    began, spent = time.perf_counter(), time.process_time()
    found = tuple(
        save_load.write_shards(open_store(f"file://{folder}/store", create=True), snapshots.snapshot(engine.boxes()))
    )
    world.barrier()
    seconds, spent = time.perf_counter() - began, time.process_time() - spent
    leave_world()
    return found, seconds, spent


def load(folder: str, rank: int, port: int, layers: int, hidden: int, number: int) -> None:
    """A new process: joins, loads, spreads the weights."""
    torch.set_num_threads(1)
    change, model = changes(layers)[number], model_of(layers, hidden)
    world = joined_world(port, rank, len(change.after.ranks()))
    engine = engine_of(world, model, change.after, LiveState(), 1, copies=change.lost is not None)
    listed = msgspec.json.decode((Path(folder) / "shards.json").read_bytes(), type=tuple[Shard, ...])
    save_load.load(open_store(f"file://{folder}/store"), listed, engine.make_room())
    engine.begin(3)
    world.barrier()
    leave_world()


def model_of(layers: int, hidden: int) -> ModelConfig:
    return ModelConfig(layers=layers, hidden=hidden, heads=8, kv_heads=4, feed_forward=hidden * 3)


def measure(change: Change, model: ModelConfig, rounds: int) -> Result:
    found = []
    for _ in range(rounds):
        sizes = [len(layout.ranks()) for layout in (change.before, change.after)]
        stores = [listen(HOST, size) for size in sizes]
        outcomes = on_ranks(_run, range(max(sizes)), tuple(store.port for store in stores), change, model)
        found.append([each for each in outcomes if each])

    def median(name: str) -> float:
        return statistics.median(max(each[name] for each in ranks) for ranks in found)

    moved = found[0][0]["moved"]
    size, rest = moved["state_bytes"] + moved["weight_bytes"], median("pause") - median("join")
    restart, restarting = map(
        statistics.median, zip(*(restart_seconds(change, model) for _ in range(rounds)), strict=True)
    )
    parameters = sum(torch.Size(spec.shape).numel() for spec in parameter_specs(model, training.VOCABULARY))
    return Result(
        change.name, parameters, median("step"), median("pause"), median("join"), restart, moved["state_bytes"],
        moved["weight_bytes"], least_of(change, model, change.lost is not None), size / 2**30 / rest, median("link"),
        phases_of(found), statistics.median(sum(each["processor"] for each in ranks) for ranks in found), restarting,
    )  # fmt: skip


def phases_of(rounds: Sequence[Sequence[dict[str, Any]]]) -> dict[str, float]:
    """Means over the ranks that were there before, medians of the rounds."""
    found = [[each["phases"] for each in ranks if each["phases"]] for ranks in rounds]
    return {
        name: statistics.median(statistics.fmean(each[name] for each in ranks) for ranks in found)
        for name in found[0][0]
    }


# --- as users see it --------------------------------------------------------------------------------------------------

STEPS = 6  # in each world


def whole(model: ModelConfig) -> dict[str, float]:
    """Seconds of a change of the size, of a restart by hand, and of a step in the second world."""
    with tempfile.TemporaryDirectory() as name:
        folder, config = Path(name), {field: getattr(model, field) for field in ("layers", "hidden", "heads")}
        config |= {"kvHeads": model.kv_heads, "feedForward": model.feed_forward, "vocabulary": 320}
        write_corpus(folder / "corpus")
        run = living_job(f"file://{folder}/corpus", folder, 1, model={"config": config})
        cox = run.start()
        trained(run, cox, 0.0)
        scale(run, 2)
        wait_until(lambda: any(world == 2 for _, _, world in ends(run)), "the second world", DEADLINE)
        trained(run, cox, max(end for end, _, world in ends(run) if world == 2))
        before = ends(run)
        stop(run, cox)
        stopped = max(end for end, _, _ in ends(run))
        cox = run.start()
        trained(run, cox, stopped)
        stop(run, cox)
        usual = statistics.median(b - a for (a, _, one), (b, _, two) in pairwise(before) if one == two == 2)
        change = max(b - a for (a, _, one), (b, _, two) in pairwise(before) if one != two)
        again = min(end for end, _, _ in ends(run) if end > stopped) - stopped
        return {"step": usual, "pause": change - usual, "restart": again - usual}


def trained(run: Run, cox: subprocess.Popen[str], after: float) -> None:
    """Waits for STEPS steps that ended after a unix time."""

    def done() -> bool:
        assert cox.poll() is None, (run.finish(cox), run.output)
        return sum(end > after for end, _, _ in ends(run)) >= STEPS

    wait_until(done, f"{STEPS} steps", DEADLINE)


def whole_line(found: dict[str, float]) -> str:
    pause, restart = found["pause"], found["restart"]
    return (
        f"as users see it, 1 trainer to 2: pause {pause:.2f} s = {pause / found['step']:.2f} steps, restart {restart:.2f} s "
        f"= {restart / pause:.0f} x"
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--load", nargs=3)
    parser.add_argument("--whole", action="store_true")
    options = parser.parse_args()
    os.environ.update(fork_server_environment(os.environ, ()))  # as workers have it
    if options.load:
        folder, rank, rest = options.load
        load(folder, int(rank), *json.loads(rest))
        leave(0)  # as workers do: threads of a group may still wait
    model, results = model_of(options.layers, options.hidden), []
    if options.whole:
        print(whole_line(whole(model)))
        return
    for change in changes(options.layers):
        results.append(measure(change, model, options.rounds))
        print(results[-1].lines, flush=True)
    if options.output:
        options.output.write_text(json.dumps([asdict(each) for each in results], indent=1) + "\n")


if __name__ == "__main__":
    main()
