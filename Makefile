# Two commands: `make run` does the main job, `make test` proves the package. Both set up what they need.
SHELL := /bin/sh
VENV ?= .venv
BIN := $(VENV)/bin
PYTHON ?=
STAMP := $(VENV)/.ready
TIMM := $(VENV)/timm
OUT ?= runs/japanese-vowels

ifeq ($(filter 3.81 3.82 4.% 5.%,$(MAKE_VERSION)),)
$(error kernelhead needs GNU make 3.81 or newer, this is "$(MAKE_VERSION)")
endif

.PHONY: run test drills gates lint types wheel-test tests coverage timm-tests gpu-tests wheel clean help

help:
	@echo "make run     train three models on JapaneseVowels, print a table, write $(OUT)/report.html"
	@echo "make test    lint, types, tests"
	@echo "make gates   the tests with their lines counted, at least 90 %, and the wheel in an empty environment"
	@echo "make drills  break things on purpose, for up to an hour: docs/reliability.md"
	@echo "make clean   remove the virtual environment and caches"

run: $(STAMP)
	@$(BIN)/kernelhead train --recipe recipes/japanese_vowels.toml --out $(OUT) --fresh

test: lint types tests timm-tests

# What takes too long for every change: the tests with their lines counted, and the wheel in an empty environment.
gates: coverage wheel-test

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)
	$(BIN)/mypy

tests: $(STAMP)
	$(BIN)/pytest -q -n 2 --dist loadfile --timeout 300 --durations 40 -m "not drill"

# The same tests with their lines counted, which takes a third longer; at least 90 %, page in htmlcov.
coverage: $(STAMP)
	$(BIN)/pytest -q -n 2 --dist loadfile --timeout 600 -m "not drill" --cov --cov-fail-under=90 --cov-report=term --cov-report=html

# Beside the environment: where torchvision does not fit its torch, it would take other packages with it.
timm-tests: $(TIMM)
	PYTHONPATH=$(TIMM) $(BIN)/pytest -q -n 2 --timeout 300 tests/surgery tests/nn/hosts tests/contracts/test_adapters.py -k timm

$(TIMM): $(STAMP)
	@rm -rf $@
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --target $@ --constraint constraints.txt timm torchvision

# Kills, full disks, hostile files, strange bytes, long runs: what docs/reliability.md tells of.
drills: $(STAMP)
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt atheris
	OMP_NUM_THREADS=1 $(BIN)/pytest -q -m drill -n 2 --dist worksteal --timeout 900 --durations 10 tests/drills

gpu-tests:
	PYTHONPATH=src python3 -m pytest -q -m gpu tests/ops tests/models tests/training tests/benchmarks/test_robustness.py tests/cli/test_doctor.py

wheel-test: $(STAMP)
	@sh scripts/check_wheel.sh $(VENV)/wheel $(BIN)/python

wheel: $(STAMP)
	$(BIN)/pip wheel --no-deps --wheel-dir dist .

# One environment for both commands; made anew when what it is made from changes.
$(STAMP): pyproject.toml constraints.txt
	@sh scripts/setup.sh "$(VENV)" "$(PYTHON)"
	@touch $@

clean:
	rm -rf $(VENV) .hypothesis .mypy_cache .ruff_cache .pytest_cache htmlcov .coverage dist
