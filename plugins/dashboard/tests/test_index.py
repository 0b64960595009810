"""The index of rollouts: it follows a store, in a file and behind a URL; values are parameters of its SQL."""

from __future__ import annotations

from pathlib import Path

import pytest
from contract.runs import RUN, add_rollout, make_run

from agentlightning.store import SQLiteStore
from agentlightning.types import RolloutStatus
from agl_cluster.store import server
from agl_cluster.store.client import StoreClient
from agl_dashboard.data.index import RolloutIndex
from agl_dashboard.data.lines import FileLines, Line, StoreLines, line_source, words_of
from agl_dashboard.data.query import BadQuery, RolloutQuery


async def lines_of(index: RolloutIndex, **asked: str) -> list[Line]:
    await index.refresh()
    await index.wait()
    return (await index.page(RolloutQuery.read(RUN, asked))).lines


async def test_a_file_and_a_server_give_the_same_lines(tmp_path: Path) -> None:
    folder = await make_run(tmp_path)
    file = folder / "store.sqlite"
    read = SQLiteStore(file, read_only=True)
    by_file = RolloutIndex(line_source(read))
    assert isinstance(by_file.source, FileLines)
    from_file = await lines_of(by_file)
    await by_file.close()
    await read.close()
    served = await server.start(file, port=0)
    client = StoreClient(served.url)
    by_server = RolloutIndex(line_source(client))
    assert isinstance(by_server.source, StoreLines)
    from_server = await lines_of(by_server)
    await by_server.close()
    await client.close()
    await served.close()
    assert len(from_file) == 9 and from_file == from_server


async def test_the_index_follows_a_store_that_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "store.sqlite"
    writer = SQLiteStore(file)
    await writer.add_run(RUN, {"run_id": RUN})
    index = RolloutIndex(FileLines(file))
    assert await lines_of(index) == []
    await add_rollout(writer, RUN, "ro-a", 0.5, finish=False)
    index._checked = -1e9
    (line,) = await lines_of(index)
    assert (line.rollout, line.status, line.reward) == ("ro-a", line.status, None)
    assert line.status in ("preparing", "running")
    await add_rollout(writer, RUN, "ro-b", 1.0)
    index._checked = -1e9
    assert [one.reward for one in await lines_of(index)][1] == 1.0
    await writer.update_rollout("ro-a", RolloutStatus.CANCELLED)
    await writer.delete_run(RUN)
    index._checked = -1e9
    assert await lines_of(index) == []
    await index.close()
    await writer.close()


async def test_a_line_is_read_again_when_something_is_noted_of_an_ended_rollout(tmp_path: Path) -> None:
    """As when its group was graded: the reward comes after the end."""
    file = tmp_path / "store.sqlite"
    writer = SQLiteStore(file)
    await writer.add_run(RUN, {"run_id": RUN})
    await add_rollout(writer, RUN, "ro-a", 0.5)
    by_file, by_store = FileLines(file), StoreLines(writer)
    for source in (by_file, by_store):
        before = {head.rollout: head.stamp for head in await source.heads()}
        await writer.update_rollout("ro-a", metadata={f"noted by {type(source).__name__}": True})
        after = {head.rollout: head.stamp for head in await source.heads()}
        assert before.keys() == after.keys() == {"ro-a"} and before != after
    await by_file.close()
    await writer.close()


async def test_lines_without_a_reward_come_last_in_both_directions(tmp_path: Path) -> None:
    folder = await make_run(tmp_path)
    index = RolloutIndex(FileLines(folder / "store.sqlite"))
    for sort in ("reward", "-reward"):
        assert (await lines_of(index, sort=sort))[-1].reward is None
    await index.close()


@pytest.mark.parametrize(
    "given",
    [{"sort": "seq;--"}, {"page": "0"}, {"page": "1e9"}, {"size": "51"}, {"page": "٣"}, {"page": "9" * 40}],
)
def test_what_makes_no_sense_is_refused(given: dict[str, str]) -> None:
    with pytest.raises(BadQuery):
        RolloutQuery.read("r", given)


def test_values_reach_sql_as_parameters_only() -> None:
    query = RolloutQuery.read("r'--", {"task": "x' OR 1=1", "q": "%_'", "reward": "<0.5"})
    where, values = query.where()
    assert "'" not in where and values == ["r'--", "x' OR 1=1", 0.5, "%_'"]


def test_links_keep_filters_and_begin_at_the_first_page() -> None:
    query = RolloutQuery.read("r", {"q": "a b&c", "page": "7", "sort": "-reward"})
    assert query.link(status="failed") == "?status=failed&q=a+b%26c&sort=-reward"
    assert query.link(page=8) == "?q=a+b%26c&sort=-reward&page=8"
    assert query.sort_link("reward") == "?q=a+b%26c&sort=reward"


@pytest.mark.parametrize(
    ("task", "said"),
    [("plain", "plain"), ({"question": "why", "n": 1}, "why"), ({"n": 1}, '{"n": 1}'), (None, "null")],
)
def test_a_task_in_words(task: object, said: str) -> None:
    assert words_of(task) == said
