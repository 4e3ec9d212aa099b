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

.PHONY: run test lint types tests timm-tests gpu-tests coverage wheel clean help

help:
	@echo "make run     train three models on JapaneseVowels, print a table, write $(OUT)/report.html"
	@echo "make test    lint, types, tests"
	@echo "make clean   remove the virtual environment and caches"

run: $(STAMP)
	@$(BIN)/kernelhead train --recipe recipes/japanese_vowels.toml --out $(OUT) --fresh

test: lint types tests timm-tests

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)
	$(BIN)/mypy

tests: $(STAMP)
	$(BIN)/pytest -q -n 2 --dist loadfile --timeout 300 --durations 10

# Beside the environment: where torchvision does not fit its torch, it would take other packages with it.
timm-tests: $(TIMM)
	PYTHONPATH=$(TIMM) $(BIN)/pytest -q -n 2 --timeout 300 tests/surgery tests/nn/hosts tests/contracts/test_adapters.py -k timm

$(TIMM): $(STAMP)
	@rm -rf $@
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --target $@ --constraint constraints.txt timm torchvision

gpu-tests:
	PYTHONPATH=src python3 -m pytest -q -m gpu tests/ops tests/models tests/training tests/benchmarks/test_robustness.py

coverage: $(STAMP)
	$(BIN)/pytest -q -n 2 --dist loadfile --cov --cov-report=term --cov-report=html

wheel: $(STAMP)
	$(BIN)/pip wheel --no-deps --wheel-dir dist .

# One environment for both commands; made anew when what it is made from changes.
$(STAMP): pyproject.toml constraints.txt
	@sh scripts/setup.sh "$(VENV)" "$(PYTHON)"
	@touch $@

clean:
	rm -rf $(VENV) .hypothesis .mypy_cache .ruff_cache .pytest_cache htmlcov .coverage dist
