# Two commands do everything on a machine with python3 (3.11 or later), pip and venv:
#   make demo    set up, then run the main job
#   make test    set up, then lint, types, layers, doctests and tests

PYTHON ?= python3
BIN := .venv/bin
JOBS ?= 2
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet

.PHONY: demo test lint types layers unit fuzz test-gpu bench format hooks clean

demo: .venv/.demo
	$(BIN)/python -m examples.demo

test: lint types layers unit

lint: .venv/.test
	$(BIN)/ruff check
	$(BIN)/ruff format --check

types: .venv/.test
	$(BIN)/mypy
	$(BIN)/mypy tests/user_types.py

layers: .venv/.test
	$(BIN)/lint-imports

unit: .venv/.test
	$(BIN)/python -m pytest -n $(JOBS) --dist loadfile

# The same properties, for longer: WEFT_FUZZ examples each (but for pictures, which are slow).
fuzz: .venv/.test
	WEFT_FUZZ=$${WEFT_FUZZ:-5000} $(BIN)/python -m pytest -n $(JOBS) tests

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
	rm -rf .venv build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

# A stamp for each environment: made again only when what it is made from changes.
.venv/.made:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Weft needs Python 3.11 or later; try: make PYTHON=python3.11 " + "test")'
	$(PYTHON) -m venv .venv
	touch $@

.venv/.demo: .venv/.made pyproject.toml
	$(PIP) install -e '.[run,search]'
	touch $@

.venv/.test: .venv/.made pyproject.toml
	$(PIP) install -e '.[test]'
	touch $@ .venv/.demo
