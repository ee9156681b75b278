"""The loop's own cost: an optimizer step against a bare loop with the same evaluations.

Interleaved pairs in one process, the order within a pair alternating; median of the paired
ratios with quartiles. Metrics, guards and moving average are inside ours; evaluation,
checkpoints and pictures are outside both. The bare loop is written by hand with none of
Headwater's loop, stage or engine: backbone, reward, torch.

    python bench/overhead.py [--pairs 24]
"""

from __future__ import annotations

import argparse
import statistics
from functools import partial

import torch
from common import quartiles, stage_of, timed

from headwater.geometry import draws_of
from headwater.stage import Stage
from headwater.trainer import Trainer
from headwater.types import Batch, Request

K = 2


class BareLoop:
    """DRaFT-K with AdamW, as one would write it in a script."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.backbone, (self.reward,) = (
            stage.run.backbone.plugin,
            [named.plugin for named in stage.run.rewards.values()],
        )
        table = stage.run.file.optimizer
        self.parameters = list(self.backbone.trainable().values())
        self.optimizer = torch.optim.AdamW(
            self.parameters, lr=table.lr, betas=table.betas, weight_decay=table.weight_decay
        )

    def step(self, index: int) -> None:
        """Rollout, reward gradient, the last K steps one by one, update."""
        run, backbone = self.stage.run, self.backbone
        draws = draws_of(run.file, run.prompts, index)
        self.optimizer.zero_grad(set_to_none=False)
        conditioning = backbone.encode([d.prompt for d in draws])
        shape = backbone.shape(Request(32, 32))
        sigmas = backbone.sigmas(run.file.rollout.steps, shape)
        n, b = run.file.rollout.steps, len(draws)
        states = [backbone.noise(shape, [d.seed for d in draws])]
        with torch.no_grad():
            for i in range(n):
                v = backbone.velocity(states[-1], sigmas[i].expand(b), conditioning)
                states.append(states[-1] - (sigmas[i] - sigmas[i + 1]) * v)
        image = states[-1].detach().requires_grad_()
        batch = Batch(tuple(d.prompt for d in draws), conditioning, (0,) * b, (0,) * b, 32, 32, n)
        score = self.reward.score(backbone.decode(image), batch)
        loss = (self.reward.margin - score).clamp(min=0).sum() / b
        (carried,) = torch.autograd.grad(loss, image)
        for i in reversed(range(n - K, n)):
            x = states[i].clone().requires_grad_(i > n - K)
            v = backbone.velocity(x, sigmas[i].expand(b), conditioning)
            v.backward(-(sigmas[i] - sigmas[i + 1]) * carried)
            if i > n - K:
                carried = carried + x.grad
        torch.nn.utils.clip_grad_norm_(self.parameters, run.file.optimizer.max_grad_norm)
        self.optimizer.step()


def pairs_of(pairs: int, train: str) -> list[tuple[float, float]]:
    """(ours, bare) seconds of optimizer steps, the order within a pair alternating."""
    sets = ["estimator.use=draft-k", f"estimator.k={K}", f"backbone.train={train}"]
    trainer = Trainer(stage_of(*sets))
    bare = BareLoop(stage_of(*sets))
    for index in range(2):
        trainer.step(index)
        bare.step(index)
    found = []
    for index in range(2, pairs + 2):
        pair: dict[str, float] = {}
        works = [("ours", partial(trainer.step, index)), ("bare", partial(bare.step, index))]
        for name, work in works if index % 2 else reversed(works):
            pair[name] = timed(work)
        found.append((pair["ours"], pair["bare"]))
    return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=24)
    parser.add_argument("--train", default="full", choices=["lora", "full"])
    options = parser.parse_args()
    torch.set_num_threads(1)
    found = pairs_of(options.pairs, options.train)
    ours, theirs = zip(*found, strict=True)
    low, middle, high = quartiles([own / other for own, other in found])
    print(f"draft-k, K = {K}, {options.train}, 8 samples, 20 steps, one thread")
    print(f"step: ours {statistics.median(ours):.3f} s, bare {statistics.median(theirs):.3f} s")
    print(
        f"median of {len(found)} paired ratios {middle:.4f}, quartiles {low:.4f} and {high:.4f} "
        f"(at most 1.05)"
    )


if __name__ == "__main__":
    main()
