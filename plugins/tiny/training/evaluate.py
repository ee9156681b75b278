"""Accuracy of flow checkpoints on held-out prompts, by the detector."""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from torch import Tensor
from train_flow import prompt_list

from headwater_tiny.detector import judge
from headwater_tiny.model import Config, TinyModel, sample


def load_checkpoint(work: Path, name: str) -> TinyModel:
    """The model of an EMA checkpoint in the scratch folder."""
    model = TinyModel(Config())
    model.autoencoder.load_state_dict(torch.load(work / "autoencoder.pt"))
    trained = {name for name, p in model.named_parameters() if "autoencoder" not in name}
    ema = torch.load(work / name)
    if set(ema) != trained:
        raise ValueError(f"{name} holds other parameters than the model")
    model.load_state_dict(ema, strict=False)
    return model.eval()


@torch.no_grad()
def images_of(model: TinyModel, texts: list[str], seed: int, steps: int, guidance: float) -> Tensor:
    """One sample a prompt, 128 at a time: (B, 3, 32, 32)."""
    parts = []
    for start in range(0, len(texts), 128):
        chunk = texts[start : start + 128]
        seeds = [seed + start + i for i in range(len(chunk))]
        with torch.autocast("cpu", torch.bfloat16):
            parts.append(sample(model, chunk, seeds, steps, guidance).float())
    return torch.cat(parts)


def report(model: TinyModel, texts: list[str], steps: int, guidance: float) -> str:
    """One line: accuracy, by category, by attribute."""
    verdict = judge(images_of(model, texts, 0, steps, guidance), texts)
    parts = [f"steps {steps} guidance {guidance} shift {model.config.shift}"]
    parts.append(f"correct {verdict.correct.mean():.3f} fraction {verdict.fraction.mean():.3f}")
    parts += [f"{name} {value:.3f}" for name, value in verdict.by_category().items()]
    parts += [f"{name} {values.nanmean():.3f}" for name, values in verdict.attributes.items()]
    return " ".join(parts)


def main() -> None:
    """Print one line a checkpoint and setting."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, required=True, help="scratch folder")
    parser.add_argument("--steps", type=int, nargs="+", default=[20])
    parser.add_argument("--guidance", type=float, nargs="+", default=[2.0])
    parser.add_argument("--shift", type=float, nargs="+", default=[1.0])
    parser.add_argument("--prompts", type=int, default=512)
    parser.add_argument("checkpoints", nargs="+")
    options = parser.parse_args()
    texts = prompt_list("eval")[: options.prompts]
    for name in options.checkpoints:
        model = load_checkpoint(options.work, name)
        for shift in options.shift:
            model.config = Config(shift=shift)
            for steps in options.steps:
                for guidance in options.guidance:
                    print(name, report(model, texts, steps, guidance), flush=True)


if __name__ == "__main__":
    main()
