# Everything runs in .venv, which is rebuilt when the dependencies change.
# Only python3 (with venv and pip) and make are needed beforehand.

PYTHON ?= python3
WORKERS ?= 2
OUT ?= out
# Options for make paper, such as PAPER=--quick.
PAPER ?=
# Options for make bench, such as BENCH=--quick.
BENCH ?=

BIN := .venv/bin
INSTALLED := .venv/.installed
PEERS := .venv/.peers

# Each test worker keeps to one core; threads inside the workers would only compete.
TEST_ENV := XLA_FLAGS=--xla_cpu_multi_thread_eigen=false OPENBLAS_NUM_THREADS=1

.DEFAULT_GOAL := help
.PHONY: help install run paper bench test lint types unit format clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

install: $(INSTALLED) ## Create .venv with the library and its development tools

$(INSTALLED): pyproject.toml constraints.txt hatch_build.py $(wildcard src/probode/native/src/*)
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check \
		-c constraints.txt -e ".[plot,test]"
	@touch $@

run: $(INSTALLED) ## Solve the Lotka-Volterra example and write its figure to out/
	$(BIN)/python -m probode demo --out $(OUT)

paper: $(INSTALLED) ## Run the paper's experiments again, write out/paper/report.html
	$(TEST_ENV) $(BIN)/python -m probode paper --out $(OUT)/paper $(PAPER)

bench: $(PEERS) ## Time to an error, against other solvers, to out/bench/ (BENCH=--quick: 4 minutes)
	$(BIN)/python -m benchmarks work_precision --out $(OUT)/bench $(BENCH)

$(PEERS): $(INSTALLED)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check \
		-c constraints.txt -e ".[bench]"
	@touch $@

test: lint types unit ## Check style and types, then run the tests

lint: $(INSTALLED) ## Check style and formatting
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(INSTALLED) ## Check the type annotations
	$(BIN)/mypy

# One file stays in one worker, so that its tests share compiled solvers.
unit: $(INSTALLED) ## Run the tests only
	$(TEST_ENV) $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile

format: $(INSTALLED) ## Reformat the code and apply safe fixes
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean: ## Remove .venv, outputs and caches
	rm -rf .venv out build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
