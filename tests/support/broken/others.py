"""Rewards, backbones, algorithms, dynamics and observers that give what they should not."""

from support.broken.rows import Row, method, rows

ROWS: list[Row] = []
ROWS += rows(
    "reward",
    "found",
    {
        "no-differentiable": (
            "@frozen\nclass Mine:\n    needs_text = False\n    margin = 1.0",
            "does not declare differentiable",
        ),
        "margin-of-wrong-type": (
            "@frozen\nclass Mine(Brightness):\n    margin = 'wide'",
            "declares margin = 'wide'; expected a number or None",
        ),
        "differentiable-in-words": (
            "@frozen\nclass Mine(Brightness):\n    differentiable = 'yes'",
            "declares differentiable = 'yes'; expected one of True, False",
        ),
        "no-score": (
            "@frozen\nclass Mine:\n    differentiable = True\n    needs_text = False\n"
            "    margin = 1.0",
            "brings no hook 'score'",
        ),
    },
)
ROWS += rows(
    "reward",
    "load",
    {
        "load-raises": (
            method("Brightness", "load(self, context): 1 / 0", ""),
            "ZeroDivisionError: division by zero",
        ),
        "load-exits": (
            method("Brightness", "load(self, context): exit(0)", ""),
            "called for an exit in load",
        ),
    },
)
ROWS += rows(
    "reward",
    "run",
    {
        "score-raises": (method("Brightness", "score(self, images): 1 / 0"), "ZeroDivisionError"),
        "score-exits": (
            method("Brightness", "score(self, images): exit(0)"),
            "called for an exit in hook 'score'",
        ),
        "score-none": (
            method("Brightness", "score(self, images): pass"),
            "expected scores of shape (4,), got NoneType",
        ),
        "score-list": (
            method("Brightness", "score(self, images): return [1.0] * len(images)"),
            "expected scores of shape (4,), got list",
        ),
        "score-of-wrong-shape": (
            method("Brightness", "score(self, images): return images.mean()"),
            "expected scores of shape (4,), got ()",
        ),
        "score-of-integers": (
            method("Brightness", "score(self, images): return images.sum((1, 2, 3)).long()"),
            "expected scores of floating numbers, got torch.int64",
        ),
        "score-detached": (
            method("Brightness", "score(self, images): return images.detach().mean((1, 2, 3))"),
            "declares itself differentiable but its scores have no gradient",
        ),
        "score-in-place": (
            method("Brightness", "score(self, images): return images.mul_(0.5).mean((1, 2, 3))"),
            "changes the images",
        ),
    },
)
ROWS += rows(
    "reward",
    "guard",
    {
        "score-nan": (
            method("Brightness", "score(self, images): return images.mean((1, 2, 3)) * torch.nan"),
            "reward 'brightness' is nan for 5 of 5 prompts",
        ),
    },
)
ROWS += rows(
    "backbone",
    "guard",
    {
        "velocity-nan": (
            method("ToyBackbone", "velocity(self, x, sigma, conditioning): return x / 0 * 0", ""),
            "reward 'brightness' is nan for 5 of 5 prompts",
        ),
    },
)
ROWS += rows(
    "backbone",
    "found",
    {
        "no-velocity": (
            "@frozen\nclass Mine:\n    guidance_kind = 'none'\n"
            "    def network_evaluations(self, guidance): return 1, 1",
            "does not declare encode, velocity, decode, shape, sigmas, noise, trainable",
        ),
        "guidance-of-another-kind": (
            "@define\nclass Mine(ToyBackbone):\n    guidance_kind = 'strong'",
            "declares guidance_kind = 'strong'; expected one of 'none', 'embedded'",
        ),
        "sigmas-not-falling": (
            method("ToyBackbone", "sigmas(self, steps, shape): return torch.ones(steps + 1)", ""),
            "expected sigmas that fall to 0, got [1.0",
        ),
        "sigmas-too-few": (
            method("ToyBackbone", "sigmas(self, steps, shape): return torch.ones(2)", ""),
            "expected a tensor of shape (6,), got (2,)",
        ),
        "evaluations-in-words": (
            method("ToyBackbone", "network_evaluations(self, guidance): return 'one'", ""),
            "expected two whole numbers",
        ),
        "shape-none": (
            method("ToyBackbone", "shape(self, request): return None", ""),
            "expected the shape of a latent, got None",
        ),
    },
)
ROWS += rows(
    "backbone",
    "load",
    {
        "nothing-to-train": (
            method("ToyBackbone", "trainable(self): return {}", ""),
            "has nothing to train",
        ),
    },
)
ROWS += rows(
    "backbone",
    "run",
    {
        "velocity-of-wrong-shape": (
            method("ToyBackbone", "velocity(self, x, sigma, conditioning): return x[:, :1]", ""),
            "expected a velocity of shape (4, 3, 4, 4), got (4, 1, 4, 4)",
        ),
        "velocity-none": (
            method("ToyBackbone", "velocity(self, x, sigma, conditioning): pass", ""),
            "expected a velocity of shape (4, 3, 4, 4), got NoneType",
        ),
        "velocity-exits": (
            method("ToyBackbone", "velocity(self, x, sigma, conditioning): exit()", ""),
            "called for an exit in velocity",
        ),
        "decode-of-wrong-rank": (
            method("ToyBackbone", "decode(self, latents): return latents[:, 0]", ""),
            "expected images of shape",
        ),
        "decode-out-of-range": (
            method("ToyBackbone", "decode(self, latents): return latents.sigmoid() * 255", ""),
            "expected images in [0, 1]",
        ),
        "encode-too-few": (
            "@define\nclass Mine(ToyBackbone):\n    def encode(self, prompts):\n"
            "        return ToyBackbone().encode(prompts[:1])",
            "expected a conditioning of length 4, got 1",
        ),
        "noise-of-wrong-shape": (
            method("ToyBackbone", "noise(self, shape, seeds): return torch.zeros(shape)", ""),
            "expected noise of shape (4, 3, 4, 4), got (3, 4, 4)",
        ),
        "rollout-none": (
            method("ToyBackbone", "sample_rollout(self, batch): return 3"),
            "hook 'sample_rollout': expected a Rollout, got int",
        ),
    },
)
ROWS += rows(
    "algorithm",
    "found",
    {
        "no-credit": (
            "@frozen\nclass Mine:\n    upstream = 'endpoint'\n    needs_stochastic_steps = False",
            "does not declare stochastic_steps, trained_steps, credit",
        ),
        "needs-a-number": (
            "@frozen\nclass Mine(ToyDirect):\n    needs_stochastic_steps = 1",
            "declares needs_stochastic_steps = 1; expected one of True, False",
        ),
        "trained-outside": (
            method("ToyDirect", "trained_steps(self, step, N, generator): return (N,)", ""),
            "steps [5] are not among the 5 of a rollout",
        ),
        "steps-none": (
            method("ToyDirect", "stochastic_steps(self, step, N): return None", ""),
            "TypeError: 'NoneType' object is not iterable",
        ),
    },
)
ROWS += rows(
    "algorithm",
    "run",
    {
        "upstream-of-wrong-shape": (
            method("ToyDirect", "compute_upstream(self, carried): return carried"),
            "expected a tensor of shape (1, 4, 3, 4, 4), got (4, 3, 4, 4)",
        ),
        "upstream-none": (
            method("ToyDirect", "compute_upstream(self, carried): pass"),
            "expected a tensor of shape (1, 4, 3, 4, 4), got NoneType",
        ),
        "credit-none": (
            method("ToyDirect", "credit(self, scores, surrogate): return None", ""),
            "expected a Credit, got NoneType",
        ),
        "credit-without-gradient": (
            method("ToyDirect", "credit(self, scores, surrogate): return Credit()", ""),
            "credit: expected a gradient at the endpoint of shape (4, 3, 4, 4), got NoneType",
        ),
        "credit-raises": (
            method("ToyDirect", "credit(self, scores, surrogate): 1 / 0", ""),
            "ZeroDivisionError",
        ),
    },
)
ROWS += rows(
    "dynamics",
    "found",
    {
        "std-negative": (
            method("ToyNoise", "transition(self, x, v, i, sigmas): return Transition(x, -0.1)", ""),
            "transition: expected a standard deviation from 0, one number, got -0.1",
        ),
        "mean-of-wrong-shape": (
            method(
                "ToyNoise",
                "transition(self, x, v, i, sigmas): return Transition(x.mean(), 0.1)",
                "",
            ),
            "transition: expected a mean of shape (1, 1), got ()",
        ),
        "transition-none": (
            method("ToyNoise", "transition(self, x, v, i, sigmas): pass", ""),
            "expected a Transition, got NoneType",
        ),
        "transition-raises": (
            method("ToyNoise", "transition(self, x, v, i, sigmas): 1 / 0", ""),
            "ZeroDivisionError",
        ),
    },
)
ROWS += rows(
    "dynamics",
    "run",
    {
        "log-prob-raises": (
            method("ToyNoise", "log_prob(self, next, transition): 1 / 0", ""),
            "ZeroDivisionError",
        ),
        "log-prob-of-wrong-shape": (
            method("ToyNoise", "log_prob(self, next, transition): return next", ""),
            "expected log-probabilities of shape (4,), got (4, 3, 4, 4)",
        ),
    },
)
ROWS += rows(
    "observer",
    "found",
    {
        "observer-of-another-hook": (
            method("Recorder", "score(self, images): pass"),
            "does not fit the hooks of this version of headwater: unknown hook 'score'",
        ),
    },
)
