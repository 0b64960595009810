# Everything runs in .venv, made on first use from Python 3.11 or later. `make` alone prints this help.
MAKEFLAGS += --no-print-directory
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

# The first interpreter that runs and is new enough; a version manager's shim may exist and not run.
PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3 python; do \
	"$$p" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && { echo "$$p"; break; }; done)
PY := .venv/bin/python
PIP := $(PY) -m pip install --quiet --disable-pip-version-check -c constraints.txt
# Bytecode is kept: tests start hundreds of interpreters, each of which would compile the suite anew.
unexport PYTHONDONTWRITEBYTECODE
PATHS := -e ./core -e ./plugins/apo -e ./plugins/cluster -e ./plugins/gateway -e ./plugins/programs -e ./plugins/schedules -e ./plugins/testing -e ./plugins/audit -e ./plugins/dashboard -e ./plugins/distill -e ./plugins/examples -e ./plugins/judge -e ./plugins/kubernetes -e ./plugins/local -e ./plugins/openenv -e ./plugins/postgres -e ./plugins/ray -e ./plugins/tinker -e ./plugins/trackers -e ./plugins/v03 -e ./plugins/verifiers -e ./plugins/verl -e "./adapters/autogen[instruments,mcp]" $(patsubst %/pyproject.toml,-e ./%,$(filter-out adapters/autogen/%,$(wildcard adapters/*/pyproject.toml)))
MANIFESTS := constraints.txt pyproject.toml $(wildcard core/pyproject.toml plugins/*/pyproject.toml adapters/*/pyproject.toml)

.PHONY: bench/tree $(shell sed -n 's/^\([a-z-]*\):.*\#\# .*/\1/p' $(firstword $(MAKEFILE_LIST)))

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

demo: .venv/demo ## an agent gets better on this machine: evaluate, train, evaluate; the last line is JSON
	@line=$$(.venv/bin/agl train --config examples/calc_x/cpu.yaml $(foreach s,$(SET),--set $(s))) && status=0 || status=$$?; \
	echo "Next: make demo-real, the same with a pretrained model and real questions (SmolLM2-135M, fetched: 93 MB)" >&2; \
	if [ -n "$$line" ]; then echo "$${line%\}}, \"next\": \"make demo-real\"}"; fi; exit $$status

demo-real: .venv/spider ## a pretrained model learns from real questions: fetch, evaluate, train, evaluate; the last line is JSON
	@$(PY) examples/router/demo.py $(foreach s,$(SET),--set $(s))

one-file: .venv/demo ## the whole idea in one file: gateway, agent, credit, update; the last line is JSON
	@$(PY) examples/one_file.py

spider: .venv/spider ## a LangGraph agent that corrects its SQL gets better; the last line is JSON
	@$(PY) examples/spider/demo.py

spider-real: .venv/spider ## a pretrained model writes SQL for databases it never saw: by examples, then by reward (SPIDER="--seed 2"); the last line is JSON
	@$(PY) examples/spider/real/demo.py $(SPIDER)

search: .venv/spider ## an agent looks things up in two documents, over a real corpus: evaluate, train, evaluate; the last line is JSON
	@$(PY) examples/search/demo.py $(foreach s,$(SET),--set $(s))

desk: .venv/demo ## a service desk learns the rules of its policy document, graded by its database: evaluate, train, evaluate; the last line is JSON
	@$(PY) examples/desk/demo.py $(foreach s,$(SET),--set $(s))

text-world: .venv/text-world ## an agent with notes of its own plays TextWorld's cooking games: evaluate, train, evaluate; the last line is JSON
	@$(PY) examples/text_world/demo.py $(foreach s,$(SET),--set $(s))

test: .venv/test ## the test suite, a sample of its long tables and property tests (some: TESTS=tests/core/credit)
	@$(PY) -m pytest -q -n 4 --dist worksteal $(TESTS)

test-slow: .venv/test ## what `make test` leaves out: whole runs, the rest of the tables, all examples of each property (a half: PART=1/2)
	@$(PY) -m pytest -q -n 4 --dist worksteal -m "(slow or hypothesis) and not nightly" --hypothesis-profile thorough $(if $(PART),--part $(PART))

test-nightly: .venv/test ## policies rebuilt from nothing, whole demos, drills with verl: a minute or more each
	@$(PY) -m pytest -q -m nightly

environments: ## the environments of other targets, each made once (some: NAMES="latest verl")
	@$(PYTHON) scripts/environment $(or $(NAMES),latest verl)

test-adapters: ## every adapter's contract in its environments (some: ENVS="latest crewai"); the last line is JSON
	@python=$$($(PYTHON) scripts/environment $(firstword $(ENVS) latest)) && "$$python" scripts/adapters.py $(ENVS)

werewolf: .venv/werewolf ## wolves learn against a scripted town, 1,000 games before and after; the last line is JSON
	@PYTHONPATH=examples $(PY) -m werewolf.demo $(foreach s,$(SET),--set $(s))

drills: .venv/test ## kill -9 over store, gateways, runners, trainer and PostgreSQL, on both databases (KILLS=200 SEED=1); the last line is JSON
	@$(PY) tests/drills/all.py --kills $(or $(KILLS),200) --seed $(or $(SEED),1) --postgres-python "$(PY)"

drills-core: .venv/demo ## kill -9 trainer, runner and store at random; the last line is JSON
	@$(PY) tests/drills/core.py

truth: .venv/demo ## runs of every kind, computed again by code that shares nothing with the product (some: RUNS="grpo lora"); the last line is JSON
	@$(PY) tests/referee/truth.py $(if $(RUNS),--only "$(RUNS)")

drill-tinker: ## kill -9 a run and its server of the Tinker API (KILLS=20 SEED=1); the last line is JSON
	@python=$$($(PYTHON) scripts/environment tinker) && "$$python" tests/drills/tinker_api.py --kills $(or $(KILLS),20) --seed $(or $(SEED),1)

drill-verify: .venv/demo ## some fifty edits of a copy of the newest run, each named; the last line is JSON
	@$(PY) tests/drills/edited.py

apo: .venv/spider ## prompts are searched, one search is killed and goes on (some: TASKS="room_selector"); the last line is JSON
	@PYTHONPATH=examples $(PY) bench/apo/run.py $(TASKS)

faults: .venv/test ## each fault that was found and mended, by its tests (some: FAULTS="A1 B2"); the last line is JSON
	@$(PY) scripts/faults.py $(FAULTS)

failing: .venv/demo ## an agent that fails in a fifth of its attempts beside a healthy one; the last line is JSON
	@$(PY) bench/failing_agent/run.py

surroundings: .venv/demo ## a small run behind a dead proxy, in other locales, without a home, over IPv6, by each Python (some: NAMES="proxy gbk"); the last line is JSON
	@$(PY) bench/surroundings.py $(NAMES)

hostile: .venv/demo ## agents that misbehave in every way we know, beside the healthy one; the last line is JSON
	@$(PY) bench/hostile_agents/run.py

lint: .venv/lint ## ruff, mypy --strict, import contracts
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .
	@$(PY) -m mypy
	@.venv/bin/lint-imports
	@$(PY) scripts/size.py --check >/dev/null

fix: .venv/lint ## what ruff can mend by itself
	@$(PY) -m ruff check --fix .
	@$(PY) -m ruff format .

size: .venv/lint ## lines and files of core, and what a training imports of it; the last line is JSON
	@$(PY) scripts/size.py

coverage: .venv/demo .venv/lint ## the share of core's function bodies that a small run executes; the last line is JSON
	@$(PY) scripts/demo_coverage.py

core-alone: .venv/test ## core trains and its tests pass without a plugin, each plugin's with itself (some: PARTS="demo core audit"); the last line is JSON
	@$(PY) scripts/core_alone.py $(PARTS)

schema: .venv/test ## docs/run_config.schema.json and the keywords of Trainer, which editors check by
	@$(PY) scripts/run_config_schema.py

docs: ## the documentation site in dist/site, its warnings as errors; the last line is JSON
	@python=$$($(PYTHON) scripts/environment docs) && "$$python" scripts/site/build.py

notebooks: ## every notebook of examples/notebooks, executed (some: NAMES="prompts"); the last line is JSON
	@python=$$($(PYTHON) scripts/environment notebooks) && "$$python" scripts/notebooks.py $(NAMES)

cast: .venv/spider ## the moving pictures of `make demo` and `make demo-real` in a terminal, recorded and drawn
	@python=$$($(PYTHON) scripts/environment cast) && \
	"$$python" scripts/cast.py --seconds 24 --about "The agent is evaluated, trained for 40 steps of GRPO on the CPU, and evaluated again; the reward of held-out tasks rises." docs/images/demo.svg -- make demo && \
	"$$python" scripts/cast.py --seconds 24 --about "SmolLM2-135M is evaluated on 532 questions, trained for 48 steps of GRPO on the CPU, and evaluated again; the reward of held-out questions rises." --to result.json docs/images/demo-real.svg -- make demo-real

install-lines: ## every install command of README and docs in an empty environment; the last line is JSON
	@$(PYTHON) scripts/install_lines.py

wheels: ## a wheel of every distribution, in dist/
	@python=$$($(PYTHON) scripts/environment wheels) && PYTHON="$$python" scripts/wheels dist

test-export: .venv/test ## what agl export writes, in transformers, a real vLLM and llama.cpp (needs npm); the last line is JSON
	@$(PY) bench/exported.py

guess: .venv/test ## natural guesses at keys, commands and models, each of which must be led to what is right; the last line is JSON
	@$(PY) tests/guess/guesses.py

readme: ## every command and block of README, in empty environments; the last line is JSON
	@$(PYTHON) scripts/readme.py $(if $(BLOCKS),--only $(BLOCKS))

first-hour: ## the commands of docs/first-hour.md, from an empty folder; the last line is JSON
	@$(PYTHON) scripts/first_hour.py

first-own-agent: ## a project of `agl init` in each framework, from wheels and an empty folder: checked, trained, better (some: FRAMEWORKS="langgraph openai"); the last line is JSON
	@$(PYTHON) bench/first_own_agent/run.py $(FRAMEWORKS)

quickstarts: .venv/demo ## the quickstart of every framework, trained on CPU (some: FRAMEWORKS="openai"); the last line is JSON
	@$(PY) bench/quickstarts.py $(FRAMEWORKS)

test-command: .venv/demo ## programs that import nothing of ours, trained on CPU (some: PROGRAMS="perl node"); the last line is JSON
	@$(PY) bench/trained_commands.py $(PROGRAMS)

trained-programs: .venv/demo ## programs of frameworks, trained on CPU (some: PROGRAMS="smolagents"); the last line is JSON
	@$(PY) bench/trained_programs.py $(PROGRAMS)

programs: .venv/demo ## programs of other people, and in the shape of theirs, under `agl run` (some: PROGRAMS="…"); the last line is JSON
	@$(PY) bench/programs/run.py $(PROGRAMS)

test-former: ## programs for Agent Lightning 0.1 to 0.3, file for file as they were published (some: PROGRAMS="apo"); the last line is JSON
	@python=$$($(PYTHON) scripts/environment former) && PYTHONPATH=.:tests "$$python" -m pytest -q -m "" tests/adapters/other_clients/test_litellm.py >&2 && "$$python" bench/former/run.py $(PROGRAMS)

test-doors: .venv/demo ## programs for Agent Lightning 1.0, Agent Framework's lab package and AgentScope's tuner, trained for three steps each (some: DOORS="shell"); the last line is JSON
	@$(PY) bench/doors/run.py $(DOORS)

test-node: .venv/test ## programs in JavaScript as commands, under `agl run` and at the gateway; the last line is JSON
	@folder=$$(scripts/node_clients) && AGL_NODE_DIR="$$folder" $(PY) -m pytest -q -n 2 tests/adapters/other_clients/test_node_clients.py >&2 && $(PY) bench/programs/node.py

test-semantic-kernel: ## Semantic Kernel's agents under `agl run`, in its environment
	@python=$$($(PYTHON) scripts/environment semantic_kernel) && PYTHONPATH=.:tests "$$python" -m pytest -q -m "" tests/adapters/programs/test_programs.py -k semantic

test-verifiers: ## environments of verifiers as dataset, agent and reward, in their environment; the last line is JSON
	@python=$$($(PYTHON) scripts/environment verifiers) && "$$python" -m pytest -q -m "" plugins/verifiers/tests >&2 && "$$python" bench/trained_programs.py verifiers

test-openenv: ## environments of OpenEnv as dataset, agent and reward, in their environment; the last line is JSON
	@python=$$($(PYTHON) scripts/environment openenv) && "$$python" -m pytest -q -m "" plugins/openenv/tests >&2 && "$$python" bench/trained_programs.py openenv

test-environments: .venv/test ## environments of verifiers, reasoning-gym, OpenEnv and Harbor and an MCP server, each trained for three steps, and Harbor's own runner (some: ENVIRONMENTS="harbor"); the last line is JSON
	@$(PY) bench/environments/run.py $(ENVIRONMENTS)

test-postgres: .venv/test ## the store in PostgreSQL: contract, state machine, kill -9 of server and writers (KILLS=12); the last line is JSON
	@PYTHONPATH=.:tests $(PY) bench/postgres.py --kills $(or $(KILLS),12)

test-import: ## traces of other tools, written by their libraries and read back; the last line is JSON
	@python=$$($(PYTHON) scripts/environment imports) && "$$python" -m pytest -q -m "" plugins/audit/tests/history/importing >&2 && "$$python" bench/importing.py

test-verl: .venv/demo ## verl's own trainer trains the demo's agent on CPU (fewer: STEPS=3); the last line is JSON
	@$(PY) bench/verl_calc_x.py --steps $(or $(STEPS),16)

test-verl-inside: ## the tests of what runs inside verl, in its environment
	@python=$$($(PYTHON) scripts/environment verl) && "$$python" -m pytest -q plugins/verl/tests/inside

verl-compose: ## every documented GPU configuration of verl, as far as a CPU goes; the last line is JSON
	@python=$$($(PYTHON) scripts/environment verl) && "$$python" bench/verl_compose/run.py

distill: .venv/demo ## a trained policy teaches the untrained one without any reward, then a policy itself by a hint; the last line is JSON
	@$(PY) bench/distill/run.py $(DISTILL)

behaviour: .venv/demo ## rewards that make an agent worse raise their alarms, the examples none; the last line is JSON
	@$(PY) bench/behaviour/run.py $(BEHAVIOUR)

test-trackers: ## TensorBoard, wandb, MLflow and Trackio read back what trackers wrote, in their environment
	@python=$$($(PYTHON) scripts/environment trackers) && "$$python" -m pytest -q -n 2 plugins/trackers/tests

test-kubernetes: ## rollouts as Jobs at an API server that runs them, and manifests by the published schemas; the last line is JSON
	@python=$$($(PYTHON) scripts/environment kubernetes) && PYTHONPATH=.:tests:examples "$$python" bench/kubernetes.py

test-ray: ## runners as actors of a Ray cluster, killed and replaced, in the environment of verl; the last line is JSON
	@python=$$($(PYTHON) scripts/environment verl) && PYTHONPATH=.:tests "$$python" bench/ray_runners.py

test-quantised: .venv/spider ## an agent learns by LoRA over a base in float32, bfloat16, 8 and 4 bits (EXAMPLE=router STEPS=12 SEED=1); the last line is JSON
	@$(PY) bench/quantized.py --example $(or $(EXAMPLE),calc_x) $(addprefix --steps ,$(STEPS)) --seed $(or $(SEED),1)

test-tinker: ## the client's tests, then calc_x's agent learns on our server of the Tinker API and on skyrl-tx (fewer: STEPS=8); the last line is JSON
	@python=$$($(PYTHON) scripts/environment tinker) && PYTHONPATH=.:tests "$$python" -m pytest -q -m "" plugins/tinker/tests >&2 && "$$python" bench/tinker/learning.py --steps $(or $(STEPS),12)

test-tinker-parity: ## the same rows through the drivers local, tinker and verl: gradients of LoRA (RECIPES="grpo gspo kl reinforce"); the last line is JSON
	@python=$$($(PYTHON) scripts/environment tinker) && "$$python" bench/tinker/parity.py $(if $(RECIPES),--recipes $(RECIPES))

test-tinker-cookbook: ## recipes of Tinker's cookbook, unchanged, on our server; the last line is JSON
	@python=$$($(PYTHON) scripts/environment tinker) && "$$python" bench/tinker/cookbook.py

test-storage: ## checkpoints and exports on S3, by a server that answers as S3 does; the last line is JSON
	@python=$$($(PYTHON) scripts/environment storage) && PYTHONPATH=.:tests "$$python" bench/storage.py

test-face: .venv/demo .venv/test ## a line for each promise and each name of v0.3; the last line is JSON
	@$(PY) scripts/face.py

trust: .venv/demo ## what an attacking agent of each kind reaches, beside the table of SECURITY.md; the last line is JSON
	@python=$$($(PYTHON) scripts/environment kubernetes) && PYTHONPATH=.:tests "$$python" tests/trust/run.py $(KINDS)

test-sandbox: .venv/test ## ways out of a sandbox, tried as root and as another user (some: NAMES="loopback fork_bomb"); the last line is JSON
	@$(PY) plugins/programs/tests/sandbox/run.py $(NAMES)

test-access: .venv/test ## who may do what at the store's server, and schemathesis on its OpenAPI document (fewer: EXAMPLES=3); the last line is JSON
	@python=$$($(PYTHON) scripts/environment openapi) && PYTHONPATH=.:tests $(PY) bench/access/run.py --openapi-python "$$python" --examples $(or $(EXAMPLES),12) --seed $(or $(SEED),1)

openapi: .venv/test ## docs/store-openapi.json, the store's server for other clients
	@$(PY) scripts/openapi.py

test-dashboard: .venv/spider .venv/werewolf ## the dashboard in Chromium, over a run that trains meanwhile (SCREENSHOTS=folder); the last line is JSON
	@python=$$($(PYTHON) scripts/environment browser) && "$$python" bench/dashboard/run.py $(if $(SCREENSHOTS),--screenshots $(SCREENSHOTS))

screens: .venv/demo ## README, the site's first page, `agl init` and the dashboard at 1440 and 390 pixels, in docs/images/screens (after `make docs`; RUN=runs/NAME); the last line is JSON
	@python=$$($(PYTHON) scripts/environment browser) && "$$python" bench/screens.py $(RUN)

test-agentops: ## AgentOps' real client beside capture, in its environment
	@python=$$($(PYTHON) scripts/environment agentops) && PYTHONPATH=.:tests "$$python" -m pytest -q tests/adapters/other_clients/test_agentops.py

test-claude-agent-sdk: ## the Claude Agent SDK as a program and in a rollout, with a scripted model, in its environment
	@python=$$($(PYTHON) scripts/environment claude_agent_sdk) && PYTHONPATH=.:tests "$$python" -m pytest -q tests/adapters/other_clients/test_claude_agent_sdk.py

drill-verl: .venv/demo ## kill -9 trainer, verl, a worker, its engine, and the store; the last line is JSON
	@$(PY) tests/drills/verl.py

test-vllm: ## the gateway and capture before a real vLLM on CPU; the last line is JSON
	@python=$$($(PYTHON) scripts/environment latest) && "$$python" bench/real_vllm/run.py

test-vllm-engine: .venv/demo ## the local driver trains calc_x with a vLLM on CPU as its engine, by all weights and by LoRA (STEPS=8 ARMS="whole lora"); the last line is JSON
	@$(PY) bench/vllm_engine.py --steps $(or $(STEPS),8) --arms $(or $(ARMS),whole lora)

test-templates: .venv/demo ## published chat templates: calls read back, prefixes, and an agent that learns through two; the last line is JSON
	@$(PY) bench/templates.py

test-structured: ## structured output and forced tools of each framework, served and trained; the last line is JSON
	@python=$$($(PYTHON) scripts/environment latest) && "$$python" bench/structured/run.py

real-data: .venv/demo ## the agent over real SVAMP and GSM8K problems; the last line is JSON
	@$(PY) examples/calc_x/real_data.py

svamp-real: .venv/demo ## a pretrained model learns word problems, by examples and by reward; the last line is JSON
	@$(PY) examples/word_problems/demo.py $(SVAMP)

seeds: .venv/demo ## the demo for seeds 1, 2 and 3; the last line is JSON
	@$(PY) bench/calc_x_seeds/run.py

bench: .venv/demo ## start-up times and install size of the core; the last line is JSON
	@$(PY) bench/import_time.py --install

bench-records: .venv/demo ## what agents of 10 to 80 turns cost in bytes, CPU and memory; the last line is JSON
	@$(PY) bench/records.py

bench-gateway: .venv/demo ## a recorded call at the gateway: CPU, rate, latency, streams, growing prompts (SECONDS=60 each); the last line is JSON
	@$(PY) bench/gateway.py --seconds $(or $(SECONDS),60)

bench-store: .venv/demo ## bytes, spans, leases and cycles of the store (SECONDS=60 for each over HTTP); the last line is JSON
	@$(PY) bench/store.py --seconds $(or $(SECONDS),60)

bench-rollouts: .venv/demo ## rollouts of an agent that does nothing, in one process and over a store server (SECONDS=60 each); the last line is JSON
	@$(PY) bench/rollouts.py --seconds $(or $(SECONDS),60)

bench-step: .venv/demo ## a step of 512 rollouts of 20 calls, from the store's file to verl's process; the last line is JSON
	@$(PY) bench/step.py $(STEP)

bench-algorithms: .venv/demo .venv/werewolf ## every recipe, and what learns from stored rollouts, with one budget (some: RECIPES="grpo dpo" SEEDS="1"); the last line is JSON
	@$(PY) bench/algorithms/run.py --recipes "$(RECIPES)" --seeds "$(SEEDS)" --tasks "$(TASKS)"

bench-judge: .venv/demo .venv/werewolf ## calc_x and a small game of werewolf learned from a judge's ranks alone, at three rates of noise, beside the reward, and a small model as judge (some: TASKS=calc_x SEEDS="1 2" STEPS=4); the last line is JSON
	@$(PY) bench/judge/learn.py $(if $(TASKS),--tasks $(TASKS)) $(if $(SEEDS),--seeds $(SEEDS)) $(if $(STEPS),--steps $(STEPS))

graders: .venv/test ## documented graders of OpenAI's give their documented scores, or are refused by name; the last line is JSON
	@$(PY) plugins/judge/tests/documented.py

bench/tree: bench-tree
bench-tree: .venv/demo ## tokens computed in an update of groups with long shared prompts; the last line is JSON
	@$(PY) bench/tree/run.py

memory: .venv/test ## peaks of real updates and what the formulas of memory say, for twelve combinations; the last line is JSON
	@$(PY) -m bench.memory

bench-launches: .venv/test ## what decoding and an update launch, copy and wait for on a device, counted without one; the last line is JSON
	@$(PY) -m bench.gpu.launches

gpu: .venv/test ## the local driver on a card: exact, and how fast; on the pretend device where there is none (some: GPU="--stages parity,decode"); the last line is JSON
	@$(PY) -m bench.gpu.run $(GPU)

bench-real: .venv/test ## a pretrained model of 135M beside transformers, vLLM and TRL; the last line is JSON
	@$(PY) bench/real_model/run.py

clean: ## remove what the targets made, .venv, .venvs and runs/ included
	@rm -rf .venv .venvs dist runs .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

# ------------------------------------------------------------------------------------------- environments
.venv/bin/python:
	@test -n "$(PYTHON)" || { echo "Python 3.11 or later is needed and was not found; make PYTHON=/path/to/python3.12" >&2; exit 2; }
	@echo "making .venv with $(PYTHON) ($$($(PYTHON) -V))" >&2
	@$(PYTHON) -m venv .venv || { rm -rf .venv; echo "$(PYTHON) cannot make environments; install its venv module" >&2; exit 2; }

.venv/demo: .venv/bin/python $(MANIFESTS)
	@echo "installing the suite into .venv (torch included: minutes the first time)" >&2
	@$(PIP) $(PATHS) -e ".[demo]"
	@touch $@

# The suite is there: what follows adds packages, those of the extra of the same name.
.venv/werewolf .venv/spider .venv/text-world .venv/test: .venv/demo
	@echo "installing what $(@F) needs beside the suite into .venv" >&2
	@$(PIP) -e ".[demo,$(@F)]"
	@touch $@

.venv/lint: .venv/demo
	@echo "installing the test tools and the linters into .venv" >&2
	@$(PIP) -e ".[demo,test,lint]"
	@touch .venv/test $@
