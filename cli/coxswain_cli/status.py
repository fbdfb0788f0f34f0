"""`cox status`: shows what a job does, and why it waits."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from coxswain.errors import CoxswainError
from coxswain_cli.progress import amount, duration
from coxswain_cli.readers.choose import Context, Kubeconfig, Namespace, named, reader_of, refusals
from coxswain_cli.readers.folder import below_runs
from coxswain_cli.readers.values import Progress, Seen
from coxswain_cli.reporting.model import MixInForce
from coxswain_cli.workdir import RUNS, as_argument, condition

Manifest = dict[str, Any]

_ENDED = ("Succeeded", "Failed")


def status_command(
    job: Annotated[
        str,
        typer.Argument(
            metavar="[JOB]",
            callback=named,
            help="A work directory, a job below runs/, a checkpoint.uri, or a job of a cluster [every job there].",
        ),
    ] = "",
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object: job, pods, report. Without JOB: a list.")
    ] = False,
    kubeconfig: Kubeconfig = None,
    context: Context = "",
    namespace: Namespace = "",
) -> None:
    """Show what a job does, and why it waits; without JOB a line for every job."""
    with refusals("status"):
        if job:
            seen = reader_of(job, kubeconfig, context, namespace).look()
            typer.echo(json.dumps(msgspec.to_builtins(seen)) if as_json else "\n".join(describe(seen)))
            return
        found = list(_all(kubeconfig, context, namespace))
        if as_json:
            typer.echo(json.dumps(msgspec.to_builtins(found)))
        else:
            nowhere = "no jobs in this namespace" if kubeconfig or context or namespace else f"no jobs below {RUNS}/"
            typer.echo("\n".join(map(brief, found)) or nowhere)


def _all(kubeconfig: Path | None, context: str, namespace: str) -> Iterator[Seen]:
    """A work directory that cannot be read has its error as its state."""
    if kubeconfig or context or namespace:
        from coxswain_cli.readers.cluster import Place, jobs_of  # imports an HTTP client

        yield from jobs_of(Place(kubeconfig, context, namespace))
        return
    for reader in below_runs():
        try:
            yield reader.look()
        except (CoxswainError, OSError) as error:
            yield Seen({"metadata": {"name": reader.report_path.parent.name}}, f"cannot be read: {error}")


def brief(seen: Seen) -> str:
    """One line. A work directory of another name than its job's is what other commands want."""
    where = f" in {as_argument(Path(seen.workdir))}" if Path(seen.workdir).name not in ("", seen.name) else ""
    return f"{seen.name}{where}: {', '.join(filter(None, (seen.state, _done(seen.progress))))}"


def describe(seen: Seen) -> Iterator[str]:
    """Yields lines of text."""
    status = seen.job.get("status") or {}
    yield f"{seen.name}: {seen.state}"
    yield from (f"  {line}" for line in seen.explanation)
    if seen.progress is not None:
        yield f"  step        {_progress(seen.progress)}"
    if seen.report is not None:
        yield f"  waits for   {seen.report.waiting_for or 'nothing'}"
        if seen.report.slow and not status.get("stragglers"):
            yield f"  slow        {seen.report.slow}"
    yield from (f"  slow        {_slow(found)}" for found in status.get("stragglers") or ())
    if layout := status.get("layout"):
        yield f"  layout      {layout.get('summary', '')}, world generation {status.get('worldGeneration', 0)}"
    yield from _strategy(status)
    if checkpoint := status.get("lastCheckpoint"):
        yield from _checkpoint(checkpoint)
    yield from (f"  mix         {_mix(mix)}" for mix in seen.mixes)
    if restarts := status.get("restarts"):
        yield f"  restarts    {restarts.get('counted', 0)} counted, {restarts.get('ignored', 0)} ignored"
    for kind in ("Degraded", "Validated"):
        if (found := condition(seen.job, kind)).get("status") == ("True" if kind == "Degraded" else "False"):
            yield f"  {kind.lower():<11} {found['reason']}: {found.get('message', '')}"
    for pod in sorted(seen.pods, key=lambda p: p["metadata"]["name"]):
        yield f"  pod         {pod['metadata']['name']}: {_pod_state(pod, seen.running)}"


