"""These tests run in the environment ``verl`` (``make test-ray``), which has what they need."""

from importlib.util import find_spec

NEEDED = ("agl_ray",)
collect_ignore_glob = [] if all(map(find_spec, NEEDED)) else ["test_*.py"]
