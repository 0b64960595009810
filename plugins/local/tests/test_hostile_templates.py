"""Chat templates and cards that try to use everything up: each is stopped and named, and the rest goes on."""

from __future__ import annotations

import asyncio
from pathlib import Path

import aiohttp
import pytest

from agl_local.generation.engine import Engine
from agl_local.http.app import create_app, serve
from agl_local.policy.card import read_card
from agl_local.text.rendering import RENDERER, TemplateError, TemplateStopped
from agl_local.text.template import ChatTemplate
from agl_local.text.tokenizer import ChatTokenizer
from plugins.local.tests.engine_fixtures import small_policy

USER = {"role": "user", "content": "hi"}
ENDLESS = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("source", "why"),
    [
        (ENDLESS, "not done after 2 seconds of CPU time"),
        ("{{ 'a' * 9000000000 }}", "MiB"),
        ("{{ '%9000000000d' % 1 }}", "MiB"),
        (
            "{% set n = namespace(x='ab') %}{% for i in range(60) %}{% set n.x = n.x ~ n.x %}{% endfor %}",
            "MiB",
        ),
        ("{% for i in range(99999) %}{{ 'a' * 9999 }}{% endfor %}", "characters"),
    ],
    ids=["loop", "product", "format", "doubling", "long"],
)
def test_it_is_stopped_and_named(source: str, why: str) -> None:
    with pytest.raises(TemplateStopped, match=rf"chat template: stopped: .*{why}"):
        ChatTemplate(source).render([USER], None, True, {})
    assert ChatTemplate("{{ messages[0].content }}").render([USER], None, True, {}) == "hi"


@pytest.mark.parametrize(
    "source",
    [
        "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
        "{{ range(10**12) }}",
    ],
    ids=["brackets", "recursion", "range"],
)
def test_it_is_an_error_and_nothing_else(source: str) -> None:
    with pytest.raises(TemplateError, match="chat template"):
        ChatTemplate(source).render([USER], None, True, {})


def test_a_template_sees_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGL_SECRET", "s3cret")
    RENDERER.close()
    ChatTemplate("x").render([USER], None, True, {})
    assert RENDERER._child is not None
    environment = Path(f"/proc/{RENDERER._child[0].pid}/environ")
    if environment.exists():
        assert b"s3cret" not in environment.read_bytes()


@pytest.mark.slow
async def test_the_engine_answers_others_meanwhile() -> None:
    policy = small_policy()
    policy.tokenizer = ChatTokenizer(
        policy.tokenizer.backend, chat_template=ENDLESS, config=policy.tokenizer.config
    )
    with Engine(policy, slots=2, max_len=64) as engine:
        runner, address = await serve(create_app({"policy": engine}))
        try:
            async with aiohttp.ClientSession(address) as session:
                asked = asyncio.create_task(session.post("/v1/chat/completions", json={"messages": [USER]}))
                await asyncio.sleep(0)
                for _ in range(3):
                    async with session.get("/health") as health:
                        assert health.status == 200
                assert not asked.done()
                answer = await asked
                error = (await answer.json())["error"]
                assert answer.status == 400 and error["code"] == "chat_template"
                assert "not done after 2 seconds" in error["message"]
        finally:
            await runner.cleanup()


@pytest.mark.parametrize(
    "front",
    [
        "license: " + "[" * 5000 + "]" * 5000,
        "license: 2024-99-99",
        "a: &a [x, x]\nlicense: [*a, *a]",
        "license: " + "x" * 200_000,
    ],
    ids=["brackets", "date", "aliases", "long"],
)
def test_a_card_is_data(tmp_path: Path, front: str) -> None:
    (tmp_path / "README.md").write_text(f"---\n{front}\n---\n\nA model of some kind, for tests.\n")
    card = read_card(tmp_path / "README.md")
    assert card.licence == "the model's card names none" and card.about == "A model of some kind, for tests."
