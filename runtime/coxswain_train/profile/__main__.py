# ruff: noqa: A005  the command is `python -m coxswain_train.profile`
"""`python -m coxswain_train.profile`: measures this machine's devices for the cost model, in a minute.

Writes a hardware file.

    python -m coxswain_train.profile --job job.yaml --output profile.json
    torchrun --nproc-per-node 8 -m coxswain_train.profile --model llama-3-8b --layers 4 --tokens 8192

All ranks measure at the same time, since devices of one machine share power, memory and links. Without torchrun a CPU is
measured by two processes, so that rings have a peer; one GPU measures rings against itself, and keeps the bandwidths of
`--base`. Says how far predictions are from steps that were not fitted.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec
from msgspec.structs import replace

from coxswain.api.jobfiles import load_config
from coxswain.config import ModelConfig, TokenizerConfig
from coxswain.cost.constants import Hardware, load_hardware
from coxswain.cost.error import Error, error_of
from coxswain.cost.fit import Measured, Step, fitted, predicted
from coxswain.cost.memory import Recompute
from coxswain.errors import Refused
from coxswain.exits import INTERRUPTED
from coxswain.presets import PRESETS
from coxswain.structs import UNDECODABLE
from coxswain_link.environment import leave

CPU = "cpu"  # the name of a device that is no GPU
# Of a device's name, as a word: a GH200 is no H200.
_GPUS = {r"\bH200\b": "h200-141g", r"\bH100\b": "h100-80g", r"\bA100\b.*\b40GB\b": "a100-40g", r"\bA100\b": "a100-80g"}


@dataclass(frozen=True, slots=True)
class Subject:
    """What is profiled: a model as its job has it, and the most tokens of a task. `longest`: of its sequences; 0: any."""

    model: ModelConfig
    tokens: int
    recompute: Recompute = "None"
    longest: int = 0


def main(arguments: Sequence[str] | None = None) -> int:
    options = options_of(arguments)
    try:
        subject, name = subject_of(options), device_name(options.device)
        base = load_hardware(options.base or base_of(name))
        _check_output(options.output)
        with _peers(options.processes if name == CPU and "RANK" not in os.environ else 1):
            return profile(options, subject, name, base)
    except Refused as refused:
        if os.environ.get("RANK", "0") == "0":  # all ranks refuse the same
            sys.stderr.write(f"{refused.message}\n")
        return 2
    except KeyboardInterrupt:
        return INTERRUPTED


def options_of(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Ends the process with code 2 at arguments that say nothing."""
    return _parser().parse_args(arguments)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m coxswain_train.profile", description=__doc__.splitlines()[0])
    parser.add_argument("--job", type=Path, nargs="+", help="files of a job: its model, tokensPerReplica and recompute")
    parser.add_argument("--model", help="without --job: a preset, or a JSON file of a shape")
    parser.add_argument(
        "--vocabulary",
        type=_count,
        default=0,
        help="number of ids, where a tokenizer decides it and --job does not say which",
    )
    parser.add_argument("--layers", type=_count, default=0, help="measure so many of the model's layers; 0: all")
    parser.add_argument("--tokens", type=_count, default=0, help="most tokens of a task; default: the job's, or 4096")
    parser.add_argument("--recompute", choices=("None", "Selective", "Full"))
    parser.add_argument("--device", choices=("cpu", "cuda"))
    parser.add_argument("--processes", type=_positive, default=2, help="on CPU without torchrun")
    parser.add_argument("--base", help="hardware with what is not measured; default: by the device's name")
    parser.add_argument("--seconds", type=_seconds, default=60.0)
    parser.add_argument("--output", type=Path, help="hardware file; default: standard output")
    return parser


def _count(word: str, least: int = 0) -> int:
    if not word.isdecimal() or int(word) < least:
        raise argparse.ArgumentTypeError(f"{word!r}: allowed is a whole number of at least {least}")
    return int(word)


def _positive(word: str) -> int:
    return _count(word, 1)


def _seconds(word: str) -> float:
    try:
        found = float(word)
    except ValueError:
        found = 0.0
    if not 0 < found < float("inf"):
        raise argparse.ArgumentTypeError(f"{word!r}: allowed is a number above 0")
    return found


