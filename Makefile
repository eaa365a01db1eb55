# `make` alone lists the targets.
.DEFAULT_GOAL := help
PYTHON ?= python3
PROMETHEUS ?= http://127.0.0.1:9090
BIN := .venv/bin
SERVICES := $(PYTHON) infra/services.py
PYTEST := $(BIN)/pytest
# Files run side by side, the tests of one file in order. The end-to-end tests mostly wait, so two cores have
# work for three; tests/e2e/conftest.py says which files begin.
WORKERS ?= 3
PARALLEL := -n $(WORKERS) --dist loadfile --no-loadscope-reorder
SERVED := eval "$$($(SERVICES) env)"; $(PYTEST)
export PYRIGHT_PYTHON_IGNORE_WARNINGS := 1
# The tests start hundreds of processes; each would compile four hundred modules anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup demo run fmt lint types imports schemas schemas-check canon static golden test test-unit \
	test-integration test-e2e faults up down status screens dashboard bench check fuzz audit licences lock clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "%-18s %s\n", $$1, $$2}' Makefile

setup: .venv/.complete  ## create .venv with exactly the locked dependencies

# Halves of the lock are installed side by side; that nothing they need is missing is checked at the end.
.venv/.complete: requirements.lock requirements-dev.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed")'
	@echo "installing the locked dependencies into .venv" >&2
	@$(PYTHON) -m venv .venv
	@awk '/^[^ #]/ {n++} {print > (".venv/half-" n % 2)}' requirements-dev.lock
	@ls .venv/half-* | xargs -P 2 -n 1 $(BIN)/pip install --quiet --no-compile --no-deps --require-hashes -r
	@$(BIN)/pip install --quiet --no-deps --no-build-isolation -e .
	@$(BIN)/pip check
	@touch $@

demo: setup  ## show the worker at its job: an embedded broker, a dozen requests, each outcome
	@$(BIN)/python -m worker demo

run: setup  ## run the worker until it is stopped
	@$(BIN)/python -m worker run

fmt: setup  ## format, and mend what can be mended
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

lint: setup  ## ruff: rules and format
	$(BIN)/ruff check
	$(BIN)/ruff format --check

types: setup  ## pyright, strict
	$(BIN)/pyright

imports: setup  ## import-linter: imports point one way
	$(BIN)/lint-imports

schemas: setup  ## export JSON Schema and AsyncAPI again
	$(BIN)/python -m schemas.export

schemas-check: setup  ## fail if the exported schemas are not those of the models
	$(BIN)/python -m schemas.export --check

canon: setup  ## fail if a Cypher statement strays from the canon of the graph
	$(BIN)/python -m worker schema check .

static: setup  ## all five: lint, types, imports, schemas-check, canon, side by side
	@$(MAKE) --no-print-directory --jobs=4 --output-sync=target lint types imports schemas-check canon

golden: setup  ## write the golden files again; review the difference like code
	$(PYTEST) tests/golden --update-golden

test: setup  ## every test, on real services that are started for it
	@$(SERVICES) run -- $(PYTEST) $(PARALLEL) -m "not bench"

test-unit: setup  ## the tests that need nothing started
	@$(PYTEST) $(PARALLEL) -m "not services and not bench"

test-integration: setup  ## tests of the stores; needs `make up`
	@$(SERVED) tests/integration tests/contract

test-e2e: setup  ## the real worker on real Kafka; needs `make up`
	@$(SERVED) tests/e2e

faults: setup  ## every fault at its full length, on real services, and a table of what it cost; an hour
	@CONTEXT_FAULTS=long $(SERVICES) run -- $(PYTEST) tests/faults

up:  ## start Kafka, Neo4j and Redis, install what is missing
	@$(SERVICES) up

screens: setup  ## take the README's pictures again
	@$(SERVICES) up chromium promtool
	@$(BIN)/python infra/screens.py

dashboard: setup  ## draw the dashboard as one page from what PROMETHEUS=http://… holds
	@$(BIN)/python infra/dashboard.py --prometheus "$(PROMETHEUS)"

down:  ## end them and remove their data
	@$(SERVICES) down

status:  ## what runs, where, and its log
	@$(SERVICES) status

bench: setup  ## measure ratios within one run, on real services; one table at its end
	@$(SERVICES) run -- $(PYTEST) tests/bench -m bench -s

check: setup  ## what CI runs: `static`, and `test` only after it
	@$(MAKE) --no-print-directory static
	@$(MAKE) --no-print-directory test

FUZZ_SECONDS ?= 300
fuzz: setup  ## fuzz the parsers for FUZZ_SECONDS each; what breaks one becomes a seed
	@$(BIN)/python -m tests.fuzz.run --seconds $(FUZZ_SECONDS)

audit: setup  ## known advisories against the locked versions; says so where it could not ask
	@$(BIN)/python infra/audit.py

licences: setup  ## the licence of each package that the worker needs
	@$(BIN)/python infra/licences.py

lock:  ## resolve the dependencies anew (needs uv)
	uv pip compile pyproject.toml --python-version 3.11 --universal --generate-hashes --no-header \
		-o requirements.lock
	uv pip compile pyproject.toml --group dev -c requirements.lock --python-version 3.11 --universal \
		--generate-hashes --no-header -o requirements-dev.lock

clean: down  ## remove what can be made again, the environment too
	rm -rf .venv .pytest_cache .ruff_cache .hypothesis .import_linter_cache var dist
	find . -name __pycache__ -prune -exec rm -rf {} +
