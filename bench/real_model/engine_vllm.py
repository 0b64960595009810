"""vLLM on a CPU, in this process: its engine without a server and without compilation.

Its advice to preload tcmalloc and Intel's OpenMP, which are system libraries, is not followed: every subject
has the allocator and the OpenMP that its wheels bring.
"""

from __future__ import annotations

import os

SETTINGS = {
    "VLLM_CPU_KVCACHE_SPACE": "2",  # GiB
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # OMP_NUM_THREADS counts, as for the others
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "HF_HUB_OFFLINE": "1",
}
BATCH, LENGTH = 64, 2048


class Subject:
    """Eager, because compilation takes minutes; prefixes are not cached, because no prompt comes twice."""

    def __init__(self, folder: str, threads: int) -> None:
        os.environ.update(SETTINGS)
        import torch

        torch.set_num_threads(threads)
        import vllm

        self.params = vllm.SamplingParams
        self.llm = vllm.LLM(
            folder,
            dtype="float32",
            max_model_len=LENGTH,
            max_num_seqs=BATCH,
            enforce_eager=True,
            enable_prefix_caching=False,
            seed=0,
        )
        self.version = f"vllm {vllm.__version__}, torch {torch.__version__}"

    def generate(self, prompts: list[list[int]], new: int) -> list[list[int]]:
        """Return ``new`` tokens behind each prompt, greedy; end tokens end nothing."""
        sampling = self.params(temperature=0.0, max_tokens=new, ignore_eos=True, detokenize=False)
        inputs = [{"prompt_token_ids": prompt} for prompt in prompts]
        found = self.llm.generate(inputs, sampling, use_tqdm=False)
        return [list(answer.outputs[0].token_ids) for answer in found]