def _progress(progress: Progress) -> str:
    rates = []
    if progress.tokens_per_second is not None:
        rates.append(f"{amount(progress.tokens_per_second)} tokens/s")
    if progress.idle_fraction is not None:
        rates.append(f"idle {progress.idle_fraction:.1%}")
    if progress.eta_seconds is not None:
        rates.append(f"{duration(progress.eta_seconds)} left")
    return ", ".join([_done(progress).removeprefix("step "), *rates]) + (f" {progress.note}" if progress.note else "")


def _done(progress: Progress | None) -> str:
    """`step 3/40, loss 4.5678`."""
    if progress is None:
        return ""
    steps = f"/{progress.steps}" if progress.steps else ""
    loss = "" if progress.loss is None else f", loss {progress.loss:.4f}"
    return f"step {progress.step}{steps}{loss}"


def _strategy(status: Manifest) -> Iterator[str]:
    """What mode Auto has chosen, with the measured time of a step beside the predicted one, and what else there was."""
    if not (strategy := status.get("strategy")):
        return
    measured = (status.get("progress") or {}).get("stepSeconds")
    beside = f", {measured} s measured" if measured else ""
    yield f"  strategy    {strategy['layout']}: {strategy['predictedStepSeconds']} s a step predicted{beside}"
    for other in strategy.get("alternatives") or ():
        yield f"  or          {other['layout']}: {other['predictedStepSeconds']} s a step predicted"


def _slow(straggler: Manifest) -> str:
    """`trainer-2 (node-b) device 0: 2.00 times as long as planned since 2026-01-01T00:00:00Z (Device): rebalanced`."""
    where = (
        f"{straggler['trainer']}{f' ({node})' if (node := straggler.get('node')) else ''} device {straggler['device']}"
    )
    text = (
        f"{where}: {straggler['slowdown']} times as long as planned since {straggler['since']} ({straggler['cause']})"
    )
    return ": ".join(filter(None, (text, straggler.get("action"))))


def _checkpoint(checkpoint: Manifest) -> Iterator[str]:
    when = f", saved {checkpoint['time']}" if checkpoint.get("time") else ""
    yield f"  checkpoint  before step {checkpoint['step']}, {checkpoint.get('uri', '')}{when}"
    if kept := checkpoint.get("kept"):
        yield f"  kept        before step {', '.join(map(str, kept))}"
    if tokens := checkpoint.get("tokens"):
        yield f"  tokens      {amount(tokens)} before that checkpoint, stream digest {checkpoint['streamDigest']}"


def _mix(mix: MixInForce) -> str:
    """`from step 24: code 700, docs 300; from step 100: code 0, docs 1`."""
    phases = [
        (f"step {p.from_step}" if p.from_step >= 0 else f"token {p.from_tokens}", p.weights) for p in mix.record.phases
    ]
    parts = [(f"step {mix.first_step}", mix.record.weights), *phases]
    return "; ".join(f"from {start}: {', '.join(f'{n} {w}' for n, w in weights.items())}" for start, weights in parts)


def _pod_state(pod: Manifest, running: bool) -> str:
    """Returns the phase, and the containers that are not ready."""
    status = pod.get("status") or {}
    phase = status.get("phase", "Pending")
    if not running and phase not in _ENDED:
        return "gone, with its `cox run`"
    containers = [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]
    late = [_named(c) for c in containers if not c.get("ready")]
    why = f", not ready: {', '.join(late)}" if phase not in _ENDED and late else ""
    ended = [(c["name"], (c.get("state") or {}).get("terminated")) for c in containers]
    codes = [f"{name} {state.get('exitCode')}" for name, state in ended if state]
    ends = f" (exit codes: {', '.join(codes)})" if codes and phase in _ENDED else ""
    return f"{phase}{why}{ends} {status.get('message') or _unscheduled(status)}".rstrip()


def _named(container: Manifest) -> str:
    """With the reason for which it waits, such as ImagePullBackOff."""
    reason = ((container.get("state") or {}).get("waiting") or {}).get("reason")
    return f"{container['name']} ({reason})" if reason else str(container["name"])


def _unscheduled(status: Manifest) -> str:
    placed: Manifest = next((c for c in status.get("conditions") or () if c.get("type") == "PodScheduled"), {})
    return str(placed.get("message") or "") if placed.get("status") == "False" else ""
