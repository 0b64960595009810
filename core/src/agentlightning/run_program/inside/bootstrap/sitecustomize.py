"""Run by Python itself, before the program: its folder is first on the PYTHONPATH that ``agl run`` sets.

It costs what a look at one environment variable costs, until something is imported that could call a model.
A ``sitecustomize`` of the user's own runs after it; ``sys.path`` is what it would be without us.
"""

import importlib.machinery
import importlib.util
import os
import sys


def _watch() -> None:
    if not os.environ.get("AGL_WATCH"):
        return
    try:
        from agentlightning.run_program.inside.import_hook import watch
    except ImportError:  # another interpreter, without our package: the gateway alone records
        return
    except Exception as error:  # one that our package is there for, but not of its version
        sys.stderr.write(f"agl: capture could not begin ({error!r}); only the gateway records\n")
        return
    watch()


def _hand_on() -> None:
    """Take our folder out of the path, and run the ``sitecustomize`` that it hides."""
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [p for p in sys.path if os.path.abspath(p) != here]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", sys.path)
    if spec is None or spec.loader is None:
        return
    module = importlib.util.module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


_watch()
_hand_on()
