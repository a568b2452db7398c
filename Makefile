.DEFAULT_GOAL := help
PY := .venv/bin/python
# Files are UTF-8 whatever the locale, and so is what the story says.
export PYTHONUTF8 := 1

.PHONY: help demo up down status clean test check clients suites bench-api bench-kv bench-partitions bench-rollout bench-store chaos faults fuzz lock machines setup setup-dev

help: ## Show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-10s %s\n", $$1, $$2}'

demo: setup ## One conversation survives a real model upgrade, told step by step (real Postgres, Celery, vLLM)
	@$(PY) -m demo

up: setup ## Start the whole stack on this machine and leave it running (API on 127.0.0.1:8000)
	@test -n "$$EVERTURN_MODEL" || $(PY) -m demo.checkpoints --root .everturn/checkpoints >/dev/null
	@$(PY) -m stack up --model "$${EVERTURN_MODEL:-.everturn/checkpoints/v12}"

down: ## Stop what `make up` started; data stays in .everturn/
	@test ! -x $(PY) || $(PY) -m stack down

status: setup ## What of the stack runs, and where its logs are
	@$(PY) -m stack status

clean: down ## Stop the stack and delete its data, keys, KV and checkpoints (.everturn/)
	@test ! -x $(PY) || $(PY) -m stack clean

test: setup-dev ## Install what the tests need and run all of them, real vLLM included
	@$(PY) -m pytest -n 4 --dist loadscope

check: setup-dev ## Static checks: ruff, mypy, import-linter, deptry, squawk
	@scripts/check.sh

clients: ## Try openai-agents, LangChain and LiteLLM against what `make up` started, in environments of their own, as the tests do
	@scripts/clients.sh

suites: ## Run the suites of Open Responses and of OGX against what `make up` started: OPEN_RESPONSES=/path OGX=/path make suites
	@scripts/suites.sh

bench-kv: setup-dev ## What stored KV gains and what the guard costs, on real vLLM; the last line is JSON
	@test -d .everturn/checkpoints/v12 || $(PY) -m demo.checkpoints --root .everturn/checkpoints >/dev/null
	@$(PY) -m bench.kv

bench-api: setup-dev ## What the service adds to vLLM, what 1,000 streams weigh, whether memory stays flat; the last line is JSON
	@test -d .everturn/checkpoints/v12 || $(PY) -m demo.checkpoints --root .everturn/checkpoints >/dev/null
	@$(PY) -m bench.api

bench-store: setup-dev ## The store against bare psycopg and its peers, its growth, and the audit over a million events; the last line is JSON
	@$(PY) -m bench.store

bench-rollout: setup-dev ## A live load through v12 to v13 on real vLLM, two baselines, rebuilds and the service by themselves; the last line is JSON
	@test -d .everturn/checkpoints/v12 || $(PY) -m demo.checkpoints --root .everturn/checkpoints >/dev/null
	@$(PY) -m bench.rollout

bench-partitions: setup-dev ## Events in one table and in hash partitions, side by side; the last line is JSON
	@$(PY) -m bench.partitions

chaos: setup-dev ## Kill service, worker and PostgreSQL at every message of a turn, some 60 minutes; the last line is JSON
	@$(PY) -m bench.chaos

faults: setup-dev ## Kill, stop, exchange and cut off processes at steps of turns, rebuilds and splits, by 300 seeds, some 25 minutes; the last line is JSON
	@$(PY) -m tests.faults

fuzz: setup-dev ## Manifests and blocks of stored KV, damaged, forged and drawn, 100,000 of each; the last line is JSON
	@$(PY) -m bench.fuzz

machines: setup-dev ## The state machines of the store and the flows, for longer than CI has time for
	@$(PY) -m bench.machines

lock: setup-dev ## Resolve pyproject.toml anew into the requirements files
	@$(PY) scripts/lock.py

setup:
	@scripts/setup.sh

setup-dev:
	@scripts/setup.sh dev
