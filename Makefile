# Two commands: `make run` does the main job, `make test` proves the package. Both set up what they need.
SHELL := /bin/sh
VENV ?= .venv
BIN := $(VENV)/bin
PYTHON ?=
STAMP := $(VENV)/.ready
TIMM := $(VENV)/timm
OUT ?= runs/japanese-vowels
PYTEST := pytest -q -n 2 --timeout 300 -W ignore::pytest.PytestAssertRewriteWarning

ifeq ($(filter 3.81 3.82 4.% 5.%,$(MAKE_VERSION)),)
$(error kernelhead needs GNU make 3.81 or newer, this is "$(MAKE_VERSION)")
endif

.PHONY: run test drills lint types wheel-test tests timm-tests gpu-tests wheel clean help

help:
	@echo "make run     train three models on JapaneseVowels, print a table, write $(OUT)/report.html"
	@echo "make test    lint, types, tests with their lines counted, the wheel in an empty environment"
	@echo "make drills  break things on purpose, for up to an hour: docs/reliability.md"
	@echo "make clean   remove the virtual environment and caches"

run: $(STAMP)
	@$(BIN)/kernelhead train --recipe recipes/japanese_vowels.toml --out $(OUT) --fresh

# What needs one core goes side by side, the wheel beside the environment, then the tests on two.
test:
	@$(MAKE) --no-print-directory -j 2 lint types wheel-test $(TIMM)
	@$(MAKE) --no-print-directory tests timm-tests

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)
	$(BIN)/mypy

# Lines are counted, but where that would change what is tested; lines.txt has the figures of every file.
tests: $(STAMP)
	$(BIN)/python -m slipcover --json --out lines.json --source src/kernelhead -m $(PYTEST) --dist worksteal --durations 40 -m "not drill and not long and not plain"
	$(BIN)/python scripts/lines.py lines.json lines.txt --least 90
	$(BIN)/$(PYTEST) --dist worksteal -m plain tests

# Beside the environment: where torchvision does not fit its torch, it would take other packages with it.
timm-tests: $(TIMM)
	PYTHONPATH=$(TIMM) $(BIN)/pytest -q -n 2 --timeout 300 tests/surgery tests/nn/hosts tests/contracts/test_adapters.py -k timm

$(TIMM): $(STAMP)
	@rm -rf $@
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --target $@ --constraint constraints.txt timm torchvision

# Kills, full disks, hostile files, strange bytes, long runs: what docs/reliability.md tells of.
drills: $(STAMP)
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt atheris
	OMP_NUM_THREADS=1 $(BIN)/pytest -q -m "drill or long" -n 2 --dist worksteal --timeout 900 --durations 10 tests

gpu-tests:
	PYTHONPATH=src python3 -m pytest -q -m gpu tests/ops tests/nn/test_dropout.py tests/models tests/training tests/benchmarks/test_robustness.py tests/cli/test_doctor.py

wheel-test:
	@sh scripts/check_wheel.sh dist/empty "$(PYTHON)"

wheel: $(STAMP)
	$(BIN)/pip wheel --no-deps --wheel-dir dist .

# One environment for both commands; made anew when what it is made from changes.
$(STAMP): pyproject.toml constraints.txt
	@sh scripts/setup.sh "$(VENV)" "$(PYTHON)"
	@touch $@

clean:
	rm -rf $(VENV) .hypothesis .mypy_cache .ruff_cache .pytest_cache lines.json lines.txt dist
