"""Programs that know only the variables of Agent Lightning 1.0: base URL, key, and the URL of its events."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest
from agl_programs.events import EVENT_TYPE

from agentlightning.capture.delivery import COUNTS
from agentlightning.capture.emit import BODY
from agentlightning.credit import resolve
from plugins.programs.tests.commands.running import Bench, python

PYTHON = """
import json, os, urllib.request
def post(url, body):
    headers = {"Content-Type": "application/json", "Authorization": "Bearer " + os.environ["AGL_KEY"]}
    return urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode(), headers)).read()
chat = {"model": "auto", "messages": [{"role": "user", "content": "hi"}]}
post(os.environ["AGL_OPENAI_BASE_URL"] + "/chat/completions", chat)
post(os.environ["AGL_EVENT_URL"], {"event_type": "note", "data": {"turns": 1}})
post(os.environ["AGL_EVENT_URL"], {"event_type": "reward", "data": {"value": 0.25, "message": "close"}})
"""
SHELL = """
post() {
  curl -sS --fail -H "Authorization: Bearer $AGL_KEY" -H "Content-Type: application/json" -d "$2" "$1"
}
chat='{"model": "auto", "messages": [{"role": "user", "content": "hi"}]}'
post "$AGL_OPENAI_BASE_URL/chat/completions" "$chat"
post "$AGL_EVENT_URL" '{"event_type": "note", "data": {"turns": 1}}'
post "$AGL_EVENT_URL" '{"event_type": "reward", "data": {"value": 0.25, "message": "close"}}'
"""
NODE = """
const { AGL_KEY, AGL_OPENAI_BASE_URL, AGL_EVENT_URL } = process.env;
const headers = { Authorization: `Bearer ${AGL_KEY}`, "Content-Type": "application/json" };
async function post(url, body) {
  const answer = await fetch(url, { method: "POST", headers, body: JSON.stringify(body) });
  if (!answer.ok) throw new Error(await answer.text());
}
(async () => {
  const messages = [{ role: "user", content: "hi" }];
  await post(AGL_OPENAI_BASE_URL + "/chat/completions", { model: "auto", messages });
  await post(AGL_EVENT_URL, { event_type: "note", data: { turns: 1 } });
  await post(AGL_EVENT_URL, { event_type: "reward", data: { value: 0.25, message: "close" } });
})();
"""
PROGRAMS = {"python": (sys.executable, PYTHON), "shell": ("sh", SHELL), "node": ("node", NODE)}


@pytest.mark.parametrize("language", PROGRAMS)
async def test_a_program_in_any_language_posts_its_reward(language: str, here: Bench, tmp_path: Path) -> None:
    interpreter, text = PROGRAMS[language]
    for needed in (interpreter, *(["curl"] if language == "shell" else [])):
        if shutil.which(needed) is None:
            pytest.skip(f"{needed} is not installed")
    file = tmp_path / "agent"
    file.write_text(text)
    ran = await here.run([interpreter, str(file)], {"question": "1 + 1"})
    assert ran.rollout.status == "succeeded" and len(ran.record.calls) == 1
    assert [(reward.value, reward.final) for reward in ran.rewards] == [(0.25, True)]
    (note,) = [span for span in ran.spans if span.attributes.get(EVENT_TYPE) == "note"]
    assert note.attributes[BODY] == {"turns": 1}


AT = 'os.environ["AGL_EVENT_URL"]'
REWARD = '{"event_type": "reward", "data": {"value": 1.0}}'


@pytest.mark.parametrize(
    ("url", "body", "status", "counted"),
    [
        (f'{AT}.replace("/attempt/", "/attempt/x")', REWARD, 403, "foreign-event"),
        (AT, '{"event_type": "reward", "data": {"value": "much"}}', 422, "bad-event"),
        (AT, '{"event_type": "reward", "data": {}}', 422, "bad-event"),
        (AT, '{"data": {"value": 1.0}}', 422, "bad-event"),
    ],
)
async def test_what_is_no_event_of_the_attempt_is_refused_and_counted(
    url: str, body: str, status: int, counted: str, here: Bench
) -> None:
    before = COUNTS.snapshot()
    given = PYTHON.split("chat =")[0] + (
        f"try:\n    post({url}, {body})\nexcept urllib.error.HTTPError as e:\n"
        "    print(json.dumps({'reward': e.code}))"
    )
    ran = await here.run(python("import urllib.error\n" + given), {}, reward="json")
    assert [reward.value for reward in ran.rewards] == [status]
    assert COUNTS.snapshot()[counted] == before.get(counted, 0) + 1


async def test_beside_a_judge_a_posted_reward_is_kept_and_does_not_count(here: Bench) -> None:
    ran = await here.run(python(PYTHON), {}, reward=lambda task, result: 0.0)
    assert {(reward.value, reward.returned) for reward in ran.rewards} == {(0.25, False), (0.0, True)}
    assert resolve(ran.record).final == 0.0
