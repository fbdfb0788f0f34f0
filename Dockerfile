# One file, three images; each holds only its own packages and their dependencies.
#   docker build --target operator .    reconcile (no torch)
#   docker build --target data .        coordinator, loaders, constructors (neither torch nor kopf)
#   docker build --target train .       agent and workers
# BASE is any Debian-like image with Python >= 3.11 and its venv module.
ARG BASE=python:3.12-slim

FROM ${BASE} AS build
RUN python3 -m venv /opt/coxswain
ENV PATH=/opt/coxswain/bin:$PATH PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
WORKDIR /src
COPY pyproject.toml constraints.txt README.md ./
COPY core core

FROM build AS build-operator
COPY operator operator
COPY runtime/coxswain_link runtime/coxswain_link
RUN pip install --constraint constraints.txt '.[operator]' && pip uninstall --yes pip

FROM build AS build-data
COPY runtime/coxswain_link runtime/coxswain_link
COPY runtime/coxswain_coordinator runtime/coxswain_coordinator
COPY runtime/coxswain_data runtime/coxswain_data
RUN pip install --constraint constraints.txt '.[data]' && pip uninstall --yes pip

FROM build AS build-train
COPY runtime/coxswain_link runtime/coxswain_link
COPY runtime/coxswain_train runtime/coxswain_train
RUN pip install --constraint constraints.txt '.[train]' && pip uninstall --yes pip

# What runs: no build tools, no root, nothing that needs a writable root file system.
FROM ${BASE} AS runtime
ENV PATH=/opt/coxswain/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
USER 65532:65532

FROM runtime AS operator
# The folder `operator/` must never be mistaken for the standard library's module.
ENV PYTHONSAFEPATH=1
COPY --from=build-operator /opt/coxswain /opt/coxswain

FROM runtime AS data
COPY --from=build-data /opt/coxswain /opt/coxswain

FROM runtime AS train
COPY --from=build-train /opt/coxswain /opt/coxswain
