from __future__ import annotations

import subprocess
import sys

import pytest

import agl_local


def test_the_package_loads_nothing_until_asked():
    code = "import sys, agl_local; print([m for m in ('torch', 'aiohttp', 'tokenizers') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "[]"


@pytest.mark.parametrize("name", agl_local.__all__)
def test_every_exported_name_is_there(name):
    assert getattr(agl_local, name) is not None and name in dir(agl_local)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = agl_local.nothing


@pytest.mark.slow
def test_serving_imports_no_transformers():
    code = "import sys, agl_local.http.server, agl_local.http.process; print('transformers' in sys.modules)"
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "False"
    )
