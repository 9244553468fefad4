SHELL := /bin/bash
PYTHON ?= $(firstword $(foreach name,python3.11 python3.12 python3.13 python3,$(shell command -v $(name) 2>/dev/null)))
VENV := .venv
BIN := $(VENV)/bin
FAST := tests/core tests/pumps tests/api tests/algorithms tests/operator
FOLDERS := crds operator runtime e2e tests benchmarks
CLUSTER := $(BIN)/python -m asyncrl_cluster

WARM := import asyncrl_runtime.app.run, asyncrl_runtime.app.validate, asyncrl_runtime.adapters.torch.trainer_service, \
  asyncrl_runtime.adapters.torch.shard_service, asyncrl_runtime.adapters.torch.advantage_service

export OMP_NUM_THREADS ?= 1

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-fast test-slow lint cluster-up cluster-down kubectl generate lock clean

help: ## List the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F':.*## ' '{sub(/:.*/, "", $$1); printf "  make %-12s %s\n", $$1, $$2}'

setup: $(VENV)/.ready ## Install everything into .venv

$(VENV)/.ready: requirements.lock crds/pyproject.toml operator/pyproject.toml runtime/pyproject.toml e2e/cluster/pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "AsyncRL needs Python 3.11 or newer; name one: make $(MAKECMDGOALS) PYTHON=python3.12" >&2; exit 1; }
	@echo "Installing into $(VENV)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check 'uv>=0.8'
	@$(BIN)/uv pip install --quiet --python $(BIN)/python --require-hashes -r requirements.lock
	@$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps -e crds -e operator -e runtime -e e2e/cluster
	@env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -c '$(WARM)' # write bytecode of what every run imports
	@touch $@

demo: setup ## Learn to reverse digits, from random weights
	$(BIN)/asyncrl run crds/samples/reverse-digits.yaml --fresh

test: lint test-fast test-slow ## Everything that must hold before a commit

test-fast: setup ## The tests that need nothing but Python
	$(BIN)/pytest $(FAST)

test-slow: setup ## The tests with real processes, engines and files
	$(BIN)/pytest tests $(addprefix --ignore=,$(FAST))

lint: setup ## Style, layers, types, dependencies
	$(BIN)/ruff check $(FOLDERS)
	$(BIN)/ruff format --check $(FOLDERS)
	$(BIN)/lint-imports --no-logo
	$(BIN)/pyrefly check
	cd crds && ../$(BIN)/deptry src
	cd operator && ../$(BIN)/deptry src
	cd runtime && ../$(BIN)/deptry src
	cd e2e/cluster && ../../$(BIN)/deptry src

cluster-up: setup ## Start a real Kubernetes on this machine, or repair it (ARGS="--kuberay 1.5.0")
	@$(CLUSTER) up $(ARGS)

cluster-down: setup ## End the cluster and remove everything of it
	@$(CLUSTER) down

kubectl: setup ## Ask the cluster (ARGS="get nodes")
	@$(CLUSTER) kubectl $(ARGS)

generate: setup ## Write the files that are generated from the models and tables
	$(BIN)/asyncrl crd > crds/asyncrljobs.yaml
	cd crds/src && ../../$(BIN)/python -m grpc_tools.protoc -I. --python_out=. --pyi_out=. --grpc_python_out=. asyncrl_api/control/control.proto
	$(BIN)/python -m asyncrl_runtime.app.metrics_page > docs/metrics.md

lock: setup ## Resolve the dependencies anew
	$(BIN)/uv pip compile --quiet --upgrade --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-annotate --no-header \
	  --no-emit-package asyncrl-api --no-emit-package asyncrl-operator --no-emit-package asyncrl-runtime --no-emit-package asyncrl-cluster \
	  --group dev pyproject.toml -o requirements.lock

clean: ## Remove the environment and the caches; runs/ stays
	rm -rf $(VENV) .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find $(FOLDERS) -name __pycache__ -type d -prune -exec rm -rf {} +
