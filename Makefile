# The two commands a newcomer needs are `make quickstart` and `make test`; each sets up .venv by itself.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PACKAGES := $(VENV)/packages
PYTEST := $(BIN)/pytest -n 2 --dist loadgroup
# Two tests at a time, each on one thread: more would only wait for each other.
unit test-all test-random coverage: export OMP_NUM_THREADS := 1
# Tests start some hundred processes; each would compile all modules anew where something forbids to keep the bytecode.
unit test-all test-random coverage: export PYTHONDONTWRITEBYTECODE :=

.PHONY: quickstart test test-all test-random test-python coverage lint types unit format results docs clean

quickstart: $(STAMP)
	$(BIN)/robust quickstart

test: lint types unit

# Everything, the slow tests included.
test-all: lint types
	$(PYTEST)

# The tests of `make test` in an order that SEED decides.
SEED ?= 1
test-random: $(STAMP)
	$(PYTEST) -m "not slow or representative" --random-order-bucket=global --random-order-seed=$(SEED)

# The tests of `make test` with another interpreter, in an environment of its own: make test-python VERSION=3.13
VERSION ?= 3.12
test-python:
	$(MAKE) --no-print-directory unit VENV=.venv-$(VERSION) PYTHON=python$(VERSION)

# Branch coverage of the tests of `make test`, subprocesses included.
coverage: $(STAMP)
	$(PYTEST) -m "not slow or representative" --cov --cov-report=term:skip-covered

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP) $(PACKAGES)
	MYPYPATH=.:$(PACKAGES) $(BIN)/mypy --namespace-packages --explicit-package-bases -p robustinfer -p robust.train -p robust.export -p robust.serve -p tests
	MYPYPATH=.:$(PACKAGES) $(BIN)/mypy --namespace-packages --explicit-package-bases benchmarks examples docs

unit: $(STAMP)
	$(PYTEST) -m "not slow or representative"

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Renders benchmarks/RESULTS.md and its plots from the JSON files that the benchmark scripts have written.
results: $(STAMP)
	$(BIN)/python benchmarks/render.py

# Fills in the options of docs/command-line.md, and the tables and the picture of README.md.
docs: $(STAMP)
	$(BIN)/python docs/build.py

# The folders under their import names, as a wheel has them. setuptools installs `robust.train` = train/ in place by an
# import hook, which type checkers cannot follow; they follow a folder on the path.
$(PACKAGES): Makefile
	mkdir -p $@/robust
	ln -sfn ../../robustinfer $@/robustinfer
	for part in train export serve; do ln -sfn ../../../$$part $@/robust/$$part; done
	for site in $(VENV)/lib/python*/site-packages; do echo ../../../packages > $$site/robustinfer-packages.pth; done
	touch $@

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[dev]"
	rm -rf $(PACKAGES)
	$(MAKE) --no-print-directory $(PACKAGES)
	touch $(STAMP)

clean:
	rm -rf build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache
