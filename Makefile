# The first installed Python that TensorFlow supports; `make demo PYTHON=...` chooses another Python.
PYTHON ?= $(shell for p in python3 python3.12 python3.13 python3.11 python3.10; do \
	$$p -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null \
	&& { echo $$p; break; }; done)
VENV ?= .venv
RUN = $(VENV)/bin/python
REQUIRE_PYTHON = test -n "$(PYTHON)" || { echo "Error: no Python 3.10 to 3.13 found; set PYTHON=..."; exit 2; }

# Tests start Python hundreds of times. Without a cache, each start would compile 400 modules.
export PYTHONDONTWRITEBYTECODE =

.PHONY: demo check test budget test-changed test-all test-oldest install-oldest test-matrix lint docs clean

demo: $(VENV)/installed
	$(RUN) -m launch.train --gin_file gin_configs/experiments/digits_shared_bottom.gin

# Before every commit: lint, and the tests that take at most a third of a second. Prints the slowest tests.
check: lint
	$(RUN) -m pytest --numprocesses auto --dist worksteal -m 'not medium and not slow' --quick --durations 10

test: $(VENV)/installed-dev
	@echo "About 10,000 cases: 15 to 30 minutes on two cores. make check is shorter."
	@$(RUN) -m tests.compat.passed --check
	$(RUN) -m pytest --numprocesses auto --dist worksteal --budgets tell

# Like `make test`; also fails if a test file takes much more time than before (tests/budgets.py).
budget: $(VENV)/installed-dev
	$(RUN) -m pytest --numprocesses auto --dist loadfile --budgets refuse

# The tests that import files changed since a commit, the closest imports first.
SINCE ?= HEAD
test-changed: $(VENV)/installed-dev
	$(RUN) -m tests.changed --since $(SINCE)

# Every test: also tests with the marks thorough and drawn, with forty pairs of features instead of
# eight, and thirty failing writes of each verb instead of one.
test-all: $(VENV)/installed-dev
	MTL_PAIRS=40 MTL_WRITES=30 $(RUN) -m pytest --thorough --numprocesses auto --dist worksteal
	$(RUN) -m tests.compat.passed

# On the oldest supported TensorFlow: the main job, mtl.compat, a row of each conformance table.
test-oldest:
	$(PYTHON) -m tests.matrix --envs .matrix --tensorflow 2.15 --tests \
		tests/experiment_test.py tests/model tests/step/training_loop_test.py tests/conformance \
		tests/compat/estimator_test.py tests/compat/surface_test.py tests/features/growing_test.py tests/tools/debugging \
		tests/data/order_test.py tests/data/arrow_test.py tests/data/record_blocks_test.py tests/data/columns_test.py tests/data/csv_columns_test.py tests/data/coded_rows_test.py tests/runs/text_codes_test.py tests/data/splits_test.py tests/data/mixture_test.py tests/data/windows_test.py tests/data/memory_rows_test.py tests/data/in_memory_test.py tests/data/json_lines_test.py tests/checks tests/without_tensorflow_test.py \
		--match 'not conformance or binary or LazyAdam or PCGrad or Uncertainty or mlp'

# Only the environment of `make test-oldest`.
install-oldest:
	$(PYTHON) -m tests.matrix --envs .matrix --tensorflow 2.15 --install

test-matrix:
	$(PYTHON) -m tests.matrix --envs .matrix

lint: $(VENV)/installed-dev
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/ruff check .
	$(VENV)/bin/mypy
	$(VENV)/bin/python -m tests.prose

# Builds a site of all pages and docstrings, build/docs/index.html, in five minutes. A separate
# environment is enough, because the build does not import the package.
docs: .docs/installed
	.docs/bin/python -m sphinx -q -W --keep-going -b html -d build/doctrees docs build/docs

.docs/installed: docs/requirements.txt
	@$(REQUIRE_PYTHON)
	$(PYTHON) -m venv .docs
	.docs/bin/python -m pip install --quiet --disable-pip-version-check --requirement docs/requirements.txt
	@touch $@

clean:
	rm -rf $(VENV) .docs .matrix build *.egg-info

$(VENV)/bin/python:
	@$(REQUIRE_PYTHON)
	$(PYTHON) -m venv $(VENV)

$(VENV)/installed: $(VENV)/bin/python pyproject.toml
	$(RUN) -m pip install --quiet --disable-pip-version-check --editable .
	@touch $@

$(VENV)/installed-dev: $(VENV)/bin/python pyproject.toml
	$(RUN) -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@ $(VENV)/installed
