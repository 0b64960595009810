"""The steps of a policy, each computed again from the checkpoint before it to the one behind it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any

import learning
import torch
from learning import Made, Row, trained_logprobs
from network import AdamW, Network, module_order, read_network, trained_names
from stored import Rollout, Run, Unjudged, read_run

if TYPE_CHECKING:
    from judge import Judgement

NETWORK = 1e-4
STORED = ("sft", "dpo")
"""Algorithms that learn from the rollouts of other runs."""


class Steps:
    """Of the policy ``name`` of a run."""

    def __init__(self, run: Run, name: str, policy: Mapping[str, Any], found: Judgement) -> None:
        self.run, self.name, self.found, self.recipe = run, name, found, run.info["recipe"]
        usual = {"lr": 1e-4, "weight_decay": 0.0, "betas": (0.9, 0.999), "eps": 1e-8, "max_grad_norm": 1.0}
        self.options: dict[str, Any] = {**usual, **run.info["options"], **policy["options"]}
        self.adam = AdamW(self.options, run.info["seed"])
        own = run.folder / "policies" / name
        self.folder = (own if own.exists() else run.folder) / "checkpoints"
        self.networks = {0: self.start(Path(policy["path"]))}
        """Weights by version, as the checkpoints hold them."""
        self.version = 0
        """How many steps have changed the weights."""

    def judge(self) -> None:
        """Each step, and what was exported."""
        if self.options.get("warmup_steps") or self.options.get("freeze"):
            raise Unjudged("warmup_steps or freeze")
        source = StoredRows(self) if self.recipe["name"] in STORED else None
        if source is None:
            learning.check_rules(self.recipe)
        for step in range(self.run.info["steps"]):
            folder = self.folder / f"step-{step + 1:06d}"
            if not folder.exists():
                raise Unjudged(f"no checkpoint of step {step}: save_every is not 1, or too few are kept")
            rows = self.rows(step) if source is None else source.rows(step)
            self.judge_logprobs(step, rows)
            before = self.networks[self.version]
            ours = Network(before.config, dict(before.weights), before.scale)
            made = learning.train(ours, self.adam, rows, self.recipe, self.version)
            self.version += bool(made.losses)
            self.judge_report(step, rows, made, {} if source is None else source.said)
            adapter = folder / "adapter" if (folder / "adapter").exists() else None
            self.networks[self.version] = after = read_network(folder / "policy", adapter)
            if adapter is not None:
                self.judge_sums(step, after, ours)
            for name, weight in ours.weights.items():
                slack = made.slack[name] + 2.4e-7 * weight.abs() if name in made.slack else 0 * weight
                where = f"{self.at(step)} {name}"
                self.found.tensors("weight", where, after.weights[name], weight, slack + 1e-12)
            self.judge_moments(step, folder, ours)
        exported = self.run.folder / "policy" / (self.name if self.run.info.get("policies") else "")
        if (exported / "config.json").exists() and not after.scale:
            for name, tensor in read_network(exported).weights.items():
                self.found.tensors("export", f"{exported}: {name}", tensor, after.weights[name], 1e-12)

    def at(self, step: int) -> str:
        return f"{self.run.run_id} {self.name}, step {step}:"

    def start(self, folder: Path) -> Network:
        """The policy that the run started from; of LoRA with A as the seed draws it, and B = 0."""
        network = read_network(folder)
        if (lora := self.options.get("lora")) is None:
            return network
        network.scale = lora.get("alpha", 16) / lora["rank"]
        generator = torch.Generator().manual_seed(self.run.info["seed"])
        for name in module_order(network, "_proj"):
            out, into = network.weights[f"{name}.weight"].shape
            a = torch.empty(lora["rank"], into).uniform_(-(into**-0.5), into**-0.5, generator=generator)
            network.weights[f"{name}.lora_A"] = a.double()
            network.weights[f"{name}.lora_B"] = torch.zeros(out, lora["rank"], dtype=torch.float64)
        return network

    def rows(self, step: int) -> list[Row]:
        """What a step trains: the calls of its rollouts that have a reward, compared where there are some."""
        every, temperature = self.run.of(f"train/{step}"), self.recipe["temperature"]
        credited = [one for one in every if one.credit is not None]
        rows = [row for one in credited for row in learning.rows_of(one, self.name, temperature)]
        own = {row.rollout for row in rows}
        worth = learning.advantages([one for one in credited if one.rollout_id in own], self.recipe)
        for row in rows:
            row.advantage = worth[row.rollout]
        oldest = min((v for row in rows for v in row.versions), default=self.version)
        if self.version - oldest > self.recipe["max_staleness"]:
            raise Unjudged(f"step {step} has calls older than max_staleness")
        learning.weigh(rows, self.recipe)
        rewards, kinds = [o.reward for o in every if o.reward is not None], [o.failure for o in every]
        none, failed = kinds.count("no-reward"), len(kinds) - kinds.count("")
        ours: dict[str, float] = {"rollouts_no_reward": none, "rollouts_failed": failed - none}
        ours |= {"rollouts": len(every), "reward_count": len(rewards)}
        ours |= {"reward_mean": fmean(rewards)} if rewards else {}
        ours |= {"reward_std": stdev(rewards)} if len(rewards) > 1 else {}
        self.found.each("reward", self.at(step), self.run.reports[step, self.name]["metrics"], ours)
        return rows

    def judge_logprobs(self, step: int, rows: Sequence[Row]) -> None:
        """The stored logprobs are those of the weights that the stored version names."""
        for row in rows:
            if (version := row.versions[0]) >= 0 and set(row.versions) == {version}:
                with torch.no_grad():
                    ours = trained_logprobs(self.networks[version], row).tolist()
                self.found.same("logprob", f"{self.at(step)} row {row.row_id}", row.old, ours, NETWORK)

    def judge_report(self, step: int, rows: Sequence[Row], made: Made, more: Mapping[str, float]) -> None:
        report, count = self.run.reports[step, self.name], sum(len(r.tokens) for r in rows if r.advantage)
        said = {**report["metrics"], "policy_version": report["policy_version"]}
        ours = {"tokens_trained": count, "optimizer_steps": len(made.losses), "steps_empty": made.empty}
        self.found.each("metric", self.at(step), said, {**ours, "policy_version": self.version})
        # The later ones of several optimizer steps start from weights that rounding has moved.
        loose = NETWORK * (1 if len(made.losses) == 1 else 20)
        of_steps = {"loss": made.losses, "grad_norm": made.norms} if made.losses else {}
        for name, value in {**{name: fmean(values) for name, values in of_steps.items()}, **more}.items():
            self.found.same("metric", f"{self.at(step)} {name}", said[name], value, loose)

    def judge_sums(self, step: int, theirs: Network, ours: Network) -> None:
        """With LoRA, the checkpoint's policy is W + scale · B A; W is never written."""
        for name in [name.removesuffix(".lora_A") for name in theirs.weights if name.endswith(".lora_A")]:
            weight, key = ours.weights[f"{name}.weight"], f"{name}.weight"
            product = theirs.weights[f"{name}.lora_B"] @ theirs.weights[f"{name}.lora_A"] * theirs.scale
            where = f"{self.at(step)} {name}, W + B A"
            self.found.tensors("weight", where, theirs.weights[key], weight + product, 1e-6)
            theirs.weights[key] = weight

    def judge_moments(self, step: int, folder: Path, network: Network) -> None:
        """AdamW's first moments, which are sums of gradients; parameters of one dimension come last."""
        stored = torch.load(folder / "trainer.pt", weights_only=True)["trainer"]["optimizer"]["state"]
        trained, parts = set(trained_names(network)), ("weight", "bias", "lora_A", "lora_B")
        names = [f"{name}.{part}" for name in module_order(network) for part in parts]
        names = sorted((n for n in names if n in trained), key=lambda name: network.weights[name].dim() == 1)
        several = 100 if self.recipe["epochs"] * self.recipe["minibatches"] > 1 else 1
        for number, name in enumerate(names):
            if (ours := self.adam.first.get(name)) is not None:
                slack = 3 * several * learning.DELTA * ours.abs().max() + 1e-12
                where = f"{self.at(step)} first moment of {name}"
                self.found.tensors("moment", where, stored[number]["exp_avg"], ours, slack)


