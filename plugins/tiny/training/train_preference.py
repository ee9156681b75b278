"""Train the preference scorer on drawings with graded flaws. Stops by steps; resumes.

Each step takes 32 prompts with six images each: two clean drawings, two with one flaw, one with
two, one degraded (blurred, noised, blended, deformed, patched, junk). Some go through the
autoencoder with noise on the latent. Losses: regression to the grade, softmax and pairwise
(Bradley-Terry) ranking within a prompt, contrast against the other prompts of the batch.
With `--samples`, images of early flow checkpoints, graded by the demands they miss, take part.
"""

from __future__ import annotations

import argparse
import math
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from attributes import OUTPUTS, attribute_loss
from torch import Generator, Tensor
from train_flow import State, prompt_list

from headwater_tiny.autoencoder import PatchAutoencoder
from headwater_tiny.draw import Layout, draw, place
from headwater_tiny.flaws import IMAGE_FLAWS, degrade, spoil, spoil_any
from headwater_tiny.grammar import Scene, describe, sample_scene
from headwater_tiny.preference import PreferenceScorer
from headwater_tiny.text import tokenize

PROMPTS = 32
GRADES = (1.0, 1.0, 0.0, 0.0, -1.0)
"""Of the five drawings of a prompt; the sixth, degraded image brings its own."""
WORST = -1.5
BINDING = ("relation", "swap", "position")
"""Flaws that keep the objects and change what belongs to what: the hard ones."""
SAMPLES = 64
"""Flow samples of one step."""


def main() -> None:
    """Train; save `preference.pt` in the scratch folder."""
    options = arguments()
    torch.manual_seed(options.seed)
    autoencoder = PatchAutoencoder()
    autoencoder.load_state_dict(torch.load(options.work / "autoencoder.pt"))
    autoencoder.requires_grad_(requires_grad=False)
    model = PreferenceScorer()
    head = torch.nn.Linear(256, OUTPUTS)
    named = [*model.named_parameters(), *((f"head.{n}", p) for n, p in head.named_parameters())]
    state = State(named, options.seed, inside="blocks", rate=0.01)
    checkpoint = options.work / "preference-state.pt"
    if checkpoint.exists():
        state.load(torch.load(checkpoint, weights_only=False))
    train(model, head, autoencoder, state, options, checkpoint)


def arguments() -> argparse.Namespace:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, required=True, help="scratch folder")
    parser.add_argument("--log", type=Path, default=Path(__file__).with_suffix(".log"))
    parser.add_argument("--samples", type=Path, help="file of `make_samples.py`")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=1700)
    return parser.parse_args()


def train(
    model: PreferenceScorer,
    head: torch.nn.Linear,
    autoencoder: PatchAutoencoder,
    state: State,
    options: argparse.Namespace,
    checkpoint: Path,
) -> None:
    """The loop."""
    held_out, start, running = set(prompt_list("eval")), time.monotonic(), []
    extra = torch.load(options.samples) if options.samples else None
    log = options.log.open("a")
    while state.step < options.steps:
        state.set_rate(schedule(state.step, options.steps))
        texts, layouts, images, grades = batch(autoencoder, held_out, state.generator)
        image = model.embed_images(images.flatten(0, 1)).view(PROMPTS, 6, -1)
        loss, accuracy = preference_loss(model, texts, image, grades)
        loss = loss + 0.2 * attribute_loss(head(image[:, :5].flatten(0, 1)), layouts)
        if extra is not None:
            loss = loss + sample_loss(model, extra, state.generator)
        loss.backward()
        state.update()
        running.append((loss.item(), accuracy))
        if state.step % 50 == 0:
            means = [sum(column) / len(running) for column in zip(*running, strict=True)]
            running, seconds = [], time.monotonic() - start
            log.write(f"step {state.step} loss {means[0]:.4f} pairs {means[1]:.4f}")
            log.write(f" s {seconds:.0f}\n")
            log.flush()
        if state.step % 250 == 0 or state.step == options.steps:
            scorer = {n: p for n, p in state.ema.items() if not n.startswith("head.")}
            torch.save(scorer, options.work / "preference.pt")
            torch.save(state.dump(), checkpoint)


def schedule(step: int, total: int) -> float:
    """Warm up over 50 steps, constant to 50 %, cosine to 1 %."""
    tail = max(0.0, step / total - 0.5) / 0.5
    return min(1.0, (step + 1) / 50) * (0.01 + 0.99 * (1 + math.cos(math.pi * tail)) / 2)


def batch(
    autoencoder: PatchAutoencoder, held_out: set[str], generator: Generator
) -> tuple[list[str], list[Layout], Tensor, Tensor]:
    """Prompts (P), layouts (5 P), images (P, 6, 3, 32, 32) and grades (P, 6)."""
    scenes: list[Scene] = []
    while len(scenes) < PROMPTS:
        scene = sample_scene(generator)
        if describe(scene) not in held_out:
            scenes.append(scene)
    layouts = [layout for scene in scenes for layout in drawings(scene, generator)]
    images = draw(layouts).view(PROMPTS, 5, 3, 32, 32)
    degraded, grade = degraded_images(autoencoder, scenes, images, generator)
    images = torch.cat([images, degraded[:, None]], dim=1)
    grades = torch.cat([torch.tensor(GRADES).expand(PROMPTS, -1), grade[:, None]], dim=1)
    images = round_trip(autoencoder, images, generator)
    return [describe(s) for s in scenes], layouts, images, grades


