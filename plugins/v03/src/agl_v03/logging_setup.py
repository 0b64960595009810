"""``setup_logging`` of v0.3: a console handler for our loggers, those of plugins included, and files beside
it.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Mapping, Sequence
from importlib.metadata import entry_points
from pathlib import Path

from rich.logging import RichHandler

from agentlightning.plugins.manager import GROUP

FORMAT = "%(asctime)s [%(levelname)s] (Process-%(process)d %(name)s)   %(message)s"
ROOT = "agentlightning"


def our_loggers() -> list[str]:
    """Return the names of the loggers above all of ours: that of core, and one for each plugin's package."""
    packages = {point.module.partition(".")[0] for point in entry_points(group=GROUP)}
    return [ROOT, *sorted(packages - {ROOT})]


def setup_logging(
    level: int | str = "INFO",
    *,
    console: bool = True,
    color: bool | Mapping[str, object] = True,
    propagate: bool = False,
    disable_existing_loggers: bool = False,
    capture_warnings: bool = False,
    submodule_levels: Mapping[str, int | str] | None = None,
    extra_handlers: Sequence[logging.Handler] | None = None,
    formatter: logging.Formatter | None = None,
    apply_to: Sequence[str] | None = None,
    files: str | Mapping[str, str] | None = None,
) -> None:
    """Log what Agent Lightning does from ``level`` on. Calling it again replaces the console's handler and
    repeats no file.

    ``color``: rich output; a mapping holds arguments of ``rich.logging.RichHandler``. ``submodule_levels``:
    logger → level. ``apply_to``: further loggers that get the same handlers. ``files``: a file for all
    records, or logger → file; folders are made.
    """
    ours = our_loggers()
    if disable_existing_loggers:
        for name, known in logging.root.manager.loggerDict.items():
            if isinstance(known, logging.Logger) and name.partition(".")[0] not in ours:
                known.disabled = True
    if capture_warnings:
        logging.captureWarnings(True)
    of_file = dict.fromkeys(ours, files) if isinstance(files, str) else dict(files or {})
    for name in (*ours, *(apply_to or ())):
        setup_module_logging(
            level, name=name, console=console, color=color, propagate=propagate, formatter=formatter
        )
        for handler in extra_handlers or ():
            if handler not in logging.getLogger(name).handlers:
                logging.getLogger(name).addHandler(handler)
    for name, file in of_file.items():
        _add_file(logging.getLogger(name), Path(file), formatter)
    for name, chosen in (submodule_levels or {}).items():
        logging.getLogger(name).setLevel(_level(chosen))


def setup_module_logging(
    level: int | str = "INFO",
    *,
    name: str = ROOT,
    console: bool = True,
    color: bool | Mapping[str, object] = True,
    propagate: bool = False,
    formatter: logging.Formatter | None = None,
) -> logging.Logger:
    """Set up one logger and return it."""
    logger = logging.getLogger(name)
    logger.setLevel(_level(level))
    logger.propagate = propagate
    for handler in [h for h in logger.handlers if getattr(h, "agl_console", False)]:
        logger.removeHandler(handler)
    if console:
        options = dict(color) if isinstance(color, Mapping) else {"show_path": False}
        made = RichHandler(**options) if color else logging.StreamHandler()
        if formatter or not color:
            made.setFormatter(formatter or logging.Formatter(FORMAT))
        setattr(made, "agl_console", True)  # noqa: B010 - a mark of ours on the library's object
        logger.addHandler(made)
    return logger


def configure_logger(level: int = logging.INFO, name: str = ROOT) -> logging.Logger:
    """Set up one logger, by its name before ``setup_logging``."""
    warnings.warn("configure_logger is now called setup_logging", FutureWarning, stacklevel=2)
    return setup_module_logging(level, name=name)


def _level(given: int | str) -> int:
    known = logging.getLevelNamesMapping()
    if isinstance(given, int):
        return given
    if given.upper() not in known:
        raise ValueError(f"there is no log level {given!r}; use one of {', '.join(known)}")
    return known[given.upper()]


def _add_file(logger: logging.Logger, file: Path, formatter: logging.Formatter | None) -> None:
    place = str(file.absolute())
    if any(getattr(handler, "baseFilename", None) == place for handler in logger.handlers):
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    handler = logging.FileHandler(place, encoding="utf-8")
    handler.setFormatter(formatter or logging.Formatter(FORMAT))
    logger.addHandler(handler)
