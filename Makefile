.DEFAULT_GOAL := help
SHELL := /bin/bash
PYTHON ?= python3.11
BIN := .venv/bin
# Where Python may not keep bytecode, each of the many processes compiles Dagster anew, 5 CPU seconds a time.
unexport PYTHONDONTWRITEBYTECODE
INSTALLED := .venv/installed

.PHONY: help demo test check up bench stress lock clean

help: ## list the targets
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /|/' | column -t -s '|'

$(INSTALLED): requirements.lock pyproject.toml
	@command -v $(PYTHON) >/dev/null || { echo "Python 3.11 is needed: '$(PYTHON)' was not found; set PYTHON=..." >&2; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check uv
	UV_SYSTEM_CERTS=1 $(BIN)/python -m uv pip install --quiet --python $(BIN)/python --require-hashes --no-deps -r requirements.lock || \
		$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

demo: $(INSTALLED) ## ingest the sample documents on embedded servers and answer three queries
	$(BIN)/python -m rag_pipeline.cli.main demo

test: $(INSTALLED) ## all tests but the long fault-injection suites, on real embedded servers
	$(BIN)/python -m pytest -m "not slow" -n 2 --dist loadfile

check: $(INSTALLED) ## lint, format, types, import contracts
	$(BIN)/python -m ruff check .
	$(BIN)/python -m ruff format --check .
	$(BIN)/python -m mypy
	$(BIN)/lint-imports

up: $(INSTALLED) ## run the embedded servers, the Dagster webserver and the daemon
	$(BIN)/python -m rag_pipeline.cli.main up

bench: $(INSTALLED) ## measure ingest: documents/min, CPU per document, peak memory
	$(BIN)/python -m benchmarks.ingest

stress: $(INSTALLED) ## the long fault-injection suites
	$(BIN)/python -m pytest -m slow -n 2 --dist worksteal

lock: ## resolve pyproject.toml again into requirements.lock
	$(BIN)/python -m uv pip compile pyproject.toml --group dev --generate-hashes --python-version 3.11 --no-header --no-annotate --quiet --output-file requirements.lock

clean: ## remove the environment and caches, keep data
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .import_linter_cache build *.egg-info
