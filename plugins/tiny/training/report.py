"""Measure the shipped weights; the output is `report.log`. Also writes `samples.png`."""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from evaluate import images_of, report
from PIL import Image
from torch import Generator, Tensor
from train_flow import prompt_list

from headwater_tiny.detector import judge
from headwater_tiny.draw import draw, sample_layouts
from headwater_tiny.flaws import IMAGE_FLAWS, LAYOUT_FLAWS, degrade, spoil
from headwater_tiny.grammar import parse
from headwater_tiny.model import load_model
from headwater_tiny.preference import load_preference

FOLDER = Path(__file__).parent


@torch.no_grad()
def main() -> None:
    """Write the report."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    texts = prompt_list("eval")[:512]
    model, lines = load_model(), []
    lines += autoencoder_lines(model, texts)
    lines += [report(model, texts, steps, guidance) for steps, guidance in ((20, 2.0), (4, 2.0))]
    lines += [report(model, texts, 20, guidance) for guidance in (1.0, 3.5)]
    lines += preference_lines(model, texts)
    (FOLDER / "report.log").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


def clean_drawings(texts: list[str], generator: Generator) -> tuple[list, list, Tensor]:
    """Scenes, layouts and drawings of prompts."""
    scenes = [parse(text) for text in texts]
    layouts = sample_layouts(scenes, generator)
    return scenes, layouts, draw(layouts)


def autoencoder_lines(model, texts: list[str]) -> list[str]:
    """PSNR, and the detector on reconstructions."""
    _, _, images = clean_drawings(texts, Generator().manual_seed(1))
    back = model.autoencoder.decode(model.autoencoder.encode(images))
    psnr = float((-10 * (back - images).square().mean(dim=(1, 2, 3)).log10()).mean())
    drawn, rebuilt = (float(judge(x, texts).correct.mean()) for x in (images, back))
    return [f"autoencoder PSNR {psnr:.2f} detector: drawings {drawn:.4f} rebuilt {rebuilt:.4f}"]


def preference_lines(model, texts: list[str]) -> list[str]:
    """Rank accuracy by flaw on held-out prompts, scores, correlation on flow samples."""
    generator, scorer = Generator().manual_seed(2), load_preference()
    scenes, layouts, images = clean_drawings(texts, generator)
    clean = scorer(images, texts)
    lines = [f"preference of drawings: {spread(clean)}"]
    rebuilt = model.autoencoder.decode(model.autoencoder.encode(images))
    lines.append(f"preference of rebuilt drawings: {spread(scorer(rebuilt, texts))}")
    for kind in LAYOUT_FLAWS:
        spoilt = [spoil(p, s, kind, generator) for p, s in zip(layouts, scenes, strict=True)]
        rows = [i for i, layout in enumerate(spoilt) if layout is not None]
        flawed = draw([layout for layout in spoilt if layout is not None])
        lines.append(ranked(kind, clean[rows], scorer(flawed, [texts[i] for i in rows])))
    for kind in IMAGE_FLAWS:
        flawed = degrade(images, images.roll(1, dims=0), kind, generator)
        lines.append(ranked(kind, clean, scorer(flawed, texts)))
    other = texts[1:] + texts[:1]
    lines.append(ranked("other-prompt", clean, scorer(images, other)))
    return lines + sample_lines(model, scorer, texts)


def sample_lines(model, scorer, texts: list[str]) -> list[str]:
    """The scorer beside the detector on samples of the flow model; saves the picture."""
    samples = images_of(model, texts, 0, 20, 2.0)
    verdict, score = judge(samples, texts), scorer(samples, texts)
    save_grid(samples[:48], FOLDER / "samples.png")
    pairs = torch.stack([score, verdict.correct, verdict.fraction])
    matrix = torch.corrcoef(pairs)
    right = score[verdict.correct == 1]
    wrong = score[verdict.correct == 0]
    auc = float((right[:, None] > wrong[None]).float().mean())
    return [
        f"preference of samples: {spread(score)}",
        f"preference of samples the detector finds right: {spread(right)}",
        f"preference of samples the detector finds wrong: {spread(wrong)}",
        f"correlation with correct {matrix[0, 1]:.3f} with fraction {matrix[0, 2]:.3f}",
        f"AUC of right against wrong {auc:.3f}",
    ]


def spread(score: Tensor) -> str:
    """Mean and quantiles of scores."""
    low, middle, high = score.quantile(torch.tensor([0.1, 0.5, 0.9])).tolist()
    return f"mean {score.mean():.3f} q10 {low:.3f} q50 {middle:.3f} q90 {high:.3f} n {len(score)}"


def ranked(kind: str, clean: Tensor, flawed: Tensor) -> str:
    """How often the clean drawing of a pair scores more."""
    share = float((clean > flawed).float().mean())
    return f"flaw {kind}: ranked {share:.3f} mean {flawed.mean():.3f} n {len(clean)}"


def save_grid(images: Tensor, path: Path) -> None:
    """Eight images a row, four times their size."""
    rows = images.view(-1, 8, 3, 32, 32).permute(0, 3, 1, 4, 2).reshape(-1, 8 * 32, 3)
    picture = Image.fromarray((rows * 255).round().byte().numpy())
    picture.resize((picture.width * 4, picture.height * 4), Image.Resampling.NEAREST).save(path)


if __name__ == "__main__":
    main()
