# Two commands do all the set-up on a machine with Python 3.11+ and nothing else: `make quickstart` and `make test`.
PYTHON ?= python3
PIP_FLAGS ?= --quiet --disable-pip-version-check
BIN := .venv/bin

ENGINE ?= embedded
PROCESSES ?= 2

.PHONY: quickstart frozen-lake blackjack sglang sandboxes test lint format bench nano-model nano-player clean

# make quickstart ENGINE=sglang trains on real SGLang servers, installed for the CPU if they are not there yet.
quickstart: .venv/ready $(if $(filter sglang,$(ENGINE)),sglang)
	rm -rf runs/quickstart
	$(BIN)/python -m agentrl.envs.calculator runs/quickstart/tasks
	$(BIN)/agentrl train --config workflows/quickstart.toml --model agentrl/models/nano \
		$(if $(filter sglang,$(ENGINE)),--config workflows/sglang_cpu.toml)

# The nano player learns a game of gymnasium: docs/environments.md has the figures.
frozen-lake blackjack: .venv/ready
	rm -rf runs/$@
	$(BIN)/agentrl train --config workflows/$(subst -,_,$@).toml

# SGLang for a CPU, in an environment of its own under ~/.cache/agentrl.
sglang:
	PYTHON=$(PYTHON) scripts/install_sglang_cpu.sh

# bubblewrap, a Docker engine and its default image, on a Debian machine without a registry. Needs root.
sandboxes:
	scripts/start_sandboxes.sh

# Two processes share the suite: much of it waits for servers. `make test PROCESSES=0` runs it in one.
test: .venv/ready lint
	$(BIN)/python -m pytest --numprocesses=$(PROCESSES)

# mypy and import-linter follow files, not import hooks: they are shown the folders under the names they are imported by.
lint: .venv/ready
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	rm -rf .build/typed && mkdir -p .build/typed/agentrl
	ln -s $(CURDIR)/agentrl/* .build/typed/agentrl/
	ln -s $(CURDIR)/envs $(CURDIR)/sandboxes $(CURDIR)/trainer $(CURDIR)/workflows .build/typed/agentrl/
	cd .build/typed && MYPYPATH=. $(CURDIR)/$(BIN)/mypy --cache-dir $(CURDIR)/.build/mypy --config-file $(CURDIR)/pyproject.toml -p agentrl
	cd .build/typed && PYTHONPATH=. $(CURDIR)/$(BIN)/lint-imports --config $(CURDIR)/pyproject.toml --no-cache --no-logo

format: .venv/ready
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: .venv/ready
	$(BIN)/python benchmarks/proxy_overhead.py
	$(BIN)/python benchmarks/async_vs_sync.py

nano-model: .venv/ready
	$(BIN)/python -m agentrl.trainer.nano_model agentrl/models/nano

nano-player: .venv/ready
	$(BIN)/python -m agentrl.trainer.nano_player agentrl/models/nano_player

clean:
	rm -rf .venv .build build dist *.egg-info

# torch comes first and by its exact version, so that no other package draws in a build with CUDA.
.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "agentrl needs Python 3.11 or newer")'
	$(PYTHON) -m venv .venv
	$(BIN)/pip install $(PIP_FLAGS) $(shell grep -h '^torch==' constraints.txt)
	$(BIN)/pip install $(PIP_FLAGS) --constraint constraints.txt --editable '.[dev]'
	touch .venv/ready
