# Needs make, and Python 3.11 or 3.12 with pip. Everything is installed into .venv, once.
.POSIX:

ARGS =
VENV = .venv
BIN = $(VENV)/bin
PIP = $(BIN)/python -m pip --disable-pip-version-check

help:
	@echo 'make train [ARGS="SETTING=VALUE ..."]  install, then train (default: policy fast on the T-maze)'
	@echo 'make test  [ARGS="..."]                install what tests need, then run them all'
	@echo 'make check                             lint, format, types and import rules'
	@echo 'make bench [ARGS="core"]                benchmarks, and races against other systems'
	@echo 'make docs                              check the documentation and build its site in docs/_build'
	@echo 'make install                           only create the virtual environment'
	@echo 'make clean                             remove the virtual environment and caches'

train: $(VENV)/installed
	@$(BIN)/python tools/train.py $(ARGS)

test: $(VENV)/installed-test
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal $(ARGS)

check: $(VENV)/installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(VENV)/installed
	@$(BIN)/python -m bench $(ARGS)

docs: $(VENV)/installed-docs
	@$(BIN)/python docs/check.py
	@$(BIN)/python -m sphinx -W --keep-going -q -b html docs docs/_build
	@echo 'Open docs/_build/index.html'

install: $(VENV)/installed

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis build docs/_build *.egg-info

# A change of pyproject.toml reinstalls. Of pip's output, one line per package is shown.
$(VENV)/installed: pyproject.toml $(BIN)/python
	@EXTRA='[mettagrid]'; $(INSTALL)

$(VENV)/installed-test: $(VENV)/installed
	@EXTRA='[mettagrid,test]'; $(INSTALL)

$(VENV)/installed-dev: $(VENV)/installed
	@EXTRA='[mettagrid,dev]'; $(INSTALL)

$(VENV)/installed-docs: $(VENV)/installed
	@EXTRA='[mettagrid,docs]'; $(INSTALL)

INSTALL = echo "Installing engram$$EXTRA into $(VENV) (the first time this takes some minutes) ..."; rm -f $@; \
	{ $(PIP) install --progress-bar off -e ".$$EXTRA" && echo done >$@; } \
	| awk '/^Collecting/ {print "  " $$2; fflush()} /^Installing/ {print "  writing to disk ..."; fflush()}'; \
	test -s $@ || { echo "The installation failed: see the message above."; exit 1; }

# Some systems ship Python without ensurepip; there the system's own pip installs pip into the environment.
$(BIN)/python:
	@for python in python3.11 python3.12 python3 python; do \
		if $$python -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 13))' 2>/dev/null; then \
			echo "Creating $(VENV) with $$python ..."; \
			$$python -m venv $(VENV) 2>/dev/null && exit 0; \
			$$python -m venv --clear --without-pip $(VENV) && $$python -m pip --python $@ install pip && exit 0; \
			rm -rf $(VENV); \
		fi; \
	done; \
	echo 'Engram needs Python 3.11 or 3.12, with pip: install one and run make again.'; exit 1

.PHONY: help train test check bench docs install clean
