# Everything a person types. State lives in .venv/ and .cache/ of this checkout and nowhere else; interrupted set-up repeats cleanly.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

PYTHON ?= python3
BIN := .venv/bin
RUN_DIR ?= runs/stdlib
CORPUS := runs/corpus
TEST_TOOLS := etcd kube-apiserver kube-controller-manager kube-scheduler kubectl helm versitygw promtool
E2E_TOOLS := etcd kube-apiserver kube-controller-manager kube-scheduler kubelet kube-proxy kubectl coredns pause helm versitygw
SCALE_TOOLS := etcd kube-apiserver kube-controller-manager kube-scheduler kwok kubectl jobset trainer training-operator prometheus
# More than processors: half of a test's time is a wait for real processes.
WORKERS ?= 4
# Tests that take long compute more than they wait.
SLOW_WORKERS ?= 2
# One thread a process: workers, not BLAS, share the cores.
export OMP_NUM_THREADS ?= 1
export TOKENIZERS_PARALLELISM := false
# Without stored bytecode every process compiles all that it imports: torch takes twice as long.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup run test tested bytecode slowest lint style types generate docs pictures manifests test-slow mutants bench bench-balance bench-planners bench-layout bench-detect bench-migrate bench-loading bench-garbage bench-straggler bench-simulate bench-engine bench-strategy bench-coordinator bench-hdp bench-recovery bench-operator bench-kueue binaries cluster cluster-down demo images e2e-smoke e2e clean

help:  ## this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: .venv/.ready  ## make .venv with everything in it (so .venv/bin/cox)

.venv/.ready: pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt uv
	@VIRTUAL_ENV=$(CURDIR)/.venv $(BIN)/uv pip install --quiet --constraint constraints.txt --editable '.[dev]'
	@touch $@

run: .venv/.ready  ## train the demo job on this machine: real text, rings, a checkpoint, a report (about two minutes)
	@$(BIN)/python examples/make_corpus.py --output $(CORPUS)
	@$(BIN)/cox run examples/stdlib.yaml --workdir $(RUN_DIR)
	@$(BIN)/cox report $(RUN_DIR)

test: .venv/.ready  ## lint, types, contracts, generated files, and all tests
	@$(MAKE) --no-print-directory --jobs 2 types tested

# mypy takes one processor for half a minute on a fresh clone, beside style, bytecode and the first tests.
tested: style binaries bytecode
	$(BIN)/python -m pytest -m "not slow" -n $(WORKERS)

# On a fresh clone every worker would compile all tests for itself.
bytecode: style binaries
	@test -e .cache/tests/times.json || $(BIN)/python -m pytest -m "not slow" --collect-only -qq > /dev/null || true

slowest: .venv/.ready  ## the 25 slowest tests and files, and each folder, as last measured here
	@$(BIN)/python -m tests.times

lint: style types  ## ruff, mypy --strict, import contracts, words that must not come back, tests' reaches

style: .venv/.ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/python -m tests.words
	$(BIN)/python -m tests.private_names

types: .venv/.ready
	$(BIN)/mypy

generate: .venv/.ready  ## write what comes from models, planners and results: crds/, docs/reference/, docs/metrics.md, tables, pictures of plans
	$(BIN)/python -m docs.tools.pod_template
	$(BIN)/python -m coxswain.api.generate
	$(BIN)/python -m docs.tools.tables
	$(BIN)/python -m docs.tools.plan_pictures

docs: .venv/.ready  ## the site of the documentation, with search, in .cache/site; warnings are errors
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --site-dir .cache/site
	@echo "wrote .cache/site/index.html"

pictures: .venv/.ready  ## make every picture of the documentation from one real run; needs chromium (some five minutes)
	@$(BIN)/python -m docs.tools.plan_pictures
	@$(BIN)/python -m docs.tools.goodput_picture
	@$(BIN)/python -m docs.tools.pictures

manifests: .venv/.ready  ## write dist/install.yaml, the chart for people without Helm (REGISTRY=registry.example/path for the images)
	@mkdir -p dist
	@$(BIN)/python charts/plain.py --set image.registry=$(REGISTRY) > dist/install.yaml
	@echo "wrote dist/install.yaml: kubectl apply --server-side --filename dist/install.yaml"

binaries: .venv/.ready  ## build etcd, Kubernetes' servers, Helm, promtool and an S3 server from Go modules into .cache/ (once, some minutes)
	$(BIN)/python -m e2e.tools.build $(TEST_TOOLS)

test-slow: .venv/.ready binaries  ## the long matrix, and the property tests on newly drawn examples; goes on behind what passed at this commit
	$(BIN)/python -m e2e.tools.build $(SCALE_TOOLS)
	$(BIN)/python -m pytest -p tests.passed -m "slow or hypothesis" --hypothesis-profile=drawn --timeout 1800 -n $(SLOW_WORKERS)

mutants: .venv/.ready binaries  ## small faults in a copy of the sources: which do the tests notice? MODULES=names, SAMPLE=n a module; goes on where it stopped
	@$(BIN)/python -m tests.mutants $(MODULES) $(if $(SAMPLE),--sample $(SAMPLE)) $(if $(JOBS),--jobs $(JOBS))

