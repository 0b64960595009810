"""Who chooses the groups of a step: a plugin or nobody, never two, never nobody where a setting asks."""

from __future__ import annotations

import pytest

from agentlightning import GRPO, hookimpl
from agentlightning.algorithms.context import Context
from agentlightning.algorithms.schedule import InOrder, added_settings, schedule_of
from agentlightning.plugins.manager import build
from agentlightning.specs import ScheduleSpec
from agentlightning.train import config
from agentlightning.train.config import from_fields
from agentlightning.types import Recipe
from agentlightning.types.base import ConfigError
from agentlightning.types.sections import TrainingSection


class Stranger:
    """Chooses the groups of every run."""

    @hookimpl
    def agl_schedules(self, recipe: Recipe, training: TrainingSection) -> ScheduleSpec:
        def groups(context: Context) -> InOrder:
            return InOrder(context, recipe, training)

        return ScheduleSpec(groups, None, ["steps"], ["steps"])


def test_two_plugins_are_one_too_many() -> None:
    both, one = ([Stranger(), Stranger()], [Stranger()])
    with pytest.raises(ConfigError, match="two plugins would choose"):
        schedule_of(build(both, discover=False), GRPO(), from_fields({}).training)
    assert schedule_of(build(one, discover=False), GRPO(), from_fields({}).training).chooses_by == ["steps"]


def test_what_is_not_set_needs_no_plugin() -> None:
    plain = from_fields({"steps": 3}).training
    assert added_settings(plain) == {}
    assert schedule_of(build(discover=False), GRPO(), plain) == ScheduleSpec()


def test_without_the_plugin_a_setting_of_it_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "load_plugins", lambda: build(discover=False))
    line = r"it comes with agl-schedules, .*pip install -c constraints\.txt \./core \./plugins/schedules"
    with pytest.raises(TypeError, match=f"Trainer has no field 'quorum': {line}"):
        config.from_fields({"quorum": {"k": 1}})
    with pytest.raises(ConfigError, match=rf"training\.order: .*{line}"):
        config.build({"training": {"order": "finished"}}, "run.yaml", context=config.FILE)
