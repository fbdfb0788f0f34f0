"""`python charts/plain.py [--set KEY=VALUE]...`: the chart as plain manifests on standard output,
for `kubectl apply --server-side`.

The namespace comes first, then what Helm would install; `helm test` stays behind. Options are those
of `helm template`.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
NAMESPACE = "coxswain-system"
KUBERNETES = "1.35.4"  # what the manifests are checked against; a Helm built from its module knows no version
HEAD = f"""# Made from charts/coxswain by `make manifests`. Apply it with `kubectl apply --server-side --filename FILE`.
apiVersion: v1
kind: Namespace
metadata:
  name: {NAMESPACE}
  labels:
    pod-security.kubernetes.io/enforce: restricted
"""


def helm() -> str:
    """Path of the pinned Helm, built on first use."""
    build = [sys.executable, "-m", "e2e.tools.build", "helm"]
    return subprocess.run(build, cwd=REPOSITORY, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()


def main(options: list[str]) -> int:
    chosen = ["--namespace", NAMESPACE, "--kube-version", KUBERNETES, "--no-hooks", *options]
    command = [helm(), "template", "coxswain", str(REPOSITORY / "charts" / "coxswain"), *chosen]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if done.returncode == 0:
        sys.stdout.write(HEAD + done.stdout)
    return done.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
