# Two commands are all: `make quickstart` and `make test`. Both set up .venv first.

VENV := .venv
PY := $(VENV)/bin/python
STAMP := $(VENV)/.ready

.PHONY: help quickstart test lint types unit doctor clean

help:
	@echo "make quickstart   set up, then train, validate and export a model on the digits"
	@echo "make test         set up, then linter, type checker and the whole test suite"
	@echo "make doctor       what this machine can do"
	@echo "make clean        remove the environment and everything that was made"

quickstart: $(STAMP)
	@$(PY) tools/quickstart.py

test: lint types unit

lint: $(STAMP)
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .

types: $(STAMP)
	$(PY) -m mypy

unit: $(STAMP)
	$(PY) -m pytest

doctor: $(STAMP)
	@$(PY) -m ortboost doctor

$(STAMP): pyproject.toml tools/setup_env.sh
	@sh tools/setup_env.sh $(VENV)
	@touch $@

clean:
	rm -rf $(VENV) runs build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
