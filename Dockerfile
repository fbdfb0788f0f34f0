# One file, three images; each holds only its own packages and their dependencies.
#   docker build --target operator .    reconcile (no torch)
#   docker build --target data .        coordinator, loaders, constructors (neither torch nor kopf)
#   docker build --target train .       agent and workers
#
# BASE     any Debian-like image with Python >= 3.11 and its venv module
# WITHOUT  packages that the base or a mounted volume brings along, e.g. "torch": they and what only they need are left out
# A private package index and its certificates go in as build secrets: see Dockerfile.d/registry.sh.
ARG BASE=docker.io/library/python:3.12-slim-bookworm

# Resolves the pinned packages of each image; nothing of this stage but the lists ends in an image.
FROM ${BASE} AS resolve
WORKDIR /work
COPY pyproject.toml constraints.txt ./
COPY Dockerfile.d /opt/build
ARG WITHOUT=""
RUN --mount=type=secret,id=registry --mount=type=secret,id=certificates sh /opt/build/resolve.sh "${WITHOUT}"

# What all images run on: no build tools, no root, nothing that needs a writable root file system. State and temporary files
# go to a volume at /var/lib/coxswain; any user id works. Kubernetes probes ask after health (/healthz, /readyz).
FROM ${BASE} AS runtime
ARG VERSION=0.1.0
LABEL org.opencontainers.image.vendor="Coxswain" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}"
ENV PATH=/opt/coxswain/bin:$PATH HOME=/var/lib/coxswain USER=coxswain \
    PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 PYTHONSAFEPATH=1
WORKDIR /var/lib/coxswain

# Each image: its packages in one layer that changes only with their versions, our own code in a small one on top.
FROM runtime AS operator
LABEL org.opencontainers.image.title="coxswain-operator" \
      org.opencontainers.image.description="Reconciles TrainingJobs on Kubernetes"
COPY --from=resolve /requirements/operator.txt /opt/coxswain/requirements.txt
RUN --mount=type=bind,from=resolve,source=/opt/uv,target=/opt/uv \
    --mount=type=bind,from=resolve,source=/opt/build,target=/opt/build \
    --mount=type=secret,id=registry --mount=type=secret,id=certificates sh /opt/build/install.sh
COPY core/coxswain /opt/coxswain/app/coxswain
COPY operator/coxswain_operator /opt/coxswain/app/coxswain_operator
COPY runtime/coxswain_link /opt/coxswain/app/coxswain_link
RUN python -m compileall -q /opt/coxswain/app
USER 65532:65532
CMD ["python", "-m", "coxswain_operator"]

FROM runtime AS data
LABEL org.opencontainers.image.title="coxswain-data" \
      org.opencontainers.image.description="Coordinator, loaders and constructors of a TrainingJob"
COPY --from=resolve /requirements/data.txt /opt/coxswain/requirements.txt
RUN --mount=type=bind,from=resolve,source=/opt/uv,target=/opt/uv \
    --mount=type=bind,from=resolve,source=/opt/build,target=/opt/build \
    --mount=type=secret,id=registry --mount=type=secret,id=certificates sh /opt/build/install.sh
COPY core/coxswain /opt/coxswain/app/coxswain
COPY runtime/coxswain_link /opt/coxswain/app/coxswain_link
COPY runtime/coxswain_coordinator /opt/coxswain/app/coxswain_coordinator
COPY runtime/coxswain_data /opt/coxswain/app/coxswain_data
RUN python -m compileall -q /opt/coxswain/app
USER 65532:65532
CMD ["python", "-m", "coxswain_coordinator"]

FROM runtime AS train
LABEL org.opencontainers.image.title="coxswain-train" \
      org.opencontainers.image.description="Agent and workers of a TrainingJob"
COPY --from=resolve /requirements/train.txt /opt/coxswain/requirements.txt
RUN --mount=type=bind,from=resolve,source=/opt/uv,target=/opt/uv \
    --mount=type=bind,from=resolve,source=/opt/build,target=/opt/build \
    --mount=type=secret,id=registry --mount=type=secret,id=certificates sh /opt/build/install.sh
COPY core/coxswain /opt/coxswain/app/coxswain
COPY runtime/coxswain_link /opt/coxswain/app/coxswain_link
COPY runtime/coxswain_train /opt/coxswain/app/coxswain_train
RUN python -m compileall -q /opt/coxswain/app
USER 65532:65532
CMD ["python", "-m", "coxswain_train.agent"]
