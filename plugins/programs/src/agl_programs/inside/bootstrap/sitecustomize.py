"""Python runs this before the program, because its folder is first on the PYTHONPATH that ``agl run`` sets.

Until a package is imported that could call a model, it costs one look at the environment. The user's own
``sitecustomize`` runs after it, with the ``sys.path`` that it would have without us.
"""

import importlib.machinery
import importlib.util
import os
import sys


def _install_hook() -> None:
    if not os.environ.get("AGL_WATCH"):
        return
    try:
        from agl_programs.inside.watch import watch
    except ImportError:  # an interpreter without our package: only the gateway records
        return
    except Exception as error:  # an interpreter of a version that our package does not support
        sys.stderr.write(f"agl: capture could not begin ({error!r}); only the gateway records\n")
        return
    watch()


def _run_users_own() -> None:
    """Take our folder out of ``sys.path`` and run the ``sitecustomize`` that it hides."""
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [p for p in sys.path if os.path.abspath(p) != here]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", sys.path)
    if spec is None or spec.loader is None:
        return
    module = importlib.util.module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


_install_hook()
_run_users_own()