class StoredRows:
    """The rows of ``sft`` and ``dpo``, made of the rollouts of another run."""

    def __init__(self, steps: Steps) -> None:
        info, self.steps, self.method = steps.run.info, steps, steps.recipe["name"]
        self.settings, self.said = info["settings"], dict[str, float]()
        source = read_run(steps.run.folder.parent / Path(*self.settings["runs"]).name)
        version, least = self.settings.get("rewards"), self.settings.get("minimum")
        known = {o.rollout_id: o.reward for o in source.rollouts if o.reward is not None and not o.failure}
        self.rewards = earned = known if version is None else source.rescored[version]
        useful = [o for o in source.rollouts if o.mode == "train" and o.calls and o.rollout_id in earned]
        self.items: list[tuple[Rollout, ...]] = [*learning.pairs(useful, earned)]
        if self.method == "sft":
            self.items = [(o,) for o in useful if least is None or earned[o.rollout_id] >= least]
        size, count = info["batch_size"], info["steps"]
        self.order = learning.stored_order(len(self.items), size, info["seed"], count)

    def rows(self, step: int) -> list[Row]:
        """The rows of a step's items, weighed."""
        items = [self.items[place] for place in self.order[step]]
        policy = self.settings.get("policy") or "policy"
        found = {one.rollout_id: learning.rows_of(one, policy, 1.0) for item in items for one in item}
        every = [row for own in found.values() for row in own]
        self.said = {"reward_mean": fmean(self.rewards[name] for name in found)}
        total, worth = sum(len(row.tokens) for row in every), dict.fromkeys(found, 1.0)
        if self.method == "dpo":
            total, worth = len(items), self.pulls(step, items, found)
        for row in every:
            row.versions, row.weights = [-1] * len(row.tokens), [1 / total] * len(row.tokens)
            row.advantage = worth[row.rollout]
        return every

    def pulls(
        self, step: int, items: Sequence[tuple[Rollout, ...]], found: Mapping[str, list[Row]]
    ) -> dict[str, float]:
        """The gradient of DPO's loss is that of -A log pi with A = ±beta sigmoid(-beta m), over the pairs."""
        beta, networks = self.settings.get("beta", 0.1), self.steps.networks
        now, then = networks[self.steps.version], networks[0]
        with torch.no_grad():
            gains = {
                name: sum(float((trained_logprobs(now, r) - trained_logprobs(then, r)).sum()) for r in own)
                for name, own in found.items()
            }
        margins = [beta * (gains[a.rollout_id] - gains[b.rollout_id]) for a, b in items]
        self.said["dpo/loss"] = fmean(math.log1p(math.exp(-m)) for m in margins)
        self.said["dpo/margin"] = fmean(margins)
        worth = {}
        for (better, worse), margin in zip(items, margins, strict=True):
            worth[better.rollout_id] = beta / (1 + math.exp(margin))
            worth[worse.rollout_id] = -worth[better.rollout_id]
        return worth
