"""The agent that looks things up: index, questions, reward, agent, teacher, and what is trained."""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("langchain", reason="the agent is LangChain's")
pytest.importorskip("langchain_openai")
pytest.importorskip("torch")

from agl_testing import ScriptedModelServer, tool_call
from contract.running import rolled_out

import agentlightning as agl
from agentlightning.cli.options import read
from agentlightning.credit import assign
from agentlightning.store import SQLiteStore
from agentlightning.train.configured import configure
from agentlightning.types import Rollout
from agl_audit.run import open_run
from agl_examples.views import searched_question
from agl_local.policy.folder import save_policy
from agl_local.sft.chats import chats_of
from agl_local.sft.finetune import SftSettings, finetune
from search import journey
from search.agent import CALLS, solve
from search.baselines import BASELINES, COUNT, looks_up, oracle, rewards
from search.corpus import documents
from search.evaluate import Course
from search.grading import grade
from search.index import FIRST_LINE, HITS, NO_SUCH_TITLE, NOTHING, PASSAGE, factbook
from search.questions import CLUES, FACTS, PARTNERS, Task, countries, facts, held_out, kept, tasks, two_needed
from search.teacher import ERROR_RATE, MISTAKES, TOOLS, chat, chats, readings, world
from search.warmstart import scaffold, tokenizer
from small_policy.demo import difference
from small_policy.teaching import fresh

EXAMPLE = Path(journey.__file__).parent


# ---------------------------------------------------------------------------------------- corpus and index
def test_the_corpus_stands_as_its_licence_note_says() -> None:
    titles = [one.title for one in documents()]
    assert titles == sorted(set(titles))
    assert f"{len(titles):,} documents" in (EXAMPLE / "data" / "LICENSES.md").read_text(encoding="utf-8")
    assert max(len(one.text) for one in documents()) <= PASSAGE, "a passage would be cut"
    assert not [one.title for one in documents() if re.search(r"<[a-z/]", one.text)], "markup"


def test_a_search_ranks_by_rare_words_and_answers_within_limits() -> None:
    index = factbook()
    assert index.best("Maseru")[0].title == "Lesotho: Government"
    assert index.best("brasilia")[0].title == "Brazil: Government", "accents and case do not count"
    lines = index.search("the government of South Africa").splitlines()
    assert len(lines) == HITS and lines[0].startswith("South Africa: Government | ")
    longest = max(len(one.title) for one in documents()) + len(" | ") + FIRST_LINE
    assert all(len(line) <= longest for line in index.search("Saint Helena Islands").splitlines())


def test_words_are_text_and_no_syntax_of_the_index() -> None:
    index = factbook()
    assert {index.search(words) for words in ("", "?!", '"', "xyzzy", "xyz*")} == {NOTHING}
    assert index.best('xyzzy" OR NEAR(title:') == index.best("near title or")


def test_a_document_is_read_by_its_title_alone() -> None:
    text = factbook().read(" lesotho: government ")
    assert "\nCapital: Maseru\n" in text
    assert factbook().read("Lesotho") == factbook().read("' OR 1=1 --") == NO_SUCH_TITLE


# ---------------------------------------------------------------------------------------------- questions
def test_each_question_needs_both_its_documents_and_each_has_its_part() -> None:
    by_title = {one.title: one.text for one in documents()}
    for task in (*kept()["train"], *kept()["heldout"]):
        first, second = task["documents"]
        assert task["clue"] in first + by_title[first] and task["answer"] in by_title[second]
        assert task["country"] == second.rpartition(": ")[0]
        assert not re.search(rf"\b{re.escape(task['answer'])}\b", by_title[first])
        assert not re.search(rf"\b{re.escape(task['clue'])}\b", by_title[second])


def test_a_question_that_one_document_answers_is_refused() -> None:
    clue = {"clue": "Lesotho", "answer": "Maseru"}
    assert not two_needed(clue), "the title of the document has the clue"
    assert two_needed({"clue": "Thabana Ntlenyana", "answer": "Maseru"})
    assert two_needed({"clue": "Lesotho", "answer": "Mas"}), "a part of a word is another word"


def test_no_held_out_country_is_asked_about_and_no_held_out_answer_given_in_training() -> None:
    train, out = tasks("train"), tasks("heldout")
    assert {one["country"] for one in train}.isdisjoint(one["country"] for one in out)
    assert {one["answer"].casefold() for one in train}.isdisjoint(one["answer"].casefold() for one in out)
    assert len(train) > 1_400 and len(out) > 600
    assert all(held_out(one["country"]) for one in out)
    trained, answered = {one["country"] for one in train}, {one["answer"] for one in train}
    assert min(len(trained), len(answered)) > 100


