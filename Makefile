# Two commands are all: `make quickstart` and `make test`. They set up what they need first.
#
# .venv        a Python from 3.10 to 3.12 with onnxruntime-training, both engines; on a newer Python
#              with the onnxruntime of the day, the portable engine
# .venv-stock  the newest Python that is here with the onnxruntime of the day

VENV := .venv
STOCK := .venv-stock
PY := $(VENV)/bin/python
READY := $(VENV)/.ready
STOCK_READY := $(STOCK)/.ready

.PHONY: help quickstart test lint types unit unit-stock random doctor zoo clean

help:
	@echo "make quickstart   set up, then train, validate and export a model on the digits"
	@echo "make test         set up, then linter, type checker and the whole test suite, with both runtimes"
	@echo "make random       the property tests again and again, with other examples each time (ROUNDS=10)"
	@echo "make doctor       what this machine can do"
	@echo "make zoo          gather some eighty foreign models and measure them; an hour, and 3 GB of packages"
	@echo "make clean        remove the environments and everything that was made"

quickstart: $(READY)
	@$(PY) tools/quickstart.py

# The two suites have a core each; they share nothing.
test: lint types $(STOCK_READY)
	@OMP_NUM_THREADS=1 $(MAKE) --no-print-directory -j2 -Oline unit unit-stock

lint: $(READY)
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .

types: $(READY)
	$(PY) -m mypy

unit: $(READY)
	$(PY) -m pytest

unit-stock: $(STOCK_READY)
	$(STOCK)/bin/python -m pytest

# `make test` takes fixed seeds, so that it does not depend on luck; by hand, these look further.
ROUNDS := 10
random: $(READY)
	@for round in $$(seq $(ROUNDS)); do \
	    $(PY) -m pytest -q -m hypothesis --hypothesis-profile=random || exit 1; \
	done

doctor: $(READY)
	@$(PY) -m ortboost doctor

zoo: $(READY) $(STOCK_READY)
	@[ -d .venv-zoo ] || sh tools/zoo/setup.sh .venv-zoo
	@OMP_NUM_THREADS=1 .venv-zoo/bin/python -m tools.zoo.gather $(if $(ONLY),--only $(ONLY))
	@$(PY) -m tools.zoo.run $(if $(ONLY),--only $(ONLY) --again)

$(READY): pyproject.toml tools/setup_env.sh
	@sh tools/setup_env.sh $(VENV) training
	@touch $@

$(STOCK_READY): pyproject.toml tools/setup_env.sh
	@sh tools/setup_env.sh $(STOCK) stock
	@touch $@

clean:
	rm -rf $(VENV) $(STOCK) runs build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
