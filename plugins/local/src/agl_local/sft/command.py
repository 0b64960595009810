"""``agl sft``: fine-tune a policy on chats and write the result as a policy folder.

Nothing heavy is imported until the command runs.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from agl_local.cores import auto_threads

if TYPE_CHECKING:
    from agl_local.network.quantized import Kind

THREADS = auto_threads()
Threads = Annotated[int, typer.Option(min=1, help="CPU threads.")]
MaxLen = Annotated[
    int | None,
    typer.Option(
        help="Tokens of a chat; longer ones are left out and counted. Default: the policy's limit, 2048."
    ),
]


def register(app: typer.Typer) -> None:
    @app.command("sft")
    def sft(
        policy: Annotated[
            str, typer.Option(help="Where to start: a policy folder, or a name of `agl policy list`.")
        ],
        data: Annotated[
            str,
            typer.Option(
                help='A JSONL file of {"messages": [...]}, or module:function that returns such rows.'
            ),
        ],
        output: Annotated[Path, typer.Option("--output", "-o", help="Folder of the fine-tuned policy.")],
        val: Annotated[str | None, typer.Option(help="Chats for the validation loss, as --data.")] = None,
        epochs: Annotated[int, typer.Option(help="Passes over the data.")] = 3,
        lr: Annotated[float, typer.Option(help="Highest learning rate.")] = 5e-5,
        batch_size: Annotated[int, typer.Option(help="Chats of one optimizer step.")] = 16,
        max_len: MaxLen = None,
        seed: Annotated[int, typer.Option(help="Seed of the order of the chats.")] = 0,
        freeze: Annotated[
            list[str] | None,
            typer.Option(help="Parameters that are not trained, such as '*embed_tokens*'; again for others."),
        ] = None,
        lora: Annotated[
            int | None,
            typer.Option(
                min=1, help="Rank: train small matrices beside frozen weights, and write an adapter."
            ),
        ] = None,
        quantize: Annotated[
            str | None,
            typer.Option(
                help="int8 or nf4, with --lora: keep the frozen weights in 8 or 4 bits a number. The adapter "
                "belongs to these."
            ),
        ] = None,
        micro_batch_tokens: Annotated[
            int, typer.Option(min=1, help="Tokens of one forward pass: memory and speed, not the result.")
        ] = 4096,
        group: Annotated[
            int, typer.Option(help="Chats with the same first message that come together, which costs less.")
        ] = 1,
        dtype: Annotated[
            str, typer.Option(help="Precision of the weights: float32, or with --lora bfloat16 or float16.")
        ] = "float32",
        device: Annotated[str, typer.Option(help="cpu, cuda, mps, or auto.")] = "cpu",
        threads: Threads = THREADS,
        as_json: Annotated[
            bool, typer.Option("--json", help="Print a summary as one JSON object instead of the folder.")
        ] = False,
    ) -> None:
        """Fine-tune a policy on chats: the assistant's messages are learned, all others are context.

        A row of the data has OpenAI's form: {"messages": [{"role": ..., "content": ...}, ...]}. The folder
        appears when training is complete; the last line of stdout is its path. With --lora it holds an
        adapter, of which `agl policy fetch` makes a policy.
        """
        from agl_local.network.lora import Lora
        from agl_local.sft.finetune import SftSettings
        from agl_local.sft.job import load_chats, run

        settings = SftSettings(
            epochs=epochs,
            lr=lr,
            batch_size=batch_size,
            max_len=max_len,
            seed=seed,
            freeze=tuple(freeze or ()),
            lora=None if lora is None else Lora(rank=lora, alpha=2 * lora),
            micro_batch_tokens=micro_batch_tokens,
            group=group,
            dtype=dtype,
            device=device,
            quantize=cast("Kind | None", quantize),  # the settings refuse what is none
        )
        chats = load_chats(data, "--data")
        held_out = load_chats(val, "--val") if val else None
        summary = run(policy, chats, output, settings, val=held_out, threads=threads)
        print(json.dumps(summary) if as_json else summary["policy"], flush=True)
