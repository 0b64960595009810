"""What the public program DeepWerewolf finds around it: players that answer, DashScope, and a tokenizer.

It is a game of twelve in Chinese, written for Agent Lightning 0.1 (github.com/af-74413592/DeepWerewolf). Four
players of five ask the model that is trained, the others DashScope by its own client; a judge at DashScope
reads each answer. None of its files is changed. Where it names DashScope, a proxy of this machine
(``HTTPS_PROXY``) leads to a server with a certificate of its own (``REQUESTS_CA_BUNDLE``). Where it names the
tokenizer ``Qwen/Qwen3-8B``, there is a folder of that name, whose tokens are those of the scripted model.
"""

from __future__ import annotations

import asyncio
import json
import re
import ssl
import subprocess
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from agl_testing import template, tool_call
from aiohttp import web
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

HOST = "dashscope.aliyuncs.com"
RULES = "狼人杀"
"""A word of the program's system prompt."""
NO = ("弃票", "空刀", "空守", "撕警徽")
"""Names that abstain."""
YES = {"reach_agreement", "resurrect", "poison", "shoot"}
"""Questions that a player answers with yes. Nobody withdraws, and no wolf gives itself away."""
CANDIDATES = ("1号", "2号", "3号")


# ------------------------------------------------------------------------------------------- players
def player(body: Mapping[str, Any]) -> Any:
    """A player's answer to a chat request: the tool that it must call, filled in, or a sentence."""
    messages = body["messages"]
    history = "\n".join(template.text_of(one.get("content")) for one in messages)
    found = re.search(r"\[(\d+号) ONLY\]", history)
    name = found[1] if found else ""
    said = _sentence(name, template.text_of(messages[-1].get("content")))
    tools = {one["function"]["name"]: one["function"]["parameters"] for one in body.get("tools") or ()}
    if "generate_response" not in tools or body.get("tool_choice") == "none":
        return said
    schema = tools["generate_response"]
    given = {key: _value(key, one, name, said) for key, one in schema["properties"].items()}
    return tool_call("generate_response", json.dumps(given, ensure_ascii=False), content=said)


def _sentence(name: str, asked: str) -> str:
    last = asked.rsplit("主持人:", 1)[-1]
    if "是否要上警" in last:
        return "是" if name in CANDIDATES else "否"
    return "顺时针" if "发言顺序" in last else "我先听大家的发言，再做决定。"


def _value(key: str, schema: Mapping[str, Any], name: str, said: str) -> Any:
    """A value of one field: yes or no, the first name but the player's own, or the sentence."""
    forms = schema.get("anyOf", [schema])
    names = [one for form in forms for one in form.get("enum", [form["const"]] if "const" in form else [])]
    if names:
        return next((one for one in names if one not in (name, *NO)), names[0])
    return key in YES if any(form.get("type") == "boolean" for form in forms) else said


def tokenizer(folder: Path) -> None:
    """Write the scripted model's tokenizer in transformers' files: bytes, and special tokens."""
    model = models.BPE({f"<0x{byte:02X}>": byte for byte in range(256)}, [], byte_fallback=True)
    made = Tokenizer(model)
    made.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    made.add_special_tokens(list(template.MARKS))
    PreTrainedTokenizerFast(tokenizer_object=made).save_pretrained(folder)


# ------------------------------------------------------------------------------------------- DashScope
@asynccontextmanager
async def dashscope(folder: Path) -> AsyncIterator[dict[str, str]]:
    """Serve DashScope's two APIs that the program uses. Yields the variables by which it finds them."""
    certificate, key = folder / "certificate.pem", folder / "key.pem"
    made = ["-keyout", str(key), "-out", str(certificate), "-days", "2", "-nodes"]
    subject = ["-subj", f"/CN={HOST}", "-addext", f"subjectAltName=DNS:{HOST}"]
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", *made, *subject], check=True, capture_output=True
    )
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)
    app = web.Application(client_max_size=64 * 2**20)
    app.router.add_post("/compatible-mode/v1/chat/completions", _judged)
    app.router.add_post("/api/v1/services/aigc/text-generation/generation", _generated)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    for secured in (None, context):
        await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=secured).start()
    plain, secure = (place[1] for place in runner.addresses)
    proxy = await asyncio.start_server(lambda r, w: _tunnel(r, w, secure), "127.0.0.1", 0)
    try:
        yield {
            "DASHSCOPE_API_KEY": "token",
            "DASHSCOPE_HTTP_BASE_URL": f"http://127.0.0.1:{plain}/api/v1",
            "HTTPS_PROXY": f"http://127.0.0.1:{proxy.sockets[0].getsockname()[1]}",
            "NO_PROXY": "localhost,127.0.0.1",
            "REQUESTS_CA_BUNDLE": str(certificate),
        }
    finally:
        proxy.close()
        await runner.cleanup()


async def _judged(request: web.Request) -> web.Response:
    """The judge: an answer that is not in Chinese is of low quality."""
    read = (await request.json())["messages"][0]["content"].rsplit("以下是模型回答：", 1)[-1]
    found = "High Quality" if re.search(r"[\u4e00-\u9fff]", read) else "Low Quality"
    return web.json_response({"choices": [{"message": {"role": "assistant", "content": found}}]})


async def _generated(request: web.Request) -> web.StreamResponse:
    """A player at DashScope: one event of its stream holds the whole answer."""
    asked = await request.json()
    answer = player({"messages": asked["input"]["messages"], "tools": asked["parameters"].get("tools")})
    message = answer if isinstance(answer, dict) else {"role": "assistant", "content": answer}
    choice = {"message": message, "finish_reason": "tool_calls" if "tool_calls" in message else "stop"}
    event = {
        "output": {"choices": [choice]},
        "usage": {"input_tokens": 1, "output_tokens": 1, "total_tokens": 2},
        "request_id": "scripted",
    }
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream;charset=UTF-8"})
    await response.prepare(request)
    await response.write(f"id:1\nevent:result\n:HTTP_STATUS/200\ndata:{json.dumps(event)}\n\n".encode())
    return response


async def _tunnel(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, port: int) -> None:
    """One connection of the proxy: to DashScope's server here, and nowhere else."""
    head = await reader.readuntil(b"\r\n\r\n")
    if not head.startswith(f"CONNECT {HOST}:443 ".encode()):
        writer.write(b"HTTP/1.1 403 Forbidden\r\n\r\n")
        writer.close()
        return
    there, back = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
    await asyncio.gather(_pump(reader, back), _pump(there, writer))


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while piece := await reader.read(65536):
            writer.write(piece)
            await writer.drain()
    except ConnectionError:
        pass
    finally:
        writer.close()
