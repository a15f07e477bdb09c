# Two commands do all the set-up on a machine with Python 3.11+ and nothing else: `make quickstart` and `make test`.
PYTHON ?= python3
PIP_FLAGS ?= --quiet --disable-pip-version-check
BIN := .venv/bin
# uv installs faster; where there is none, pip does. UV= keeps to pip.
UV ?= $(shell command -v uv)
INSTALL = $(if $(UV),$(UV) pip install --quiet --python $(BIN)/python,$(BIN)/python -m pip install $(PIP_FLAGS))

ENGINE ?= embedded
PROCESSES ?= 2
# Images of containers often set it, and every process that a test or a run starts would then compile all of agentrl again.
unexport PYTHONDONTWRITEBYTECODE
# What mypy found, which it looks at again only where a file has changed.
MYPY_CACHE ?= $(CURDIR)/.build/mypy

.PHONY: install quickstart frozen-lake blackjack sglang sandboxes test gate test-fast soak lint docs pictures typed format bench bench-full nano-model nano-player clean

# What a user needs, without the tools of development: to train, to serve, and the environments that ship with agentrl.
install: .venv/installed
	@echo "agentrl is in .venv: . .venv/bin/activate && agentrl --help"

# make quickstart ENGINE=sglang trains on real SGLang servers, installed for the CPU if they are not there yet.
quickstart: .venv/installed $(if $(filter sglang,$(ENGINE)),sglang)
	rm -rf runs/quickstart
	$(BIN)/python -m agentrl.envs.calculator_env runs/quickstart/tasks
	$(BIN)/agentrl train --config workflows/quickstart.toml --model agentrl/models/nano \
		$(if $(filter sglang,$(ENGINE)),--config workflows/sglang_cpu.toml)
	@echo "look at it: $(BIN)/agentrl view runs/quickstart"

# The nano player learns a game of gymnasium: docs/environments.md has the figures.
frozen-lake blackjack: .venv/installed
	rm -rf runs/$@
	$(BIN)/agentrl train --config workflows/$(subst -,_,$@).toml

# SGLang for a CPU, in an environment of its own under ~/.cache/agentrl.
sglang:
	PYTHON=$(PYTHON) scripts/install_sglang_cpu.sh

# bubblewrap, a Docker engine and its default image, on a Debian machine without a registry. Needs root.
sandboxes:
	scripts/start_sandboxes.sh

# What lands a change: format, lint, types, and the gate's tests.
test: lint gate

# The tests that are not marked `soak`, in two processes, as much of it waits for servers. A test that fails is run once more, alone.
gate: .venv/ready
	$(BIN)/python scripts/run_tests.py --processes=$(PROCESSES)

# Under two minutes on two cores, for the everyday loop: without what is marked slow, and without what needs a server or a sandbox to be started.
# What is left waits more than it computes, so three processes share it.
test-fast: PROCESSES = 3
test-fast: .venv/ready
	$(BIN)/python scripts/run_tests.py --processes=$(PROCESSES) -m "not soak and not slow"

# What a release needs beside the gate: tests/soak.md says what it holds and how long each part takes. `make soak PART=proxy` runs one part. It installs what it needs.
soak: .venv/ready
	PYTHON=$(PYTHON) scripts/install_soak.sh
	$(BIN)/python scripts/soak.py $(PART)

lint: .venv/ready typed
	@test ! -s tests/flaky.txt || { echo "tests/flaky.txt names tests that leaned on chance: mend or move them, and empty it"; exit 1; }
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/python -m scripts.budgets
	cd .build/typed && MYPYPATH=. $(CURDIR)/$(BIN)/mypy --cache-dir $(MYPY_CACHE) --config-file $(CURDIR)/pyproject.toml -p agentrl -p recipes -p benchmarks
	cd .build/typed && PYTHONPATH=. $(CURDIR)/$(BIN)/lint-imports --config $(CURDIR)/pyproject.toml --no-cache --no-logo

# The documentation's site, in .build/site: a broken link, or a public name without an entry, ends the build.
docs: .venv/ready typed
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet --strict
	@echo "the site is in .build/site: open .build/site/index.html"

# The pictures of README.md that show a run: RUN is the directory of a finished one.
RUN ?= runs/quickstart
pictures: .venv/installed
	$(BIN)/python scripts/run_pictures.py $(RUN) docs/pictures

# mypy, import-linter and mkdocstrings follow files, not import hooks: they are shown the folders under the names they are
# imported by.
typed:
	@rm -rf .build/typed && mkdir -p .build/typed/agentrl
	@ln -s $(CURDIR)/agentrl/* .build/typed/agentrl/
	@ln -s $(CURDIR)/envs $(CURDIR)/sandboxes $(CURDIR)/trainer $(CURDIR)/workflows .build/typed/agentrl/
	@ln -s $(CURDIR)/recipes $(CURDIR)/benchmarks .build/typed/

format: .venv/ready
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# What a user gains, in one table: in 15 minutes, or with the sizes that docs/benchmarks.md has, in hours.
bench: .venv/ready
	$(BIN)/python benchmarks/bench.py

bench-full: .venv/ready
	$(BIN)/python benchmarks/bench.py --full

nano-model: .venv/ready
	$(BIN)/python -m recipes.nano_model agentrl/models/nano

nano-player: .venv/ready
	$(BIN)/python -m recipes.nano_player agentrl/models/nano_player

clean:
	rm -rf .venv .build build dist *.egg-info

# torch comes first and by its exact version, so that no other package draws in a build with CUDA.
.venv/installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "agentrl needs Python 3.11 or newer")'
	@echo "[1/3] making .venv with $$($(PYTHON) --version)"
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@echo "[2/3] installing torch: 0.8 GB on the disk where its build is for the CPU, several with CUDA"
	@$(INSTALL) $(shell grep -h '^torch==' constraints.txt)
	@echo "[3/3] installing agentrl and about 80 other packages: 0.6 GB on the disk, some minutes"
	@$(INSTALL) --constraint constraints.txt --editable '.[train,envs]'
	@touch .venv/installed

.venv/ready: .venv/installed
	@echo "[dev] installing what tests, lint and docs need: about 140 more packages, 0.8 GB on the disk, some minutes"
	@$(INSTALL) --constraint constraints.txt --editable '.[dev]'
	@touch .venv/ready
