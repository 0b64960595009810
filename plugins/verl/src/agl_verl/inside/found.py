"""``python -m agl_verl.inside.found``: what an environment for verl has, and whether verl fits.

Prints a line for each thing; ends with status 1 if something that a run needs is missing.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version

DISTS = (
    "verl",
    "ray",
    "torch",
    "transformers",
    "tensordict",
    "TransferQueue",
    "agl-core",
    "agl-local",
    "agl-verl",
)


def versions(names: tuple[str, ...]) -> Iterator[tuple[str, str | None]]:
    """Each distribution's version, ``None`` where it is not there."""
    for name in names:
        try:
            yield name, version(name)
        except PackageNotFoundError:
            yield name, None


def devices() -> str:
    """The GPUs that torch sees, in words; empty for none."""
    import torch

    if not torch.cuda.is_available():
        return ""
    names = [torch.cuda.get_device_name(n) for n in range(torch.cuda.device_count())]
    return f"{', '.join(names)}; CUDA {torch.version.cuda}"


def main(words: list[str] | None = None) -> int:
    """See the module."""
    parser = argparse.ArgumentParser(prog="python -m agl_verl.inside.found")
    parser.add_argument("--engine", choices=["embedded", "vllm", "sglang"], default="embedded")
    engine = parser.parse_args(words).engine
    missing = []
    for name, found in versions((*DISTS, *(() if engine == "embedded" else (engine,)))):
        print(f"{name}: {found or 'missing'}")
        missing += [name] if found is None else []
    seen = devices() if "torch" not in missing else ""
    print(f"torch sees: {seen or 'no GPU'}")
    if not missing:
        from agl_verl.inside.selftest import changed

        missing += changed()
        print("\n".join(["verl fits" if not missing else "verl does not fit:", *missing]))
    return 1 if missing or not seen else 0


if __name__ == "__main__":
    sys.exit(main())