def drawings(scene: Scene, generator: Generator) -> list[Layout]:
    """Two clean layouts, two with one flaw (the first of binding, if it can be), one with two."""
    clean = [place(scene, generator), place(scene, generator)]
    hard = [spoil(clean[0], scene, kind, generator) for kind in BINDING]
    first = next((layout for layout in hard if layout is not None), None)
    flawed = [first or spoil_any(clean[0], scene, generator)[0]]
    flawed.append(spoil_any(clean[1], scene, generator)[0])
    return [*clean, *flawed, spoil_any(flawed[1], scene, generator)[0]]


@torch.no_grad()
def degraded_images(
    autoencoder: PatchAutoencoder, scenes: list[Scene], images: Tensor, generator: Generator
) -> tuple[Tensor, Tensor]:
    """One degraded image a prompt (P, 3, 32, 32) and its grade (P,)."""
    clean, others = images[:, 0].clone(), images[:, 1].roll(1, dims=0)
    kinds = (*IMAGE_FLAWS, "deform", "latent-noise", "latent-blend", "cells", "junk")
    order = torch.randint(len(kinds), (PROMPTS,), generator=generator)
    grades = torch.zeros(PROMPTS)
    for k, kind in enumerate(kinds):
        rows = (order == k).nonzero().flatten().tolist()
        if not rows:
            continue
        x, y = clean[rows], others[rows]
        if kind == "deform":
            x = draw([deformed(scenes[i], generator) for i in rows])
        elif kind in IMAGE_FLAWS:
            x = degrade(x, y, kind, generator)
        else:
            x = spoil_latents(autoencoder, x, y, kind, generator)
        clean[rows] = x
        grades[rows] = {"blend": -0.5, "latent-blend": -0.5, "junk": WORST}.get(kind, 0.0)
    return clean, grades


def deformed(scene: Scene, generator: Generator):
    """A clean layout with one deformed object."""
    layout = place(scene, generator)
    return spoil(layout, scene, "deform", generator) or layout


def spoil_latents(
    autoencoder: PatchAutoencoder, x: Tensor, y: Tensor, kind: str, generator: Generator
) -> Tensor:
    """Artefacts that a latent generator makes: noise, blends, foreign cells, junk."""
    z, other = autoencoder.encode(x), autoencoder.encode(y)
    amount = torch.rand((len(z), 1, 1, 1), generator=generator)
    noise = torch.randn(z.shape, generator=generator)
    if kind == "latent-noise":
        z = z + (0.4 + 0.8 * amount) * noise
    elif kind == "latent-blend":
        z = torch.lerp(z, other, 0.3 + 0.4 * amount)
    elif kind == "cells":
        chosen = torch.rand((len(z), 1, 4, 4), generator=generator) < 0.2
        foreign = torch.where(amount < 0.5, z.flatten(2).roll(5, dims=2).view_as(z), noise)
        z = torch.where(chosen, foreign, z)
    else:
        z = (0.5 + 3 * amount) * noise
        pixels = torch.rand(x.shape, generator=generator)
        return torch.where(amount < 0.6, autoencoder.decode(z), pixels)
    return autoencoder.decode(z)


@torch.no_grad()
def round_trip(autoencoder: PatchAutoencoder, images: Tensor, generator: Generator) -> Tensor:
    """Half the images through the autoencoder, with harmless noise on the latent."""
    flat = images.flatten(0, 1)
    z = autoencoder.encode(flat)
    level = 0.15 * torch.rand((len(z), 1, 1, 1), generator=generator)
    decoded = autoencoder.decode(z + level * torch.randn(z.shape, generator=generator))
    half = torch.rand((len(z), 1, 1, 1), generator=generator) < 0.6
    return torch.where(half, decoded, flat).view_as(images)


def preference_loss(
    model: PreferenceScorer, texts: list[str], image: Tensor, grades: Tensor
) -> tuple[Tensor, float]:
    """Loss, and the fraction of pairs of different grade within a prompt that are in order.

    image: vectors (P, K, 256).
    """
    P, K = grades.shape
    text = model.embed_texts(tokenize(texts))
    every = model.compare(image[:, :, None], text)  # (P, K, P)
    own = every[torch.arange(P), :, torch.arange(P)]  # (P, K)
    fit = F.smooth_l1_loss(own, grades, beta=0.25)
    better = grades[:, :, None] > grades[:, None, :] + 0.25
    gap = own[:, :, None] - own[:, None, :]
    pairs = F.softplus(-6 * gap)[better].mean()
    index = torch.arange(P)
    clean = 6 * every[:, 0]  # (P images, P prompts)
    contrast = F.cross_entropy(clean, index) + F.cross_entropy(clean.T, index)
    foreign = F.softplus(6 * (every + 0.5))[
        ~torch.eye(P, dtype=torch.bool)[:, None].expand(P, K, P)
    ]
    loss = fit + 0.3 * pairs + 0.1 * contrast + 0.1 * foreign.mean()
    return loss, float((gap[better] > 0).float().mean())


def sample_loss(model: PreferenceScorer, extra: dict, generator: Generator) -> Tensor:
    """Regression to the grade of samples of the flow model."""
    rows = torch.randint(len(extra["grades"]), (SAMPLES,), generator=generator)
    scores = model(extra["images"][rows].float(), [extra["texts"][i] for i in rows.tolist()])
    return 0.5 * F.smooth_l1_loss(scores, extra["grades"][rows], beta=0.25)


if __name__ == "__main__":
    main()
