# One line each. `make setup LOCK=cuda12` (or cuda13) for a GPU with network; `make PYTHON=...` for another Python.
PYTHON ?= python3.11
LOCK ?= cpu
VENV := .venv/bin/python
STAMP := .venv/installed-$(LOCK)

.PHONY: setup smoke test lint figures report wheelhouse lock

setup: $(STAMP)

$(STAMP): requirements/$(LOCK).txt
	$(PYTHON) -m venv .venv
	$(VENV) -m pip install -q -r $<
	$(VENV) -m pip install -q --no-deps --no-build-isolation -e .
	$(VENV) requirements/nvdisasm.py
	touch $@

smoke: setup
	$(VENV) -m harness run config/smoke.yaml

test: setup
	$(VENV) -m pytest -n 2 --dist loadfile

lint: setup
	$(VENV) -m ruff check . && $(VENV) -m ruff format --check .
	$(VENV) -m snakefmt --check Snakefile workflows
	git ls-files '*.cu' '*.cuh' '*.h' '*.cpp' | xargs -d '\n' .venv/bin/clang-format --dry-run --Werror
	$(VENV) -m snakemake --lint --configfile config/smoke.yaml

figures: setup
	$(VENV) -m snakemake figures

report: setup
	$(VENV) -m snakemake report

wheelhouse: setup
	$(VENV) requirements/wheelhouse.py

lock: setup
	$(VENV) requirements/lock.py
