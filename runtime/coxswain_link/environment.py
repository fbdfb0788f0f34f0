"""A service's environment (coxswain.names), read once, and the frame in which its main runs."""

from __future__ import annotations

import ctypes
import errno
import faulthandler
import logging
import os
import resource
import signal
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import NoReturn

import msgspec

from coxswain import names
from coxswain.config import JobConfig, load_job
from coxswain.errors import Refused, Retryable, Stale, text_of
from coxswain.exits import Exit
from coxswain.termination import fitting
from coxswain.wire import Fault, Finished

log = logging.getLogger(__name__)

_PR_SET_PDEATHSIG = 1
_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """The name of this process and where it finds the rest of its job."""

    name: str
    index: int
    coordinator_url: str
    job: JobConfig
    job_file: Path = Path()  # where `job` was read
    token: str = field(repr=False)
    pod_name: str
    pod_ip: str
    pod_uid: str
    node: str = ""  # of a trainer; empty: not known
    secrets_dir: Path | None = None
    run_dir: Path | None = None
    termination_log: Path | None = None
    recorded_step: int = 0  # of the last checkpoint that the job's status names
    config: str = ""  # name of the ConfigMap with `job`; pods of one attempt have the same

    @staticmethod
    def detect() -> Environment:
        """Reads the process environment. Raises Refused, naming every variable that is missing."""
        required = (names.ENV_NAME, names.ENV_COORDINATOR, names.ENV_JOB_DIR, names.ENV_TOKEN_DIR, names.ENV_POD_IP)
        missing = [v for v in required if not os.environ.get(v)]
        if missing:
            raise Refused(
                "EnvironmentIncomplete",
                f"not set: {', '.join(missing)}; services are started by the operator or `cox run`",
            )
        env = os.environ
        job_file = Path(env[names.ENV_JOB_DIR]) / "job.json"
        return Environment(
            name=env[names.ENV_NAME],
            index=int(env.get(names.ENV_INDEX, "0")),
            coordinator_url=env[names.ENV_COORDINATOR],
            job=load_job(job_file),
            job_file=job_file,
            token=(Path(env[names.ENV_TOKEN_DIR]) / "token").read_text().strip(),
            pod_name=env.get(names.ENV_POD_NAME, env[names.ENV_NAME]),
            pod_ip=env[names.ENV_POD_IP],
            pod_uid=env.get(names.ENV_POD_UID, ""),
            node=env.get(names.ENV_NODE, ""),
            secrets_dir=_path(names.ENV_SECRETS_DIR),
            run_dir=_path(names.ENV_RUN_DIR),
            termination_log=_path(names.ENV_TERMINATION_LOG),
            recorded_step=int(env.get(names.ENV_RECORDED_STEP, "0")),
            config=env.get(names.ENV_CONFIG, ""),
        )


def _path(variable: str) -> Path | None:
    value = os.environ.get(variable)
    return Path(value) if value else None


def end_with_parent() -> None:
    """Asks the kernel to kill this process when its parent ends.

    The signal follows the thread that spawned this process: parents spawn from their main thread.
    """
    parent = os.getppid()
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended in between
        os._exit(Exit.RETRYABLE)


def allow_open_files() -> None:
    """Raises this process's limit of open files to what it may be: many systems begin with 1,024."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def why_not(process: str, error: OSError) -> str:
    """What this process says of the error of a call that opens files."""
    return no_more_files(process) if error.errno == errno.EMFILE else str(error)


def no_more_files(process: str) -> str:
    """What this process says where it may open no more files."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return (
        f"{process} may open no more files (limit {limit}, `ulimit -n`): raise it for the container runtime of the node, or in "
        "the shell of `cox run`, or lower trainers.devicesPerTrainer"
    )


def write_fault(path: Path | None, fault: Fault) -> None:
    """Writes the fault where the kubelet (or the agent) reads it."""
    if path is not None:
        path.write_bytes(msgspec.json.encode(fitting(fault)))


class _Terminated(BaseException):
    """SIGTERM in the main thread. A BaseException, so that `except Exception` does not catch it."""


def _terminate(_: int, __: FrameType | None) -> NoReturn:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # clean up once
    raise _Terminated


def until_sigterm() -> AbstractContextManager[None]:
    """SIGTERM in the main thread ends what is within, and what follows still runs: the service has done its work."""
    return suppress(_Terminated)


def run_service(main: Callable[[Environment], int]) -> int:
    """Runs a service's main and turns its errors into exit codes and a termination message.

    SIGTERM runs `finally` blocks, then exits with 1: without a handler process 1 of a container
    ignores it. An event loop may set its own handler.
    """
    _set_up_logging()
    faulthandler.register(signal.SIGUSR1, all_threads=True)  # stacks on demand, for stalls
    end_with_parent()
    signal.signal(signal.SIGTERM, _terminate)
    termination_log = _path(names.ENV_TERMINATION_LOG)
    try:
        logging.getLogger().setLevel(_log_level())
        return int(main(Environment.detect()))
    except Refused as error:
        log.error("refused (%s): %s", error.reason, error.message)
        write_fault(termination_log, Fault(error.reason, error.message))
        return Exit.USER_FAULT
    except (Retryable, Stale) as error:
        log.error("%s: %s", error.reason, error)
        write_fault(termination_log, Fault(error.reason, str(error), retryable=True))
        return Exit.RETRYABLE
    except _Terminated:
        log.info("stopped by SIGTERM")
        return Exit.RETRYABLE
    except BaseException as error:  # code of the user's may raise any: where it calls sys.exit(), the job has not ended
        log.exception("unexpected error")
        write_fault(termination_log, Fault("Crashed", f"{type(error).__name__}: {text_of(error)}", retryable=True))
        return Exit.RETRYABLE


def end_as(finished: Finished, environment: Environment) -> int:
    """The exit code of a service whose job has ended.

    Every service writes the job's fault: the operator may see any of them end first.
    """
    if finished.exit_code in (Exit.USER_FAULT, Exit.RETRYABLE):
        fault = Fault(finished.reason, finished.message, retryable=finished.exit_code == Exit.RETRYABLE)
        write_fault(environment.termination_log, fault)
    return finished.exit_code


def leave(code: int) -> NoReturn:
    """Ends the process at once, without waiting for threads that wait for a peer or a store.

    Code of the user's may have closed or replaced what is flushed: that changes no exit code.
    """
    try:
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)


def _set_up_logging() -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    logging.getLogger("httpx").setLevel(logging.WARNING)
    logging.getLogger("aiohttp.access").setLevel(logging.WARNING)


def _log_level() -> str:
    said = os.environ.get(names.ENV_LOG_LEVEL) or "INFO"
    if said.upper() not in _LEVELS:
        raise Refused("EnvironmentInvalid", f"{names.ENV_LOG_LEVEL} is {said!r}; allowed are {', '.join(_LEVELS)}")
    return said.upper()
