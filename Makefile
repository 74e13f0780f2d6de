# Two commands: `make demo` trains a scene out of core end to end; `make test` checks everything. Both do all set-up.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
OUT ?= results/demo
SCENE ?=
JOBS ?= 2
SOURCES := setup.py pyproject.toml $(shell find csrc -type f 2>/dev/null)

.PHONY: setup demo test test-slow lint format bench-billion clean help

help: ## this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 14

setup: $(VENV)/.built ## virtual environment, pinned dependencies, csrc

$(VENV)/.installed: requirements.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "tidegs needs Python 3.10 or newer: set PYTHON=")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet -r requirements.txt
	@touch $@

$(VENV)/.built: $(VENV)/.installed $(SOURCES)
	$(BIN)/python -m pip install --quiet --no-build-isolation --no-deps --editable .
	@touch $@

demo: setup ## generate a city (or take SCENE=path), train it out of core, evaluate, render, export, report
	$(BIN)/tidegs demo $(if $(SCENE),--scene $(SCENE)) --out $(OUT)

lint: setup ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test: lint ## ruff, mypy and the quick tests
	$(BIN)/python -m pytest -n $(JOBS) -m "not slow"

test-slow: setup ## the long tests: fault suites, fuzzing
	$(BIN)/python -m pytest -m slow

bench-billion: setup ## ingest, train, evaluate and report 1,001,000,000 Gaussians: 35 GB of disk, half an hour on 2 cores
	$(BIN)/python benchmarks/scale.py --gaussians 1.001e9 --end-to-end --out $(if $(filter file,$(origin OUT)),results/billion,$(OUT))

format: setup ## rewrite the sources in the house's format
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean: ## remove what was built; results stay
	rm -rf $(VENV) build *.egg-info tidegs/*.so .pytest_cache .mypy_cache .ruff_cache .hypothesis
