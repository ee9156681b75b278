# One virtual environment at the root serves every target.
PYTHON ?= python3
BIN := .venv/bin
PACKAGES := core plugins/tiny plugins/direct plugins/classics plugins/leapalign plugins/flowbp plugins/grpo plugins/jagg plugins/lab plugins/report plugins/sd3 plugins/flux plugins/flux2 \
	plugins/qwen-image plugins/z-image plugins/rewards-clip plugins/rewards-vlm plugins/rewards-ocr plugins/rewards-remote plugins/trackers contrib/flowbp-hat contrib/flowbp-chain contrib/jagg-kriging \
	contrib/opponent-colours contrib/colourfulness contrib/soft-direct contrib/ddim-eta contrib/mixture contrib/markdown-log
TESTED := $(BIN)/.installed
DOCS := $(BIN)/.docs
OUT ?=

.PHONY: install demo test long lint bench clean docs

install: $(TESTED)

$(TESTED): constraints.txt $(addsuffix /pyproject.toml,$(PACKAGES))
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt \
		torch==2.13.0 numpy hatchling editables pytest pytest-xdist ruff mypy import-linter matplotlib wandb
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt \
		--no-build-isolation $(addprefix -e ./,$(PACKAGES))
	touch $(TESTED)

demo: install
	$(BIN)/headwater run plugins/flowbp/examples/demo.toml $(if $(OUT),--out $(OUT))

test: install
	$(BIN)/python -m pytest -m "not long" -n 2 --dist loadfile

long: install $(DOCS)
	$(BIN)/python -m pytest -m long -n 2 --dist loadfile

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy $(addsuffix /src,$(PACKAGES))
	$(BIN)/lint-imports

$(DOCS): $(TESTED)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt \
		mkdocs-material latex2mathml
	touch $(DOCS)

docs: $(DOCS)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

bench: install
	OMP_NUM_THREADS=1 $(BIN)/python bench/all.py

clean:
	rm -rf .venv site
