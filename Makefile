# Everything runs inside .venv, which is built once and again only when pyproject.toml or constraints.txt change.
# After the install no target needs a network. Only what a run imports is compiled: most modules never are.

VENV := .venv
# Each says that an installation came to its end. A .venv without any is what an interrupted one left: it is built anew.
PIPELINE := $(VENV)/.installed-pipeline
DEV := $(VENV)/.installed
PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3.14 python3; do $$p -c 'import sys; \
	print(sys._base_executable) if (3, 11) <= sys.version_info[:2] < (3, 15) else sys.exit(1)' 2>/dev/null && break; done)
WORKERS ?= auto
# uv takes a fifth of pip's time. For an index that only pip can reach (a keyring, a client certificate): INSTALLER=pip
INSTALLER ?= uv pip
# It does not read pip's settings, so it is told those that say where packages are.
PIP_TO_UV := s/\\n/ /g; s/^[^.]*\.index-url=/export UV_DEFAULT_INDEX=/p; s/^[^.]*\.extra-index-url=/export UV_EXTRA_INDEX_URL=/p; \
	s/^[^.]*\.cert=/export SSL_CERT_FILE=/p; s/^[^.]*\.trusted-host=/export UV_INSECURE_HOST=/p; \
	/^[^.]*\.find-links=/{y/ /,/; s/^[^.]*\.find-links=/export UV_FIND_LINKS=/p}
# What a run imports is compiled at once, on two cores: else its first process would do it alone, 30 seconds long.
IMPORTED := 'torch.export._trace, numba' sklearn.datasets mlflow.store.tracking.sqlalchemy_store 'simic.pipeline.engine, simic.audit.report'

# The commands below find the venv's python, dvc and simic first; nobody phones home; an empty HOME is no obstacle;
# uv chooses as pip does, the best version of all indexes.
export PATH := $(CURDIR)/$(VENV)/bin:$(PATH)
export HOME := $(if $(HOME),$(HOME),$(CURDIR)/.simic/home)
export DO_NOT_TRACK := 1
export DVC_NO_ANALYTICS := 1
export MLFLOW_DISABLE_TELEMETRY := true
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export UV_INDEX_STRATEGY := unsafe-best-match
# Else every process would compile what it imports: up to 9 seconds more for each.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help install run serve test test-slow check format prove bench faults mutants constraints clean

help:
	@echo 'make run      prepare, train, evaluate, audit; ends with where the report is'
	@echo 'make test     the tests            make check    lint, types, import contracts'
	@echo 'make format   rewrite formatting   make serve    Prefect server and runner, MLflow UI (PORT=, MLFLOW_PORT=)'
	@echo 'make prove    the long demonstrations (and make test-slow)    make clean    remove .venv and caches'
	@echo 'make faults   known faults put into the code: which test notices each? (an hour of one core)'
	@echo 'make bench    host trainings per core-second on this machine (some minutes)'
	@echo 'make mutants  small defects put into the code: which do the tests notice? (an hour)'

install: $(PIPELINE)

define installed
	@test -n "$(PYTHON)" || { echo 'simic needs Python 3.11 to 3.14 on PATH, or make PYTHON=/path/to/python' >&2; exit 2; }
	@mkdir -p "$(HOME)"
	@echo 'installing into $(VENV) (once, about 2 GB, a minute or two) ...'
	@test -e $(PIPELINE) -o -e $(DEV) && $(VENV)/bin/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV)
	@rm -f $(PIPELINE) $(DEV)
	@$(VENV)/bin/python -m uv --version >/dev/null 2>&1 || $(VENV)/bin/python -m pip install --quiet -c constraints.txt uv
	@eval "$$($(VENV)/bin/python -m pip config list | sort -r | sed -n '$(PIP_TO_UV)')"; \
	$(VENV)/bin/python -m $(INSTALLER) install --quiet --no-compile -c constraints.txt -e '.[$1]'
	@printf 'import %s\n' $(IMPORTED) | xargs -P 2 -I {} $(VENV)/bin/python -c '{}'
	@touch $2
endef

$(PIPELINE): pyproject.toml constraints.txt
	$(call installed,pipeline,$(PIPELINE))

$(DEV): pyproject.toml constraints.txt
	$(call installed,dev,$(PIPELINE) $(DEV))

# make run test with -j would install twice into one place.
.NOTPARALLEL:

run: $(PIPELINE)
	@simic run

# Other ports: make serve PORT=4300 MLFLOW_PORT=5100
serve: $(PIPELINE)
	@PORT=$(PORT) MLFLOW_PORT=$(MLFLOW_PORT) python -m flows.up

test: $(DEV)
	@python -m pytest -q -n $(WORKERS) --dist loadfile --no-loadscope-reorder

test-slow: $(DEV)
	@python -m pytest -q -m slow

prove: $(DEV)
	@python -m pytest -q -m prove

# Beside the results that are kept; all of the table is python -m benchmarks.scaling
bench: $(DEV)
	@python -m benchmarks.scaling --hosts 256 1024 --out .simic/bench.json

faults: $(DEV)
	@python -m tests.faults

# Other defects: make mutants RNG_SEED=2
mutants: $(DEV)
	@python -m benchmarks.mutants --rng-seed $(or $(RNG_SEED),1)

check: $(DEV)
	@ruff format --check .
	@ruff check .
	@python -m tests.house.reading
	@lint-imports
	@pyright --threads 2 --pythonpath $(VENV)/bin/python

format: $(DEV)
	@ruff format .
	@ruff check --fix .

# After a change of the dependencies: a fresh environment without constraints, frozen (no local versions such as +cpu,
# no CUDA wheels: torch pins those itself); then run every test. Prefect needs whenever from Python 3.13 on.
constraints:
	rm -rf .simic/fresh && $(PYTHON) -m venv .simic/fresh
	.simic/fresh/bin/python -m pip install --quiet uv -e '.[dev]' 'whenever<0.11'
	{ echo "# The versions tested together: pip install -c constraints.txt -e '.[dev]'; make constraints writes them anew."; \
	.simic/fresh/bin/python -m pip freeze --exclude-editable | grep -v '^nvidia-\|^cuda-\|^triton' | sed 's/+[a-z0-9.]*$$//'; \
	} > constraints.txt

# Results and records (checkpoints, reports, mlruns, ...) stay; remove those by hand.
clean:
	rm -rf $(VENV) build dist .pytest_cache .ruff_cache .hypothesis .import_linter_cache .coverage htmlcov *.egg-info
	find simic flows tests -name __pycache__ -type d -prune -exec rm -rf {} +