bench: bench-balance bench-planners  ## placement and its planners: both of the next two

bench-balance: .venv/.ready  ## step placement against its bound and every rival, target by target, into docs/results (some minutes)
	@$(BIN)/python -m bench.balance --write

bench-planners: .venv/.ready  ## CPU time and memory of every planner at 64 to 12,288 replicas, into docs/results (some minutes)
	@$(BIN)/python -m bench.planner_speed --write

bench-layout: .venv/.ready  ## layouts of clusters with slow devices beside the optimum and every rival, as JSON (many minutes)
	@$(BIN)/python -m bench.layout

bench-straggler: .venv/.ready  ## one of four real workers throttled to a quarter: ours beside rivals and the optimum, as JSON; as root (half an hour)
	@$(BIN)/python -m bench.straggler_cpu

bench-migrate: .venv/.ready  ## changes of layout in running workers: pause, bytes, beside a restart from a checkpoint (some four minutes)
	@$(BIN)/python -W ignore -m bench.migrate --rounds 3
	@$(BIN)/python -W ignore -m bench.migrate --whole

bench-loading: .venv/.ready  ## data loading beside MosaicML Streaming, LitData, Grain and Hugging Face datasets, into docs/results (some twenty minutes)
	@$(BIN)/python -m bench.loading --write

bench-garbage: .venv/.ready  ## what measuring adds to a step, and step times with garbage collected at any time and between steps (some three minutes)
	@$(BIN)/python -W ignore -m bench.garbage

bench-detect: .venv/.ready  ## detection of stragglers in simulated worlds: steps until confirmed, false positives, overhead, as JSON (two minutes)
	@$(BIN)/python -m bench.detect

bench-simulate: .venv/.ready  ## ours and rivals on traces of slow and lost devices in virtual time, into docs/results (a quarter of an hour)
	@$(BIN)/python -m bench.simulate --write

bench-engine: .venv/.ready  ## the whole system beside a plain torch loop on the same tokens, one replica, two, and two stages, into docs/results (some minutes)
	@$(BIN)/python -m bench.engine --write
	@$(BIN)/python -m bench.pipeline

bench-strategy: .venv/.ready  ## layouts for the published settings of FlexSP and Hydraulis, predicted, into docs/results (a minute)
	@$(BIN)/python -m bench.strategy --write

bench-coordinator: .venv/.ready  ## a coordinator under 1,024 simulated ranks over HTTP: its CPU, bytes of plan, lag (three minutes)
	@$(BIN)/python -m bench.coordinator

bench-hdp: .venv/.ready  ## static, naive, bytescale, flexsp and makespan on four real replicas and real text, as root (ten minutes)
	@$(BIN)/python -m bench.hdp_cpu --rounds 2 --steps 8 --capacity 1024 --longest 2048 --tokens 16384 --profile-seconds 30

bench-recovery: .venv/.ready  ## how long training stands still after a SIGKILL to a process of each kind
	@$(BIN)/python -m bench.recovery

images: .venv/.ready  ## build the images of the Dockerfile without a daemon, as root; says their sizes
	@$(BIN)/python -m e2e.images operator data train

e2e-smoke: .venv/.ready  ## on real kubelets, as root: chart, images and S3; a job trains to the digests of `cox run`
	$(BIN)/python -m e2e.tools.build $(E2E_TOOLS)
	$(BIN)/python -m pytest e2e/test_smoke.py --timeout 1200

e2e: .venv/.ready  ## all of that, and what can go wrong: lost pods and nodes, bad input, upgrades, the test cluster itself
	$(BIN)/python -m e2e.tools.build $(E2E_TOOLS)
	$(BIN)/python -m pytest e2e --timeout 1200

demo: .venv/.ready  ## put images and an S3 server with the corpus into the cluster of `make cluster` (40 GB)
	@$(BIN)/python -m e2e.demo

cluster: .venv/.ready  ## a real Kubernetes with two nodes on this machine, as root; says what is missing and what to type next
	@$(BIN)/python -m e2e.cluster up

cluster-down: .venv/.ready  ## end that cluster; nothing is left
	@$(BIN)/python -m e2e.cluster down

bench-kueue: .venv/.ready  ## the operator beside a real Kueue: KUEUE=binary KUEUE_CONFIG=config/components KUEUE_VERSION=v...
	$(BIN)/python -m e2e.tools.build etcd kube-apiserver kube-controller-manager kube-scheduler kubectl kwok
	$(BIN)/python -m bench.kueue --binary $(KUEUE) --config $(KUEUE_CONFIG) --version $(KUEUE_VERSION)

bench-operator: .venv/.ready  ## the operator on a control plane with kwok nodes, beside a bare loop that creates the same pods
	$(BIN)/python -m e2e.tools.build $(SCALE_TOOLS)
	$(BIN)/python -m bench.operator_scale

clean:  ## remove what make built and what runs left
	@test ! -e .cache/cluster || $(BIN)/python -m e2e.cluster down
	rm -rf .venv .cache runs
