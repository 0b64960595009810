"""These tests run in the environment ``kubernetes`` (``make test-kubernetes``), which has what they need."""

from importlib.util import find_spec

NEEDED = ("agl_kubernetes", "kubernetes_asyncio", "kubernetes_validate")
collect_ignore_glob = [] if all(map(find_spec, NEEDED)) else ["test_*.py"]
