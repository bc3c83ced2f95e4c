# On a machine with python3 (3.11 or later), pip and venv:
#   make demo        set up, then run the main job
#   make test        set up, then lint, types, layers, doctests and tests: about four minutes
#   make beside      libraries that cannot be installed beside those of `make test`
#   make test-all    what `make test` leaves out: slow tests, and random tests with all their trials

PYTHON ?= python3
BIN := .venv/bin
JOBS ?= 2
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet

PARITY_PYTHON ?= python3.12

# Where an environment says that none is kept, every process would compile all that it imports.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo test test-all fresh docs notebooks lint types layers unit fuzz parity beside test-gpu bench format hooks clean

demo: .venv/.demo
	$(BIN)/python -m examples.demo

test: lint layers
	$(MAKE) --no-print-directory -j2 types unit

# tests/conftest.py says which tests are slow and which are random.
test-all: .venv/.test
	WEFT_FUZZ=$${WEFT_FUZZ:-150} $(BIN)/python -m pytest -n $(JOBS) --dist loadfile -m "slow or random" tests

# `make demo` and `make test` in a clean clone, with nothing there but Python, git and make.
fresh: .venv/.test
	WEFT_FRESH=1 $(BIN)/python -m pytest -s tests/test_fresh.py

# The site, in build/site; warnings are errors.
docs: .venv/.docs
	PYTHONPATH=src $(BIN)/python -m mkdocs build
	@echo "read build/site/index.html"

# The examples as notebooks, in build/notebooks.
notebooks: .venv/.made
	$(BIN)/python -m docsite.notebooks build/notebooks

lint: .venv/.test
	$(BIN)/ruff check
	$(BIN)/ruff format --check

types: .venv/.test
	$(BIN)/mypy
	$(BIN)/mypy tests/user_types.py

layers: .venv/.test
	$(BIN)/lint-imports

unit: .venv/.test
	$(BIN)/python -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder -m "not slow"

# The random tests with many more trials: 5,000 examples of every property, 10,000 hostile inputs for
# every reader; see tests/trials.py.
fuzz: .venv/.test
	WEFT_FUZZ=$${WEFT_FUZZ:-5000} $(BIN)/python -m pytest -n $(JOBS) -m random tests

# Beside the runtime of mesh chips, whose package is for one Python alone: its own environment.
parity: .venv-parity/.made
	PYTHONPATH=src .venv-parity/bin/python tests/ttmesh/parity.py

# ome-zarr-py, which pins another botocore than moto; pandas, xarray and dask: their own environment.
beside: .venv-beside/.made
	.venv-beside/bin/python -m pytest -q tests/store/test_ome_validators.py tests/store/test_ome_v04.py tests/store/test_libraries.py

# On a machine with a GPU, by a Python that has CuPy and what the extra `store` brings.
test-gpu:
	PYTHONPATH=src $(PYTHON) -m pytest -q tests/gpu

bench: .venv/.test
	$(BIN)/python -m benchmarks

format: .venv/.test
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

hooks: .venv/.test
	$(PIP) install -e '.[dev]'
	$(BIN)/pre-commit install --hook-type pre-commit --hook-type pre-push

clean:
	rm -rf .venv .venv-parity .venv-beside build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

# A stamp for each environment: made again only when what it is made from changes.
.venv/.made:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Weft needs Python 3.11 or later; try: make PYTHON=python3.11 " + "test")'
	$(PYTHON) -m venv .venv
	touch $@

.venv/.demo: .venv/.made pyproject.toml
	$(PIP) install -e '.[demo]'
	touch $@

.venv/.docs: .venv/.made pyproject.toml
	$(PIP) install -e '.[docs]'
	touch $@

.venv/.test: .venv/.made pyproject.toml
	$(PIP) install -e '.[test]'
	touch $@ .venv/.demo .venv/.docs

.venv-beside/.made: pyproject.toml
	$(PYTHON) -m venv .venv-beside
	.venv-beside/bin/python -m pip --disable-pip-version-check --quiet install -e '.[beside]'
	touch $@

.venv-parity/.made:
	$(PARITY_PYTHON) -c 'import sys; sys.exit(sys.version_info[:2] != (3, 12) and "ttnn needs Python 3.12; try: make parity PARITY_PYTHON=/path/to/python3.12")'
	$(PARITY_PYTHON) -m venv .venv-parity
	.venv-parity/bin/python -m pip --disable-pip-version-check --quiet install 'ttnn==0.81.1' 'numpy<2'
	touch $@