def subject_of(options: argparse.Namespace) -> Subject:
    """Raises Refused where options do not say what to measure."""
    longest = 0
    if options.job:
        job = load_config(options.job)
        model, tokens, recompute = job.model, job.parallelism.tokens_per_replica, job.parallelism.recompute
        longest = job.batch.max_sequence_tokens
    elif options.model:
        model, tokens, recompute = _model(options.model), 4096, "None"
    else:
        raise Refused("NoModel", "--model: give a preset or a JSON file, or the files of a job with --job")
    if not (model.vocabulary or options.vocabulary):
        model = replace(model, vocabulary=_rows_of(options.job and job.mix.sources[0].tokenizer))
    return Subject(model, options.tokens or tokens, options.recompute or recompute, longest)


def _rows_of(tokenizer: TokenizerConfig | None) -> int:
    """Rows of an embedding that follows the job's tokenizer. Raises Refused where that is not known."""
    why = ""
    if tokenizer:
        from coxswain_train.checkpoint.pretrained import ROUNDING
        from coxswain_train.checkpoint.tokenizer_out import count_ids

        try:
            return -(-count_ids(tokenizer) // ROUNDING) * ROUNDING
        except Refused as error:
            why = f", and {error.message.partition(';')[0]}"
    raise Refused("NoVocabulary", f"--vocabulary: the tokenizer decides this model's{why}; give its number of ids")


def _model(name_or_path: str) -> ModelConfig:
    presets = {str(name): shape for name, shape in PRESETS.items()}
    if name_or_path in presets:
        return presets[name_or_path]
    try:
        model = msgspec.json.decode(Path(name_or_path).read_bytes(), type=ModelConfig)
    except (OSError, *UNDECODABLE) as error:
        known = ", ".join(presets)
        raise Refused(
            "UnknownModel", f"--model {name_or_path!r}: {error}; use one of {known}, or a JSON file"
        ) from None
    if fault := _shape_fault(model):
        raise Refused("BadModel", f"--model {name_or_path!r}: {fault}")
    return model


def _shape_fault(model: ModelConfig) -> str:
    """As the API has it of `model.config`; empty: nothing."""
    for name in ("layers", "hidden", "heads", "kv_heads", "feed_forward"):
        if (value := getattr(model, name)) < 1:
            return f"{name} is {value}; it must be at least 1"
    if model.heads % model.kv_heads:
        return f"heads is {model.heads}; it must be a multiple of kv_heads {model.kv_heads}"
    if model.head_size < 0 or model.head_size % 2:
        return f"head_size is {model.head_size}; it must be even, or 0: hidden / heads"
    if model.custom is None and not model.head_size and model.hidden % (2 * model.heads):
        return f"hidden is {model.hidden}; it must be an even multiple of heads {model.heads}, or give head_size"
    return "" if model.vocabulary >= 0 else f"vocabulary is {model.vocabulary}; it must be at least 0: --vocabulary"


def device_name(wanted: str | None) -> str:
    """Of the device that this rank measures. Raises Refused where the machine has none of the kind that is `wanted`."""
    import torch

    has_gpu = torch.cuda.is_available()
    if wanted == "cuda" and not has_gpu:
        raise Refused("NoDevice", "--device cuda: this machine has no CUDA device; use --device cpu")
    on_gpu = has_gpu and wanted != "cpu"
    return torch.cuda.get_device_name(int(os.environ.get("LOCAL_RANK", "0"))) if on_gpu else CPU


def _check_output(output: Path | None) -> None:
    if output is not None and (output.is_dir() or not output.absolute().parent.is_dir()):
        raise Refused("NoOutput", f"--output {str(output)!r}: give a file in a folder that exists")
    if output is not None and not os.access(output if output.exists() else output.absolute().parent, os.W_OK):
        raise Refused("NoOutput", f"--output {str(output)!r} cannot be written; give a file that can be")


@contextmanager
def _peers(processes: int) -> Iterator[None]:
    """Starts the other ranks of this machine as processes with this one's arguments, and ends with them."""
    if processes == 1:
        yield
        return
    from coxswain_train.parallel.process_groups import listen

    store = listen("127.0.0.1", processes)
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port), "WORLD_SIZE": str(processes)}
    command = [sys.executable, "-m", "coxswain_train.profile", *sys.argv[1:]]
    others = [
        subprocess.Popen(command, env={**os.environ, **place, "RANK": str(rank)}, stdout=subprocess.DEVNULL)
        for rank in range(1, processes)
    ]
    os.environ.update(place, RANK="0", TORCHELASTIC_USE_AGENT_STORE="True")  # the store is there already
    try:
        yield
    finally:
        for other in others:
            if sys.exc_info()[0]:
                other.kill()
            other.wait()


