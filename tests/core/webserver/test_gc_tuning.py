"""The collector's setting lasts from the first gateway's start to the last one's stop."""

import gc

import pytest

from agentlightning.gateway import Gateway
from agentlightning.keys import Keys
from agentlightning.store import SQLiteStore
from agentlightning.webserver import YOUNG_THRESHOLD, enlarge_young_generation, restore_thresholds


@pytest.fixture(autouse=True)
def as_it_was():
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)


async def test_while_a_gateway_serves():
    store = SQLiteStore(":memory:")
    gc.set_threshold(700, 11, 12)
    first, second = Gateway(store, Keys()), Gateway(store, Keys())
    await first.start()
    await second.start()
    assert gc.get_threshold() == (YOUNG_THRESHOLD, 11, 12)
    await first.stop()
    assert gc.get_threshold() == (YOUNG_THRESHOLD, 11, 12)
    await second.stop()
    await store.close()
    assert gc.get_threshold() == (700, 11, 12)


@pytest.mark.parametrize("setting", [(0, 10, 10), (50_000, 5, 5)])
def test_what_the_process_chose_stays(setting):
    gc.set_threshold(*setting)
    enlarge_young_generation()
    assert gc.get_threshold() == setting
    restore_thresholds()
    assert gc.get_threshold() == setting


def test_what_was_set_meanwhile_stays():
    gc.set_threshold(700, 10, 10)
    enlarge_young_generation()
    gc.set_threshold(900, 10, 10)
    restore_thresholds()
    assert gc.get_threshold() == (900, 10, 10)
