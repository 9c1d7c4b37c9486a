# Every target sets up what it needs in .venv by itself; `make` alone lists them.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
BROWSER_SECONDS := 600
SOAK_MINUTES ?= 30
# A test that hangs ends with the stacks of all threads, and its worker with it. What tests wait for has limits of its own,
# of five minutes and more, which come first: then one test fails and says what it has waited for.
HANGS := -o faulthandler_timeout=1200 -o faulthandler_exit_on_timeout=true
BENCHMARKS := $(filter-out benchmarks/_%,$(sort $(wildcard benchmarks/*.py lab/benchmarks/*.py)))

# Both names of the same file: pip has moved the pins of what builds a package to an option of their own.
export PIP_CONSTRAINT := constraints.txt
export PIP_BUILD_CONSTRAINT := constraints.txt
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PIP_NO_INPUT := 1

# Compiled Python is kept, also where the environment says otherwise, as many containers do: else every process of the
# tests would compile all that it imports, which takes two thirds of its start.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:
.PHONY: fuzz audit reliability soak test-pythons test-all test-faults test-browser test-engines test-gpu screenshots chromium help demo test lint bench reproduce docs clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(VENV)/run.stamp ## a federated forest over two parties, from training to prediction
	@$(BIN)/woodlot demo

# More workers than cores: tests of services wait for their processes a third of the time.
test: $(VENV)/dev.stamp ## the tests of every part, in at most 7 minutes on two cores, set-up included
	@$(BIN)/python tests/compile_first.py
	$(BIN)/pytest -n 4 --dist worksteal --ignore tests/browser $(HANGS) $(PYTEST_ARGS)

# What needs network namespaces runs in `make test-faults`; the pulled cable finds its moment by polling.
# That also tries every place where a process can die, of which one in three is tried here.
# Files come in their own order, not those of many tests first: the longest have few, and would be left for the end.
test-all: export WOODLOT_FAULTS_ONE_OF := 3
test-all: $(VENV)/dev.stamp ## what `make test` leaves out: long tests, and processes killed everywhere; at most 45 minutes
	@$(BIN)/python tests/compile_first.py
	$(BIN)/pytest -m 'slow or faults' -n 3 --dist loadfile --no-loadscope-reorder --ignore tests/browser --ignore-glob "tests/faults/test_network*.py" \
		$(HANGS) $(PYTEST_ARGS)

test-browser: $(VENV)/browser.stamp chromium ## the dashboard in Chromium; about a minute
	$(if $(shell command -v timeout),timeout --kill-after=30 $(BROWSER_SECONDS)) $(BIN)/pytest tests/browser $(PYTEST_ARGS) \
		|| { status=$$?; test $$status != 124 || echo "Not done after $(BROWSER_SECONDS) s; ended." >&2; exit $$status; }

test-faults: $(VENV)/dev.stamp ## everything that can break, broken: processes, lines, disks, clocks; about a quarter of an hour
	@$(BIN)/python scripts/reliability.py begin faults
	$(BIN)/pytest -m faults -n 2 --dist loadfile tests/faults tests/service tests/cli tests/runtime
	$(BIN)/python tests/faults/tally.py
	@$(BIN)/python scripts/reliability.py done faults

test-pythons: ## installed without constraints on every Python from 3.11 on that is found (PYTHONS="..." names others); the lowest versions once
	@unset PIP_CONSTRAINT PIP_BUILD_CONSTRAINT; $(PYTHON) scripts/test_pythons.py

test-engines: .venv-nvflare/stamp .venv-flower/stamp ## Woodlot inside NVFlare and Flower, each in an environment of its own
	.venv-nvflare/bin/pytest tests/engines/test_nvflare.py
	.venv-flower/bin/pytest tests/engines/test_flower.py

test-gpu: $(VENV)/gpu.stamp ## the tests of `device` on a graphics card, of which this machine must have one
	WOODLOT_TEST_DEVICE=cuda $(BIN)/pytest -m 'slow or not slow' tests/trees/test_arrays.py tests/trees/test_array_predict.py tests/trees/test_array_cells.py tests/estimators/test_device.py $(PYTEST_ARGS)

audit: $(VENV)/audit.stamp ## known faults of dependencies, a bill of materials, and whether the wheel builds the same twice
	@$(BIN)/python scripts/reliability.py begin audit
	$(BIN)/python scripts/audit.py
	@$(BIN)/python scripts/reliability.py done audit

reliability: $(VENV)/dev.stamp ## docs/reliability.md from what the suites have recorded in build/reliability
	$(BIN)/python scripts/reliability.py

fuzz: .venv-fuzz/stamp ## everything that is read, under a fuzzer (FUZZ_SECONDS=60 each), and every message in every state
	@.venv-fuzz/bin/python scripts/reliability.py begin fuzz states
	.venv-fuzz/bin/python scripts/fuzz.py
	WOODLOT_EVERY_STATE=1 .venv-fuzz/bin/pytest -m 'slow or not slow' tests/states tests/service/test_party_states.py
	@.venv-fuzz/bin/python scripts/reliability.py done fuzz states

screenshots: $(VENV)/browser.stamp chromium ## pictures of the dashboard, into docs/images
	$(BIN)/python scripts/screenshots.py

lint: $(VENV)/dev.stamp ## style, types, direction of imports, and whether docs/who-sees-what.md is up to date
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --strict
	$(BIN)/lint-imports
	$(BIN)/python scripts/who_sees_what.py --check

bench: $(VENV)/dev.stamp ## all benchmarks, one after the other
	@set -e; for script in $(BENCHMARKS); do echo "== $$script"; $(BIN)/python "$$script"; done

soak: $(VENV)/dev.stamp ## nine processes under load for SOAK_MINUTES (30): nothing is lost, no process grows
	@$(BIN)/python scripts/reliability.py begin load
	$(BIN)/python benchmarks/load.py --write
	$(BIN)/python benchmarks/_soak.py --minutes $(SOAK_MINUTES)
	@$(BIN)/python scripts/reliability.py done load

reproduce: $(VENV)/dev.stamp ## the papers' experiments in short form, on generated and scikit-learn's data
	@rm -rf reproduced/short
	@$(BIN)/woodlot reproduce all --quick --stand-ins --out reproduced/short

docs: .venv-docs/stamp ## docs/who-sees-what.md from the messages, and the site into build/site; warnings are errors
	.venv-docs/bin/python scripts/who_sees_what.py
	@NO_MKDOCS_2_WARNING=1 .venv-docs/bin/mkdocs build --strict
	@.venv-docs/bin/python scripts/check_site.py
	@echo "Open build/site/index.html"

clean: ## remove .venv, caches and build products
	rm -rf $(VENV) .venv-docs .venv-nvflare .venv-flower .venv-fuzz build dist reproduced .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache .numba_cache .coverage
	find . -path ./.git -prune -o \( -name __pycache__ -o -name '*.egg-info' \) -type d -prune -exec rm -rf {} +

# --- set-up ---

$(VENV)/venv.stamp:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "Woodlot needs Python 3.11 or newer; $(PYTHON) is older or absent. Name another: make PYTHON=python3.12 ..." >&2; \
		exit 1; }
	@$(BIN)/python -m pip --version > /dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV)
	@touch $@

$(VENV)/run.stamp: $(VENV)/venv.stamp pyproject.toml constraints.txt
	@echo "Installing Woodlot into $(VENV) (once; a minute or two) ..." >&2
	@$(BIN)/python -m pip install -qq --no-compile --editable '.[dashboard]'
	@touch $@

$(VENV)/dev.stamp: $(VENV)/venv.stamp pyproject.toml lab/pyproject.toml constraints.txt
	@echo "Installing Woodlot, its lab and its development tools into $(VENV) (once; a minute or two) ..." >&2
	@$(BIN)/python -m pip install -qq --no-compile --editable '.[dev]' --editable lab
	@touch $(VENV)/run.stamp $@

$(VENV)/gpu.stamp: $(VENV)/dev.stamp
	@$(BIN)/python -m pip install -qq --editable '.[gpu]'
	@touch $@

$(VENV)/browser.stamp: $(VENV)/dev.stamp
	@$(BIN)/python -m pip install -qq 'playwright>=1.50' 'axe-core-python>=0.1'
	@touch $@

# A browser comes from the system's packages; where there is none, Debian's Chromium is installed if that is possible.
chromium:
	@command -v chromium chromium-browser google-chrome > /dev/null && exit 0; \
		if [ "$$(id -u)" = 0 ] && command -v apt-get > /dev/null; then \
			echo "Installing Chromium (once; a minute or two) ..." >&2; \
			export DEBIAN_FRONTEND=noninteractive; \
			apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium fonts-dejavu-core > /dev/null; \
		fi; \
		command -v chromium chromium-browser google-chrome > /dev/null || { \
			echo "No browser found, and none could be installed; install Chromium with your system's packages." >&2; exit 1; }

$(VENV)/audit.stamp: $(VENV)/dev.stamp
	@$(BIN)/python -m pip install -qq 'pip-audit>=2.7' || echo "pip-audit cannot be installed here; known faults are not looked up" >&2
	@touch $@

# Both engines ask for other versions of what the rest is tested with, so no constraints hold here.
.venv-nvflare/stamp .venv-flower/stamp: .venv-%/stamp: pyproject.toml
	@echo "Installing Woodlot and $* into .venv-$* (once; a minute or two) ..." >&2
	@test -x .venv-$*/bin/python || $(PYTHON) -m venv .venv-$*
	@PIP_CONSTRAINT= .venv-$*/bin/python -m pip install -qq --editable '.[$*]' 'pytest>=8' 'hypothesis>=6.100' 'psutil>=5'
	@touch $@

# What builds the site brings libraries that change how others behave: with colorama there, some tests fail.
.venv-docs/stamp: pyproject.toml constraints.txt
	@echo "Installing Woodlot and what builds its site into .venv-docs (once; a minute or two) ..." >&2
	@test -x .venv-docs/bin/python || $(PYTHON) -m venv .venv-docs
	@.venv-docs/bin/python -m pip install -qq --editable . 'mkdocs-material>=9.5' 'mkdocstrings[python]>=0.27'
	@touch $@

.venv-fuzz/stamp: pyproject.toml constraints.txt
	@echo "Installing Woodlot and a fuzzer into .venv-fuzz (once; a minute or two) ..." >&2
	@test -x .venv-fuzz/bin/python || $(PYTHON) -m venv .venv-fuzz
	@.venv-fuzz/bin/python -m pip install -qq --editable '.[dev]' 'atheris>=3.0'
	@touch $@
