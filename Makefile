# The commands that matter are `make quickstart`, `make check` and `make test`. They set up what they need first.
#
# .venv        a Python from 3.10 to 3.12 with onnxruntime-training, both engines; on a newer Python
#              with the current onnxruntime, the portable engine
# .venv-stock  the newest Python that is here with the current onnxruntime, and what builds the documentation
# .venv-newest the same with the newest releases of everything, whatever constraints.txt says

VENV := .venv
STOCK := .venv-stock
NEWEST := .venv-newest
DISTRIBUTED := .venv-distributed
PY := $(VENV)/bin/python
READY := $(VENV)/.ready
STOCK_READY := $(STOCK)/.ready
# Each worker has a core of its own. Idle workers take over from busy ones at the end.
PARALLEL := -n auto --dist worksteal

check unit unit-training unit-stock newest coverage mutants random: export OMP_NUM_THREADS := 1

# Compiled once, not again in each of the hundred processes that tests start.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: distributed help quickstart check format test lint types unit unit-training unit-stock newest coverage \
    mutants random constraints docs notebooks release doctor zoo clean

help:
	@echo "make quickstart   set up, then train, validate and export a model on the digits"
	@echo "make check        before a commit: linter, type checker, and tests of what differs from main (BASE=main)"
	@echo "make test         set up, then linter, type checker and the whole test suite, with both runtimes"
	@echo "make unit         the whole test suite in .venv; make unit-stock: in .venv-stock"
	@echo "make distributed  the tests of several processes, in an environment with torch"
	@echo "make newest       the whole test suite with the newest releases of all dependencies"
	@echo "make coverage     which lines and branches the suite runs, with both runtimes; figures by file"
	@echo "make mutants      break a sample of the package, see whether the tests notice (SAMPLE=20)"
	@echo "make random       the property tests again and again, with other examples each time (ROUNDS=10)"
	@echo "make docs         the documentation as a site, build/site/index.html; broken links are errors"
	@echo "make notebooks    run the notebooks of docs/ and store what they answer"
	@echo "make format       let the formatter and the linter fix what they can"
	@echo "make constraints  write constraints.txt anew from the newest releases"
	@echo "make release      build the wheel and the sdist, and check them in an empty environment"
	@echo "make doctor       what this machine can do"
	@echo "make zoo          gather some eighty foreign models and measure them; an hour, and 3 GB of packages"
	@echo "make clean        remove the environments and everything that was made"

quickstart: $(READY)
	@$(PY) tools/quickstart.py

# Under a minute: the tests stop when their time is over, and say how many were left out.
BASE := main
check: lint types
	@files=$$($(PY) tools/tests_of.py --changed --base $(BASE)) && \
	    $(PY) -m pytest -q -n auto --budget 30 $$files

format: $(READY)
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .

# What does not depend on the runtime runs once, with the newest Python (tests/conftest.py).
test:
	@$(MAKE) --no-print-directory -j2 -Oline $(READY) $(STOCK_READY)
	@$(MAKE) --no-print-directory -j2 -Oline lint types docs
	@$(MAKE) --no-print-directory unit-training unit-stock

lint: $(READY)
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .

types: $(READY)
	$(PY) -m mypy

unit: $(READY)
	$(PY) -m pytest $(PARALLEL)

unit-training: $(READY)
	$(PY) -m pytest -q $(PARALLEL) --runtime-only

unit-stock: $(STOCK_READY)
	$(STOCK)/bin/python -m pytest -q $(PARALLEL)

newest:
	@CONSTRAINTS= sh tools/setup_env.sh $(NEWEST) stock
	$(NEWEST)/bin/python -m pytest -q $(PARALLEL)

# torch is an extra of a few hundred megabytes; without it these tests skip.
distributed: $(DISTRIBUTED)/.ready
	OMP_NUM_THREADS=1 $(DISTRIBUTED)/bin/python -m pytest -q \
	    $$(grep -rlE --include='test_*.py' 'importorskip\("torch"|@needs_torch' tests)

$(DISTRIBUTED)/.ready: pyproject.toml constraints.txt tools/setup_env.sh
	@EXTRAS=distributed sh tools/setup_env.sh $(DISTRIBUTED) stock
	@touch $@

# Both runtimes, and the processes that tests start: one set of figures.
coverage: $(READY) $(STOCK_READY)
	@rm -f .coverage .coverage.*
	$(PY) -m coverage run -m pytest -q --runtime-only
	$(STOCK)/bin/python -m coverage run -m pytest -q
	$(PY) -m coverage combine -q
	$(PY) -m coverage report

# In a work tree of its own, because the files change meanwhile.
SAMPLE := 20
MUTATED := ortboost/program ortboost/transforms ortboost/boosts ortboost/autodiff/portable/rules
mutants: $(READY)
	@git worktree add -q --detach .mutants HEAD
	@$(PY) .mutants/tools/mutate.py $(MUTATED) --sample $(SAMPLE); \
	    status=$$?; git worktree remove --force .mutants; exit $$status

# `make test` takes fixed seeds, so that it does not depend on luck; by hand, these look further.
ROUNDS := 10
random: $(READY)
	@for round in $$(seq $(ROUNDS)); do \
	    $(PY) -m pytest -q -m hypothesis --hypothesis-profile=random || exit 1; \
	done

# Without --quiet, which hides warnings from --strict, too. The variable silences an advertisement.
docs: $(STOCK_READY)
	NO_MKDOCS_2_WARNING=1 $(STOCK)/bin/python -m mkdocs build --strict

# Their outputs are stored, so that a code host shows them.
notebooks: $(STOCK_READY)
	OMP_NUM_THREADS=1 $(STOCK)/bin/python -m nbconvert --to notebook --execute --inplace \
	    --ExecutePreprocessor.record_timing=False --log-level=ERROR docs/notebooks/*.ipynb

constraints:
	@sh tools/make_constraints.sh

release: $(READY)
	@$(PY) tools/build_release.py

doctor: $(READY)
	@$(PY) -m ortboost doctor

zoo: $(READY) $(STOCK_READY)
	@[ -d .venv-zoo ] || sh tools/zoo/setup.sh .venv-zoo
	@OMP_NUM_THREADS=1 .venv-zoo/bin/python -m tools.zoo.gather $(if $(ONLY),--only $(ONLY))
	@$(PY) -m tools.zoo.run $(if $(ONLY),--only $(ONLY) --again)

$(READY): pyproject.toml constraints.txt tools/setup_env.sh
	@sh tools/setup_env.sh $(VENV) training
	@touch $@

$(STOCK_READY): pyproject.toml constraints.txt tools/setup_env.sh
	@EXTRAS=docs sh tools/setup_env.sh $(STOCK) stock
	@touch $@

clean:
	rm -rf $(VENV) $(STOCK) $(NEWEST) $(DISTRIBUTED) runs build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage .coverage.*
