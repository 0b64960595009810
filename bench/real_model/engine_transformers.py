"""``generate`` of transformers, the prompts of a batch in one tensor."""

from __future__ import annotations

import torch
import transformers


class Subject:
    """A model with its cache of keys and values as transformers chooses it."""

    def __init__(self, folder: str, threads: int) -> None:
        torch.set_num_threads(threads)
        self.model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        self.model.generation_config.eos_token_id = None  # what a request leaves open is taken from here
        self.version = f"transformers {transformers.__version__}, torch {torch.__version__}"

    @torch.inference_mode()
    def generate(self, prompts: list[list[int]], new: int) -> list[list[int]]:
        """Return ``new`` tokens behind each prompt, greedy; end tokens end nothing."""
        ids = torch.tensor(prompts)
        settings = transformers.GenerationConfig(
            max_new_tokens=new, do_sample=False, eos_token_id=None, pad_token_id=0
        )
        found = self.model.generate(ids, attention_mask=torch.ones_like(ids), generation_config=settings)
        answers: list[list[int]] = found[:, ids.shape[1] :].tolist()
        return answers