def test_tasks_are_the_same_each_time_and_no_kind_or_country_fills_them() -> None:
    first = tasks("heldout", 100, seed=3)
    assert first == json.loads(json.dumps(tasks("heldout", seed=3)))[:100] != tasks("heldout", 100, seed=4)
    assert Counter(one["kind"] for one in first) == dict.fromkeys(CLUES, 20)
    assert Counter(one["country"] for one in first).most_common(1)[0][1] <= 10
    assert len({one["question"] for one in tasks("train")}) == len(kept()["train"])


def test_facts_of_the_source_are_read_as_they_stand() -> None:
    assert facts()["capital"]["Lesotho"] == "Maseru" and facts()["code"]["Lesotho"] == ".ls"
    assert facts()["peak"]["Lesotho"] == "Thabana Ntlenyana" and facts()["prefix"]["Lesotho"] == "7P"
    assert facts()["exports"]["Lesotho"] == "South Africa" and countries()["UK"] == "United Kingdom"
    assert "South Africa" not in facts()["capital"], "it has three"


# ------------------------------------------------------------------------------------------------ reward
@pytest.mark.parametrize(("answer", "gold"), [
    ("Maseru", "Maseru"), (" maseru. ", "Maseru"), ("**Maseru**", "Maseru"), ("Brasilia", "Brasília"),
    ("the Valley", "The Valley"), ("San Jose\n", "San José"), ('"N\'Djamena"', "N’Djamena"),
])  # fmt: skip
def test_the_gold_answer_is_right_as_people_write_it(answer: str, gold: str) -> None:
    assert grade(answer, gold) == 1.0


@pytest.mark.parametrize(("answer", "gold"), [
    ("", "Maseru"), (None, "Maseru"), ("Maser", "Maseru"), ("Maseru or Pretoria", "Maseru"),
    ("Maseru, Lesotho", "Maseru"), ("The capital is Maseru", "Maseru"), ("not Maseru", "Maseru"),
    (".is", ".ls"), ("7P-", "7P"), ("P7", "7P"),
    ("Mount Catherine 2,629 m", "Mount Catherine"), ("Guinea", "Guinea-Bissau"),
])  # fmt: skip
def test_a_near_miss_is_wrong(answer: str | None, gold: str) -> None:
    assert grade(answer, gold) == 0.0


# ------------------------------------------------------------------------------------------------- agent
async def answered(given: list[dict[str, Any]], script: Any) -> tuple[list[float], list[dict[str, Any]]]:
    """The reward of each task by a scripted model, and the bodies of its requests."""
    async with ScriptedModelServer(script) as server:
        llm = agl.LLM(endpoint=server.url, model="scripted", api_key="none")
        found = [await solve(one, llm=llm) for one in given]
        return found, [exchange.body for exchange in server.log]


async def test_the_oracle_finds_reads_and_answers_through_the_agent() -> None:
    given = tasks("heldout", 10)
    found, bodies = await answered(given, oracle(given))
    assert found == [1.0] * 10 and {one["kind"] for one in given} == {*CLUES}
    assert len(bodies) == 50, "two searches, two documents and an answer each"


@pytest.mark.slow
async def test_the_oracle_solves_every_held_out_question_of_a_run() -> None:
    given = tasks("heldout", COUNT)
    found, _ = await answered(given, oracle(given))
    assert found == [1.0] * COUNT


async def test_a_model_that_searches_for_ever_or_calls_wrongly_earns_nothing() -> None:
    [task] = tasks("heldout", 1)
    found, bodies = await answered([task], lambda body: tool_call("search", {"words": "more"}))
    assert found == [0.0] and len(bodies) == CALLS

    def wrong(body: dict[str, Any]) -> Any:
        return tool_call("search", {"title": 1}) if len(body["messages"]) == 2 else task["answer"]

    found, bodies = await answered([task], wrong)
    assert found == [1.0], "it is told what was wrong, and goes on"


