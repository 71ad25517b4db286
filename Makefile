# Both targets set up everything on a machine that has only Python 3.11 or newer.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

# A machine without network: `make wheels` on one that has it, carry build/wheels along, `make accelerator` there.
LACKS ?= dp-accounting dm-tree
TARGET ?= 3.12
X86 := $(addprefix --platform manylinux,_2_28_x86_64 _2_27_x86_64 _2_17_x86_64 2014_x86_64)

.PHONY: accelerator wheels demo docs test quick test-all test-versions test-lowest test-newest mutate lint style parity release clean

demo: .venv/demo  ## the two-minute tour, offline on digits
	$(BIN)/python -m experiments.quickstart

docs: .venv/docs  ## the site, build/docs/index.html; notebooks run where the library or they changed
	$(BIN)/python -m sphinx -b html -E -W --keep-going -q docs build/docs
	@echo build/docs/index.html

test: .venv/dev lint  ## lint, types, and every test in parallel
	$(BIN)/python -m pytest -n auto --dist worksteal $(ARGS)

test-all: .venv/dev lint  ## what only a long run shows, too: 200 kills, long fuzzing, real weights, benches
	TANGENT_JAX_KILLS=200 TANGENT_JAX_FUZZ=1000 TANGENT_JAX_OPTIMISED=1 TANGENT_JAX_TYPECHECK=1 \
	  $(BIN)/python -m pytest -n auto --dist worksteal -m '' $(ARGS)

QUICK := tests/core tests/rules tests/train tests/test_linearization.py tests/models/test_oracle.py \
  tests/privacy/test_clipping.py tests/solver/test_optimum.py
VERSIONS := --quiet --disable-pip-version-check --editable . scikit-learn tensorboardX pytest hypothesis chex beartype
NEWEST ?= python3.13

test-versions:  ## both of those below
	$(MAKE) test-lowest
	$(MAKE) test-newest PYTHON=$(NEWEST)

test-lowest:  ## the quick tests with the lowest versions that pyproject.toml allows
	$(PYTHON) -m venv .venv-lowest
	.venv-lowest/bin/python -m pip install --constraint lowest.txt $(VERSIONS)
	JAX_PLATFORMS=cpu .venv-lowest/bin/python -m pytest -p no:cacheprovider $(QUICK)

test-newest:  ## the quick tests with the newest versions
	$(PYTHON) -m venv .venv-newest
	.venv-newest/bin/python -m pip install --upgrade $(VERSIONS)
	JAX_PLATFORMS=cpu .venv-newest/bin/python -m pytest -p no:cacheprovider $(QUICK)

quick: .venv/dev  ## a minute that says whether a change is sane
	$(BIN)/python -m pytest -n auto -m 'not slow and not long' tests/core tests/rules tests/linear tests/io/test_journal.py \
	  tests/test_linearization.py tests/privacy/test_clipping.py $(ARGS)

mutate: .venv/mutate  ## cosmic-ray on the files on which guarantees rest (hours; it continues): ARGS="journal keys" for two files
	$(BIN)/python tests/mutate.py $(ARGS)

lint: .venv/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/basedpyright
	PYTHONPATH=. $(BIN)/lint-imports

style: .venv/dev  ## docstrings, names, long and many-parameter functions: warnings to read, not a test
	$(BIN)/ruff check --exit-zero --extend-select D,N,C901,PLR0913 tangent_jax

parity: .venv/dev  ## also against PyTorch, timm, Hugging Face, jax_privacy and onnxruntime, which a user never needs
	$(PIP) torch==2.13.0
	$(PIP) --editable '.[parity,onnx]'
	$(PIP) --no-deps timm==1.0.31
	$(PIP) --no-deps --target build/programs torchvision==0.28.0 open_clip_torch==3.3.0 ftfy==6.3.1 wcwidth regex
	$(BIN)/python -m pip install --quiet --disable-pip-version-check pillow==12.3.0  # 13 resizes in these programs otherwise
	$(BIN)/python tests/models/make_architectures.py
	$(BIN)/python tests/models/parity.py
	$(BIN)/python tests/models/compatibility.py
	$(BIN)/python tests/models/naming_cases.py
	$(BIN)/python tests/models/make_fixtures.py
	$(BIN)/python tests/models/make_frozen_head.py
	$(BIN)/python -m pytest tests/exports tests/models tests/store tests/privacy/test_clipping.py \
	  -k 'hugging_face or jax_privacy or pytorch or onnx'
	$(PIP) pillow

release: .venv/dev  ## wheel and sdist in build/dist, checked, and installed in an empty environment, where README's first lines run
	rm -rf build/dist build/empty
	$(BIN)/python -m build --outdir build/dist .
	$(BIN)/python -m twine check --strict build/dist/*
	$(BIN)/check-wheel-contents build/dist/*.whl
	$(PYTHON) -m venv build/empty
	build/empty/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt "$$(echo build/dist/*.whl)[data]"
	$(BIN)/python tests/first_steps.py build/empty/bin/python

accelerator:  ## measures this machine's device with the JAX that $(PYTHON) has, in 15 minutes: docs/accelerators/DEVICE.md
	$(if $(wildcard build/wheels/*.whl),$(PYTHON) -m pip install --quiet --no-index --no-deps --upgrade --target build/site build/wheels/*.whl)
	PYTHONPATH=build/site $(PYTHON) -m experiments.bench accelerator --out=out/accelerator $(ARGS)
	mkdir -p docs/accelerators && cp out/accelerator/*.md docs/accelerators

wheels:  ## what such a machine lacks for private runs, which the measurement does without: LACKS="NAME ..." TARGET=its Python
	$(PYTHON) -m pip download --quiet --no-deps --only-binary=:all: --implementation cp --python-version $(TARGET) $(X86) \
	  --constraint constraints.txt --dest build/wheels $(LACKS)

.venv/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "make: Python must be 3.11 or newer; it is " + sys.version.split()[0] + ". Run make PYTHON=python3.12.")'
	$(PYTHON) -m venv .venv
	touch $@

.venv/demo: .venv/python pyproject.toml constraints.txt
	@echo "installing into .venv (a minute or two) ..."
	$(PIP) --editable '.[experiments]'
	touch $@

.venv/docs: .venv/python pyproject.toml constraints.txt
	@echo "installing into .venv (a minute or two) ..."
	$(PIP) --editable '.[docs]'
	touch $@ .venv/demo

.venv/dev: .venv/python pyproject.toml constraints.txt
	@echo "installing into .venv (a minute or two) ..."
	$(PIP) --editable '.[dev]'
	touch $@ .venv/demo .venv/docs

.venv/mutate: .venv/dev
	$(PIP) --editable '.[mutate]'
	touch $@

clean:
	rm -rf .venv .venv-lowest .venv-newest out build *.egg-info
