"""The trainers of three words, and the early keys of a run's file."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import agentlightning as agl
from agentlightning.train.run_file import load_config
from agentlightning.types.base import ConfigError
from agl_examples import faces

TINY = Path(__file__).parents[3] / "examples" / "quickstart" / "policy"


@pytest.fixture
def fitted(monkeypatch: pytest.MonkeyPatch) -> list[tuple[agl.Trainer, Any, Any, Any]]:
    """What the trainers would have run."""
    found: list[tuple[agl.Trainer, Any, Any, Any]] = []

    def fit(self: agl.Trainer, *given: Any) -> dict[str, Any]:
        found.append((self, *given))
        return {"run_id": "x"}

    monkeypatch.setattr(agl.Trainer, "fit", fit)
    monkeypatch.delenv("AGL_MODEL", raising=False)
    return found


def test_grpo_and_rloo(fitted: list[Any]) -> None:
    config = agl.RLConfig(episodes=512, learning_rate=1e-4, batch_size=4, model=TINY)
    assert agl.GRPOTrainer(config).train(agl.Agent(), eval_tasks=["math"]) == {"run_id": "x"}
    agl.RLOOTrainer(config=config).train(agent=agl.Agent(), eval_tasks=[{"question": "?"}], val_tasks=["v"])
    (grpo, _, train, val), (rloo, _, own, held_out) = fitted
    training, backend = grpo.config.training, grpo.config.backend
    assert (training.algorithm, training.steps, training.batch_size) == ("grpo", 16, 4)
    assert backend.options == {"lr": 1e-4} and backend.policy == TINY
    assert (len(train), len(val)) == (160, 48)
    assert (rloo.config.training.algorithm, own, held_out) == ("rloo", [{"question": "?"}], ["v"])
    agl.GRPOTrainer(agl.RLConfig(algorithm="rloo", model=TINY, steps=3)).train(agl.Agent(), "reasoning")
    assert (fitted[2][0].config.training.algorithm, fitted[2][0].config.training.steps) == ("rloo", 3)


def test_the_model_is_the_given_one_the_environments_or_the_bundled(
    fitted: list[Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(faces, "fetch_pretrained", lambda name, plugins: TINY if name == "tiny" else None)
    agl.GRPOTrainer().train(agl.Agent(), ["math"])
    assert "the bundled policy is trained" in caplog.text
    assert (Path(fitted[0][0].config.backend.policy) / "model.safetensors").is_file()
    monkeypatch.setenv("AGL_MODEL", str(tmp_path))
    agl.GRPOTrainer().train(agl.Agent(), ["math"])
    assert fitted[1][0].config.backend.policy == tmp_path
    with pytest.raises(agl.UsageError, match="nowhere is no folder"):
        faces.model_folder("nowhere")


async def test_tasks_of_the_store(fitted: list[Any]) -> None:
    store = agl.open_store(":memory:")
    with pytest.raises(agl.UsageError, match="there are no tasks: give eval_tasks"):
        await asyncio.to_thread(agl.GRPOTrainer(agl.RLConfig(model=TINY), store=store).train, agl.Agent())
    for task in ("a", "b", "a"):
        await store.enqueue_rollout(task)
    await asyncio.to_thread(agl.GRPOTrainer(agl.RLConfig(model=TINY), store=store).train, agl.Agent())
    assert fitted[0][2] == ["a", "b"] and fitted[0][0].config.store is store
    await store.close()


def test_supervised_fine_tuning_is_that_of_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    class Driver:
        name = "local"

        @staticmethod
        def finetune(*given: Any) -> dict[str, Any]:
            asked.append(given)
            return {"policy": "out"}

    monkeypatch.setattr(faces, "pick", lambda known, kind, name: Driver)
    config = agl.RLConfig(model=TINY, learning_rate=1e-3)
    assert agl.SFTTrainer(config, epochs=2).train("chats.jsonl", "out") == {"policy": "out"}
    settings = {"batch_size": 8, "seed": 1, "epochs": 2, "lr": 1e-3}
    assert asked == [(str(TINY), "chats.jsonl", Path("out"), None, settings)]


def test_prompt_search_without_its_plugin_says_how_to_install_it() -> None:
    with pytest.raises(agl.UsageError, match=r"'apo' is not installed.*\./plugins/apo"):
        agl.APOTrainer(critic="policy").train(lambda task: 1.0, [1, 2], prompts={"p": "text"})
    with pytest.raises(agl.UsageError, match=r"agentlightning\.GEPA: it comes with agl-apo.*\./plugins/apo"):
        agl.GEPA(critic="policy")


EARLY = """
agent: {name: my-agent, type: openai}
training: {algorithm: grpo, episodes: 640, batch_size: 16, learning_rate: 1.0e-4}
environment: {eval_tasks: [math, reasoning]}
"""


def write(folder: Path, text: str) -> Path:
    (folder / "config.yaml").write_text(text)
    return folder / "config.yaml"


def test_a_file_with_the_early_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AGL_MODEL", raising=False)
    config = load_config(write(tmp_path, EARLY))
    assert (config.agent.name, config.agent.target) == ("my-agent", "agl_examples.bundled.agent:solve")
    assert (config.training.steps, config.training.batch_size) == (5, 16)
    assert (config.backend.driver, config.backend.policy) == ("local", "tiny")
    assert config.backend.options == {"lr": 1e-4}
    assert config.environment.train is not None
    assert config.environment.train.args == {"names": ["math", "reasoning"]}
    monkeypatch.setenv("AGL_MODEL", "elsewhere")
    assert load_config(write(tmp_path, EARLY)).backend.policy == "elsewhere"


TYPES = ("langchain", "langgraph", "autogen", "crewai", "openai-agents", "agentscope", "agent-framework")


@pytest.mark.parametrize("kind", TYPES)
def test_a_type_is_the_adapter_of_its_framework(kind: str, tmp_path: Path) -> None:
    text = EARLY.replace("type: openai", f"type: {kind}, target: my_agent:solve")
    config = load_config(write(tmp_path, text))
    assert (config.agent.target, config.agent.adapters) == ("my_agent:solve", [kind])


def test_backend_by_name_and_device(tmp_path: Path) -> None:
    named = load_config(write(tmp_path, EARLY + "backend: local\n"))
    assert named.backend.driver == "local" and named.backend.options["lr"] == 1e-4
    placed = load_config(write(tmp_path, EARLY + "backend: {type: local, device: cpu, policy: mine}\n"))
    assert (placed.backend.policy, placed.backend.options["device"]) == ("mine", "cpu")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("episodes: 640", "episodes: many"), "give a number of rollouts, not 'many'"),
        (("episodes: 640", "episodes: 64, steps: 3"), "give one of the two"),
        (("[math, reasoning]", "7"), "give names of task sets, not 7"),
        (("type: openai", "type: crewai"), "not those of type crewai"),
    ],
)
def test_what_an_early_key_cannot_mean(change: tuple[str, str], message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        load_config(write(tmp_path, EARLY.replace(*change)))


def test_old_and_new_name_together_are_refused(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text("agent: {target: a, type: x, adapters: [y]}\nbackend: {policy: p}")
    with pytest.raises(ConfigError, match=r"agent\.type and agent\.adapters: give one of the two"):
        load_config(tmp_path / "run.yaml")