async def test_the_teachers_chat_is_what_the_agent_sends() -> None:
    [task] = [one for one in tasks("heldout", 5) if one["kind"] == "exports"]
    lesson = chat(task["question"], factbook())
    assert lesson is not None
    _, bodies = await answered([task], looks_up([task]))
    words, sent = tokenizer(), bodies[-1]
    assert words.render(sent["messages"], sent["tools"]) == words.render(lesson["messages"][:-1], TOOLS)
    course = Course(task)  # and so does what evaluates a policy without agent and server
    for message in lesson["messages"]:
        if message["role"] == "assistant" and message["content"] is None:
            call = message["tool_calls"][0]["function"]
            course.take(
                f'<tool_call>\n{{"name": "{call["name"]}", "arguments": {call["arguments"]}}}\n</tool_call>'
            )
    assert words.render(course.messages, TOOLS) == words.render(lesson["messages"][:-1], TOOLS)
    course.take(task["answer"])
    assert course.answer == task["answer"]


# ----------------------------------------------------------------------------------- baselines and teacher
def test_baselines_are_those_of_the_page() -> None:
    page = (EXAMPLE / "README.md").read_text(encoding="utf-8")
    given = tasks("heldout", COUNT)
    for name, one in BASELINES.items():
        found = rewards(one, given)
        assert f"| `{name}` | {sum(found) / COUNT:.3f} |" in page, name


def test_the_page_says_how_far_trained_policies_are_ahead_of_the_script() -> None:
    page = (EXAMPLE / "README.md").read_text(encoding="utf-8")
    kept = EXAMPLE.parents[1] / "bench" / "results" / "per_task" / "search.jsonl"
    earned = [json.loads(line) for line in kept.read_text(encoding="utf-8").splitlines()[1:]]
    given = tasks("heldout", COUNT)
    script = rewards(BASELINES["exports_only"], given)
    for seed in range(3):
        ahead, (low, high) = difference([one["after"][seed] for one in earned], script, given, "country")
        assert low > 0 and f"{ahead:+.3f} ({low:.2f} to {high:.2f})" in page


def test_a_world_has_every_country_and_no_fact_by_heart() -> None:
    found = world(random.Random(1))
    true = {one.title: one.text for one in documents()}
    assert [one.title for one in found] == [*true]
    for out in (True, False):
        asked = [one for one in found if one.section == "Government" and held_out(one.country) is out]
        assert sum(one.text != true[one.title] for one in asked) > 0.9 * len(asked)
    assert found == world(random.Random(1)) != world(random.Random(2))


def test_what_is_read_first_has_the_answer() -> None:
    for context, answer in readings(islice(chats(1, 0.0), 20), 1):
        assert [one["role"] for one in context] == ["system", "user", "assistant", "tool"]
        assert answer["content"] in context[-1]["content"]


def test_then_partners_are_read_too() -> None:
    given = [*islice(chats(1, 0.0), 20)]
    found = [*readings(given, 2)]
    assert len(found) == 2 * sum(len(one["messages"]) == 11 for one in given) > 0
    for context, reply in found[::2]:
        [call] = reply["tool_calls"]
        words = json.loads(call["function"]["arguments"])["words"]
        partner, _, section = words.rpartition(" ")
        assert partner in context[-1]["content"] and section in {fact.section for fact in FACTS.values()}


def test_in_a_world_no_partner_is_frequent() -> None:
    firsts = Counter(
        partner
        for one in world(random.Random(1))
        if one.section == "Economy" and (partner := FACTS["imports"].of(one.text))
    )
    assert len(firsts) > 30 and firsts.most_common(1)[0][1] < 0.1 * firsts.total()


def test_the_teacher_errs_as_often_and_only_as_it_says() -> None:
    assert {len(one["messages"]) for one in islice(chats(1, 0.0), 200)} == {9, 11}, "it looks both up"
    lessons = list(islice(chats(1, ERROR_RATE), 200))
    made: Counter[tuple[str, int]] = Counter()
    for one in lessons:
        asked = one["messages"][1]["content"]
        kind = next(k for k, clue in CLUES.items() if re.search(clue.replace("{clue}", ".+"), asked))
        made[kind, sum(message["role"] == "tool" for message in one["messages"])] += 1
    for kind in MISTAKES:
        first = 2 if kind in PARTNERS else 1
        stopped, whole = made.pop((kind, first)), made.pop((kind, first + 2))
        assert 0.6 < stopped / (stopped + whole) < 0.95
    assert {count for _, count in made} == {3, 4}, "no other kind stops early"