def profile(options: argparse.Namespace, subject: Subject, name: str, base: Hardware) -> int:
    """Measures with all ranks; the first one writes the hardware file. Returns the exit code."""
    import torch
    from torch._C._distributed_c10d import HashStore
    from torch.distributed.rendezvous import rendezvous

    from coxswain_train.engine.memory import MemoryPolicy
    from coxswain_train.parallel.process_groups import ProcessGroups, leave_world
    from coxswain_train.profile.machine import RankMachine
    from coxswain_train.profile.measure import measure

    rank, ranks = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    on_gpu = name != CPU
    place = torch.device(f"cuda:{os.environ.get('LOCAL_RANK', 0)}" if on_gpu else "cpu")
    if on_gpu:
        torch.cuda.set_device(place)
    else:
        torch.set_num_threads(1)  # as workers do
    store = next(rendezvous("env://"))[0] if ranks > 1 else HashStore()
    model = _sized(subject.model, options)
    dtype = torch.bfloat16 if on_gpu else torch.float32
    machine = RankMachine(
        ProcessGroups(store, rank, ranks, place),
        model,
        place,
        dtype,
        MemoryPolicy(subject.recompute),
        subject.longest,
    )
    measured, held_out = measure(
        machine, model, machine.parameters, subject.tokens, options.seconds, recompute=subject.recompute
    )
    leave_world()
    if rank:
        return 0
    across = None if not on_gpu else int(os.environ.get("LOCAL_WORLD_SIZE", str(ranks))) < ranks
    hardware, error = fitted_hardware(measured, held_out, base, subject, name, across)
    write(options.output, hardware)
    sys.stderr.write(f"{said(error)}\n")
    return 0


def fitted_hardware(
    measured: Measured, held_out: Sequence[Step], base: Hardware, subject: Subject, name: str, across: bool | None
) -> tuple[Hardware, Error]:
    """The hardware file of device `name`, and how far its predictions are off. `across`: as of `fitted`.

    What a task takes is that of the whole model: fewer layers may have been measured.
    """
    rates = fitted(measured, base.rates, across)
    error = error_of((predicted(step, rates, measured, not across), step.seconds) for step in held_out)
    rates = replace(rates, task_ms=rates.task_ms * subject.model.layers / measured.model.layers)
    return replace(base, rates=rates, models={}, note=_note(name, measured.replicas, subject, error)), error


def _sized(model: ModelConfig, options: argparse.Namespace) -> ModelConfig:
    """The model that is measured."""
    layers = min(options.layers or model.layers, model.layers)
    return replace(model, layers=layers, vocabulary=model.vocabulary or options.vocabulary, init_from="")


def base_of(name: str) -> str:
    """The shipped hardware of a device."""
    if name == CPU:
        return CPU
    found = next((shipped for pattern, shipped in _GPUS.items() if re.search(pattern, name)), "")
    if not found:
        raise Refused("UnknownDevice", f"device {name!r}: not known; name the hardware that is most like it by --base")
    return found


def said(error: Error) -> str:
    return f"predicted beside measured seconds of {error.count} other steps: off by {error.p50:.1%} (p50), {error.p95:.1%} (p95)"


def _note(name: str, ranks: int, subject: Subject, error: Error) -> str:
    return (
        f"Measured on {name} by python -m coxswain_train.profile: {subject.model.preset or 'a model'} of {subject.model.layers} "
        f"layers, hidden {subject.model.hidden}, {ranks} devices at a time, tasks of at most {subject.tokens} tokens, recompute "
        f"{subject.recompute}. {said(error).capitalize()}."
    )


def write(output: Path | None, hardware: Hardware) -> None:
    """Raises Refused where the file cannot be written."""
    content = msgspec.json.format(msgspec.json.encode(hardware), indent=2) + b"\n"
    if output is None:
        sys.stdout.buffer.write(content)
        return
    try:
        output.write_bytes(content)
    except OSError as error:
        way_out = "give a file that can be written"
        raise Refused("NoOutput", f"--output {str(output)!r}: {error.strerror}; {way_out}") from error


if __name__ == "__main__":
    leave(main())  # gloo's threads may still wait for a store
