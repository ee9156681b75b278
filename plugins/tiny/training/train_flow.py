"""Train the flow model on drawings. Stops by samples; resumes from its checkpoint.

Logit-normal t (mean .3), 10 % empty prompts, Muon (.02) on hidden matrices and AdamW (2e-3) on
the rest, batch 128, EMA .998, constant then cosine learning rate, bfloat16 autocast. Checkpoints
of the EMA are kept along the way, so that an earlier, weaker model can be shipped.
"""

from __future__ import annotations

import argparse
import math
import time
from importlib import resources
from pathlib import Path

import torch
from torch import Generator, Tensor

from headwater_tiny.draw import draw, sample_layouts
from headwater_tiny.grammar import describe, sample_scene
from headwater_tiny.model import Config, TinyModel
from headwater_tiny.text import tokenize

BATCH = 128


def main() -> None:
    """Train from the autoencoder in the scratch folder; save EMA checkpoints there."""
    options = arguments()
    torch.manual_seed(options.seed)
    model = TinyModel(Config())
    model.autoencoder.load_state_dict(torch.load(options.work / "autoencoder.pt"))
    model.autoencoder.requires_grad_(requires_grad=False)
    zero_initialise(model)
    named = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
    state = State(named, options.seed, inside="transformer_blocks", rate=0.02)
    checkpoint = options.work / "flow-state.pt"
    if checkpoint.exists():
        state.load(torch.load(checkpoint, weights_only=False))
    train(model, state, options, checkpoint)


def arguments() -> argparse.Namespace:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, required=True, help="scratch folder")
    parser.add_argument("--log", type=Path, default=Path(__file__).with_suffix(".log"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--samples", type=int, default=320_000, help="samples to train on")
    parser.add_argument("--keep-every", type=int, default=300, help="steps between kept EMAs")
    return parser.parse_args()


def zero_initialise(model: TinyModel) -> None:
    """Start from the identity: modulations and output at zero."""
    network = model.transformer
    layers = [network.proj_out, network.norm_out.linear]
    for block in network.transformer_blocks:
        layers += [block.norm1.linear, block.norm1_context.linear]
    for layer in layers:
        torch.nn.init.zeros_(layer.weight)
        torch.nn.init.zeros_(layer.bias)


class State:
    """Optimizers, EMA, generator and step: all that a resumed run needs."""

    def __init__(
        self, named: list[tuple[str, Tensor]], seed: int, inside: str, rate: float
    ) -> None:
        hidden = [p for n, p in named if inside in n and p.ndim == 2]
        ids = {id(p) for p in hidden}
        rest = [p for _, p in named if id(p) not in ids]
        self.named = named
        self.optimizers = [
            torch.optim.Muon(hidden, lr=rate, weight_decay=0.01),
            torch.optim.AdamW(rest, lr=rate / 10, weight_decay=0.01, betas=(0.9, 0.98)),
        ]
        self.rates = [rate, rate / 10]
        self.ema = {n: p.detach().clone() for n, p in named}
        self.generator = Generator().manual_seed(seed)
        self.step = 0

    def set_rate(self, factor: float) -> None:
        """Scale both learning rates."""
        for optimizer, rate in zip(self.optimizers, self.rates, strict=True):
            for group in optimizer.param_groups:
                group["lr"] = rate * factor

    def update(self) -> None:
        """One optimizer step, then the EMA."""
        torch.nn.utils.clip_grad_norm_([p for _, p in self.named], 1.0)
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        self.step += 1
        decay = min(0.998, (1 + self.step) / (10 + self.step))
        with torch.no_grad():
            for name, p in self.named:
                self.ema[name].lerp_(p, 1 - decay)

    def dump(self) -> dict:
        """Everything, for a file."""
        return {
            "weights": {n: p.detach() for n, p in self.named},
            "optimizers": [o.state_dict() for o in self.optimizers],
            "ema": self.ema,
            "generator": self.generator.get_state(),
            "step": self.step,
        }

    def load(self, saved: dict) -> None:
        """Undo `dump`."""
        with torch.no_grad():
            for name, p in self.named:
                p.copy_(saved["weights"][name])
        for optimizer, part in zip(self.optimizers, saved["optimizers"], strict=True):
            optimizer.load_state_dict(part)
        self.ema = saved["ema"]
        self.generator.set_state(saved["generator"])
        self.step = saved["step"]


def train(model: TinyModel, state: State, options: argparse.Namespace, checkpoint: Path) -> None:
    """The loop."""
    held_out = set(prompt_list("eval"))
    total, start, running = options.samples // BATCH, time.monotonic(), []
    log = options.log.open("a")
    while state.step < total:
        state.set_rate(schedule(state.step, total))
        tokens, latents = batch(model, held_out, state.generator)
        with torch.autocast("cpu", torch.bfloat16):
            loss = flow_loss(model, tokens, latents, state.generator)
        loss.backward()
        state.update()
        running.append(loss.item())
        if state.step % 50 == 0:
            mean, running = sum(running) / len(running), []
            seconds = time.monotonic() - start
            log.write(f"step {state.step} samples {state.step * BATCH} loss {mean:.4f}")
            log.write(f" s {seconds:.0f}\n")
            log.flush()
        if state.step % options.keep_every == 0 or state.step == total:
            torch.save(state.ema, options.work / f"flow-ema-{state.step:05d}.pt")
            torch.save(state.dump(), checkpoint)


def prompt_list(name: str) -> list[str]:
    """A shipped prompt list."""
    file = resources.files("headwater_tiny").joinpath("prompts", f"{name}.txt")
    return file.read_text().splitlines()


def schedule(step: int, total: int) -> float:
    """Warm up over 50 steps, constant to 60 %, cosine to 2 %."""
    tail = max(0.0, step / total - 0.6) / 0.4
    return min(1.0, (step + 1) / 50) * (0.02 + 0.98 * (1 + math.cos(math.pi * tail)) / 2)


def batch(model: TinyModel, held_out: set[str], generator: Generator) -> tuple[Tensor, Tensor]:
    """Tokens (128, 12), a tenth of them empty, and latents (128, 16, 4, 4)."""
    scenes = []
    while len(scenes) < BATCH:
        scene = sample_scene(generator)
        if describe(scene) not in held_out:
            scenes.append(scene)
    images = draw(sample_layouts(scenes, generator))
    empty = torch.rand(BATCH, generator=generator) < 0.1
    texts = ["" if e else describe(s) for s, e in zip(scenes, empty.tolist(), strict=True)]
    with torch.no_grad():
        latents = model.autoencoder.encode(images)
    return tokenize(texts), latents


def flow_loss(model: TinyModel, tokens: Tensor, latents: Tensor, generator: Generator) -> Tensor:
    """Mean squared error of the velocity at a logit-normal time."""
    eps = torch.randn(latents.shape, generator=generator)
    t = torch.sigmoid(torch.randn(len(latents), generator=generator) + 0.3)
    level = t[:, None, None, None]
    states, pooled = model.text(tokens)
    v = model.velocity((1 - level) * latents + level * eps, t, states, pooled)
    return (v.float() - (eps - latents)).square().mean()


if __name__ == "__main__":
    main()