def test_fixed_pieces_are_one_token_and_a_name_is_spelled_alike_wherever_it_stands() -> None:
    words = tokenizer()
    for piece in scaffold():
        (token,) = words.encode(piece)
        assert not words.is_special(token)
    name = words.encode("Thabana Ntlenyana")
    for before in ("\nhighest point: ", '<tool_call>\n{"name": "search", "arguments": {"words": "'):
        assert words.encode(before + "Thabana Ntlenyana")[1:] == name


# ------------------------------------------------------------------------- training, view, configuration
@pytest.fixture(scope="module")
def one_lesson(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A policy that knows one question by heart, and its task."""
    task = next(one for one in tasks("train", 20) if one["kind"] == "exports")
    lesson = chat(task["question"], factbook())
    words = tokenizer()
    policy = fresh(words, 0)
    settings = SftSettings(epochs=60, lr=3e-3, batch_size=1, max_len=1024)
    finetune(policy, chats_of([lesson], "lesson").chats, settings)
    folder = tmp_path_factory.mktemp("policy")
    save_policy(policy, folder)
    return folder, task


@pytest.mark.slow
@pytest.mark.plugins
async def test_what_the_tools_said_is_context_and_never_trained(
    one_lesson: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    folder, task = one_lesson
    trainer = agl.Trainer(
        policy=folder, steps=1, batch_size=1, output=tmp_path, trackers=[], adapters=["langchain"],
        options={"threads": 1, "engine": "thread", "max_len": 1024},
    )  # fmt: skip
    summary = await trainer.afit(solve, [task], [task])
    assert summary["reward_before"] == 1.0, "the policy did not learn its one lesson"
    assert summary["totals"]["calls"] == summary["totals"]["calls_exact"] > 0
    words = tokenizer()
    async with open_run(str(tmp_path / summary["run_id"])) as run:
        rollouts = await run.store.query_rollouts(run_id=run.run_id, mode="train")
        records = await run.store.records([one.rollout_id for one in rollouts])
    told = {one.rollout.rollout_id: journey.story(one) for one in records}
    rows = assign(records, agl.GRPO(baseline="none", scale="none")).rows
    context: dict[str, str] = dict.fromkeys(told, "")
    for row in rows:
        both = list(zip(row.token_ids, row.mask, strict=True))
        context[row.rollout_id] += words.decode([token for token, trained in both if not trained])
        learned = words.decode([token for token, trained in both if trained])
        assert learned.count('{"name": ') and "tool_response" not in learned
        assert not any(fact.label in learned for fact in FACTS.values()), "a line of a document"
    whole = [name for name, one in told.items() if one["right"] and len(one["looks"]) == 4]
    assert whole and all(look.said in context[name] for name in whole for look in told[name]["looks"])


async def test_the_view_shows_question_searches_answer_and_gold() -> None:
    [task] = tasks("heldout", 1)
    store = SQLiteStore(":memory:")
    async with ScriptedModelServer(oracle([task])) as engine:
        _, record, why = await rolled_out(solve, task, store, engine)
    await store.close()
    assert not why
    told = journey.story(record)
    assert [look.tool for look in told["looks"]] == ["search", "read"] * 2
    assert all(look.gold for look in told["looks"]) and told["answer"] == task["answer"] and told["right"]
    page = journey.html(told)
    assert task["documents"][0] in page and page.count('class="needed"') == 4
    assert not any(mark in page for mark in ("<script", "src=", "href=", "http"))
    assert searched_question(Rollout(rollout_id="r", input=task))
    assert not searched_question(Rollout(rollout_id="r", input={"question": "?", "answer": ""}))


def test_the_cpu_profile(tmp_path: Path) -> None:
    words = tokenizer()
    save_policy(fresh(words, 0), tmp_path / "policy")
    trainer, agent, train, val = configure(
        read(EXAMPLE / "cpu.yaml", [f"backend.policy={tmp_path / 'policy'}"])
    )
    assert agent.function is solve.function and len(val) == COUNT
    assert not {one["country"] for one in train} & {one["country"] for one in val}
    assert largest_trader(train) < 0.05 < 0.2 < largest_trader(kept()["train"])
    assert set(trainer.config.environment.headroom) == {"oracle", "reader", "random"}


def largest_trader(given: Sequence[Task]) -> float:
    """The share of the questions about trade that lead to one country, at most."""
    asked = Counter(one["country"] for one in given if one["kind"] in PARTNERS)
    return max(asked.values()) / asked.total()
