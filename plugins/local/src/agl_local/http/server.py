"""``python -m agl_local.http.server``: load policies, serve them, print the address as one JSON line.

With ``AGL_LOCAL_TOKEN`` set, requests bear it as their API key. A host that others can reach needs it.
The admin token comes from the environment (``AGL_LOCAL_ADMIN_TOKEN``) or, for a child of ``EngineProcess``,
as the first line of standard input, never from the command line; the second line is a child's token, empty
for none. A child ends when its standard input does: with its parent.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import get_args

import msgspec
import torch
from aiohttp import web

from agentlightning.child_environment import hide_secrets
from agentlightning.types import UsageError
from agentlightning.webserver.loopback import check_interface, token_from_env
from agl_local.generation.engine import Engine
from agl_local.generation.loop import EngineLoop
from agl_local.http.app import TOKEN_VARIABLE, create_app, serve
from agl_local.http.process import Beside
from agl_local.network.lora import Lora, become_base, starting_point
from agl_local.network.quantized import Kind
from agl_local.policy.folder import DTYPES, load_policy, read_tokenizer
from agl_local.policy.shared import FILES
from agl_local.text.rendering import RENDERER

ADMIN_VARIABLE = "AGL_LOCAL_ADMIN_TOKEN"


def parse_args(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m agl_local.http.server", description="Serve policies over the OpenAI API."
    )
    parser.add_argument(
        "--policy", action="append", required=True, metavar="PATH", help="model folder; may be repeated"
    )
    parser.add_argument(
        "--name", action="append", metavar="NAME", help="policy name, one per --policy, in order"
    )
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="0: any free port")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32", choices=sorted(DTYPES))
    parser.add_argument("--threads", type=int, default=None, help="threads of torch; default: its own choice")
    parser.add_argument("--slots", type=int, default=64)
    parser.add_argument("--max-len", type=int, default=None, help="tokens of prompt and answer together")
    parser.add_argument("--version", type=int, default=0, help="version of the weights at the start")
    parser.add_argument(
        "--deterministic",
        action="store_true",
        help="the same bits whatever else is served; float32 on a CPU, a few times slower",
    )
    parser.add_argument(
        "--quantize", choices=get_args(Kind), help="keep the matrices of the layers in 8 or 4 bits a number"
    )
    parser.add_argument(
        "--lora",
        type=lambda text: msgspec.json.decode(text, type=Lora),
        metavar="JSON",
        help="with --quantize or --beside: the adapters whose matrices come as new weights",
    )
    parser.add_argument(
        "--beside",
        type=lambda text: msgspec.json.decode(text, type=Beside),
        action="append",
        default=[],
        metavar="JSON",
        help="with --lora: a further policy, by LoRA over the same base, which is loaded once",
    )
    parser.add_argument(
        "--child", action="store_true", help="read the tokens from stdin; end when stdin ends"
    )
    parser.add_argument(
        "--weights",
        type=int,
        nargs=FILES,
        default=(),
        metavar="FD",
        help="open files from which new weights are taken, inherited from the trainer",
    )
    args = parser.parse_args(argv)
    args.name = args.name or (["policy"] if len(args.policy) == 1 else [])
    if len(args.name) != len(args.policy) or len(set(args.name)) != len(args.name):
        parser.error("give each --policy a --name of its own")
    if args.beside and (len(args.policy) > 1 or args.lora is None):
        parser.error("--beside is for one --policy, with --lora")
    return args


def main(argv: Sequence[str] | None = None) -> int:
    args = parse_args(argv)
    hide_secrets()
    admin = sys.stdin.readline().strip() if args.child else os.environ.get(ADMIN_VARIABLE)
    own = sys.stdin.readline().strip() if args.child else None
    threads = args.threads or torch.get_num_threads()
    # The engines compute in threads of their own, which alone are to use several cores.
    torch.set_num_threads(1)
    engines: dict[str, Engine] = {}
    try:
        token = (own or None) if args.child else token_from_env(TOKEN_VARIABLE)
        check_interface("the engine", args.host, guarded=token is not None, variable=TOKEN_VARIABLE)
        for engine in _open(args, threads):
            engines[engine.name] = engine
        files = {args.name[0]: args.weights, **{one.name: one.files for one in args.beside}}
        given = {"admin_token": admin or None, "token": token, "open_metrics": args.child}
        app = create_app(engines, **given, files=files)
        asyncio.run(_serve(app, args))
    except UsageError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.status
    finally:
        for engine in engines.values():
            engine.close()
    return 0


def _open(args: argparse.Namespace, threads: int) -> Iterator[Engine]:
    """The engines of all policies, each as soon as it is open."""
    for name, path in zip(args.name, args.policy, strict=True):
        policy = load_policy(path, args.device, args.dtype, quantize=args.quantize)
        loop = None
        if args.beside:
            loop = EngineLoop("engines", threads)
            policy.model.pack()
            become_base(policy.model)
        first = Beside(path=path, name=name, lora=args.lora, slots=args.slots, max_len=args.max_len)
        for one in (first, *args.beside):
            served = policy
            if args.beside:
                tokenizer = read_tokenizer(Path(one.path))
                served = replace(policy, model=starting_point(policy.model), tokenizer=tokenizer)
            yield Engine(
                served,
                keep=False,
                lora=one.lora,
                slots=one.slots,
                max_len=one.max_len,
                name=one.name,
                version=args.version,
                threads=threads,
                deterministic=args.deterministic,
                loop=loop,
            )


async def _serve(app: web.Application, args: argparse.Namespace) -> None:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    runner, address = await serve(app, args.host, args.port)
    if args.child:
        end = lambda: loop.call_soon_threadsafe(stop.set)  # noqa: E731
        threading.Thread(target=_watch_parent, args=(end, os.getppid()), daemon=True).start()
    print(json.dumps({"address": address}), flush=True)
    await stop.wait()
    RENDERER.close()  # a chat template may run for seconds yet
    if args.child:  # a handler may hang on a stuck client: the process must end all the same
        enough = threading.Timer(5.0, os._exit, (1,))
        enough.daemon = True  # it must not be what the process waits for
        enough.start()
    await runner.cleanup()


def _watch_parent(end: Callable[[], object], parent: int) -> None:
    """Return when standard input ends, or when the parent is another one (its pipe may live on in its other
    children).
    """
    closed = threading.Event()

    def wait_for_end() -> None:
        sys.stdin.buffer.read()
        closed.set()

    threading.Thread(target=wait_for_end, daemon=True).start()
    while not closed.wait(timeout=1.0) and os.getppid() == parent:
        pass
    end()


if __name__ == "__main__":
    raise SystemExit(main())
