"""Train the autoencoder on drawings. Stops by patches seen; ~150 s on two CPU cores."""

from __future__ import annotations

import argparse
import math
import time
from pathlib import Path

import torch
from torch import Tensor

from headwater_tiny.autoencoder import PatchAutoencoder, patches
from headwater_tiny.draw import draw, sample_layouts
from headwater_tiny.grammar import sample_scene


def main() -> None:
    """Train, measure, save `autoencoder.pt` and a log."""
    options = arguments()
    options.work.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(options.seed)
    model = PatchAutoencoder()
    pool = patch_pool(options.pool, options.seed)
    lines = [f"parameters {sum(p.numel() for p in model.parameters())} patches {len(pool)}"]
    start = time.monotonic()
    train(
        model, pool, options, lambda text: lines.append(f"{text} s {time.monotonic() - start:.0f}")
    )
    set_statistics(model, options)
    lines.append(f"held-out PSNR {psnr(model, options.seed + 1):.2f} dB")
    torch.save(model.state_dict(), options.work / "autoencoder.pt")
    options.log.write_text("\n".join(lines) + "\n")
    print("\n".join(lines[-3:]))


def arguments() -> argparse.Namespace:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, required=True, help="scratch folder")
    parser.add_argument("--log", type=Path, default=Path(__file__).with_suffix(".log"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--pool", type=int, default=40_000, help="drawings in the pool")
    parser.add_argument("--patches", type=int, default=10_000_000, help="patches to train on")
    return parser.parse_args()


def drawings(count: int, seed: int) -> Tensor:
    """Drawings of random scenes, (count, 3, 32, 32)."""
    generator = torch.Generator().manual_seed(seed)
    scenes = [sample_scene(generator) for _ in range(count)]
    return draw(sample_layouts(scenes, generator))


def patch_pool(count: int, seed: int) -> Tensor:
    """Distinct patches (P, 192): those with an edge in them, and a tenth as many flat ones."""
    flat = torch.cat([patches(drawings(2000, seed + i)) for i in range(count // 2000)])
    edge = (flat.view(-1, 3, 64).std(dim=-1) > 0.01).any(dim=1)
    edges = flat[edge]
    plain = flat[~edge][: len(edges) // 10]
    return torch.cat([edges, plain])


def train(model: PatchAutoencoder, pool: Tensor, options: argparse.Namespace, log) -> None:
    """L2 + .1 L1 with noise .05 on the codes and a penalty that keeps their variance at 1."""
    batch, generator = 2048, torch.Generator().manual_seed(options.seed + 2)
    total = options.patches // batch
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=1e-4)
    for step in range(total):
        for group in optimizer.param_groups:
            warm = min(1.0, (step + 1) / 100)
            group["lr"] = 3e-3 * warm * (0.01 + 0.99 * (1 + math.cos(math.pi * step / total)) / 2)
        x = pool[torch.randint(len(pool), (batch,), generator=generator)]
        codes = model.encode_patches(x)
        noisy = codes + 0.05 * torch.randn(codes.shape, generator=generator)
        error = model.decode_patches(noisy) - x
        spread = (codes.var(dim=0) - 1).square().mean() + codes.mean(dim=0).square().mean()
        loss = error.square().mean() + 0.1 * error.abs().mean() + 0.01 * spread
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 250 == 0 or step == total - 1:
            log(f"step {step} loss {loss.item():.5f} mse {error.square().mean().item():.6f}")


@torch.no_grad()
def set_statistics(model: PatchAutoencoder, options: argparse.Namespace) -> None:
    """Store the mean and deviation of the codes over whole drawings."""
    codes = model.encode_patches(patches(drawings(8000, options.seed + 3)))
    model.mean.copy_(codes.mean(dim=0))
    model.std.copy_(codes.std(dim=0))


@torch.no_grad()
def psnr(model: PatchAutoencoder, seed: int) -> float:
    """Peak signal to noise of reconstructions of new drawings, in dB."""
    images = drawings(1024, seed)
    mse = (model.decode(model.encode(images)) - images).square().mean(dim=(1, 2, 3))
    return float((-10 * mse.log10()).mean())


if __name__ == "__main__":
    main()
