"""Estimators whose hooks, declarations or surrogates are none."""

from support.broken.rows import Row, method, rows

ROWS: list[Row] = []

# Its hooks and declarations are none of this version's.

ROWS += rows(
    "estimator",
    "found",
    {
        "unknown-hook": (
            "@frozen\nclass Mine(LastStep):\n    @hookimpl\n    def after_surrogate(self): pass",
            "does not fit the hooks of this version of headwater: unknown hook 'after_surrogate'",
        ),
        "misspelt-argument": (
            "@frozen\nclass Mine(LastStep):\n    @hookimpl\n    def build_surrogate(self, rolout): 1",
            "does not fit the hooks of this version",
        ),
        "argument-with-default": (
            "@frozen\nclass Mine(LastStep):\n    @hookimpl\n"
            "    def build_surrogate(self, rollout, generator=None): pass",
            "the parameter 'generator=None' of the hook 'build_surrogate' of Mine",
        ),
        "keyword-only": (
            "@frozen\nclass Mine(LastStep):\n    @hookimpl\n"
            "    def build_surrogate(self, *, rollout): pass",
            "the parameter 'rollout' of the hook 'build_surrogate' of Mine: hooks take plain",
        ),
        "any-arguments": (
            "@frozen\nclass Mine(LastStep):\n    @hookimpl\n"
            "    def build_surrogate(self, **given): pass",
            "the parameter '**given' of the hook 'build_surrogate' of Mine",
        ),
        "no-hook": (
            "@frozen\nclass Mine:\n    upstream = 'endpoint'\n    endpoint = 'sample'",
            "brings no hook 'build_surrogate'",
        ),
        "sideways": (
            "@frozen\nclass Mine(LastStep):\n    upstream = 'sideways'",
            "declares upstream = 'sideways'; expected one of 'endpoint', 'per-step'",
        ),
        "no-upstream": (
            "@frozen\nclass Mine:\n    endpoint = 'sample'",
            "does not declare upstream",
        ),
        "constructor-raises": (
            "@frozen\nclass Mine(LastStep):\n    def __attrs_post_init__(self): 1 / 0",
            "cannot be made: ZeroDivisionError: division by zero",
        ),
        "constructor-exits": (
            "@frozen\nclass Mine(LastStep):\n    def __attrs_post_init__(self): exit()",
            "cannot be made: SystemExit",
        ),
        "validator-raises": (
            "@frozen\nclass Mine(LastStep):\n"
            "    size: int = attrs.field(default=0, validator=lambda i, f, v: 1 / v)",
            "cannot be made: ZeroDivisionError: division by zero",
        ),
        "bad-default": (
            "from headwater.validators import in_range\n@frozen\nclass Mine(LastStep):\n"
            "    size: int = attrs.field(default=3, validator=in_range(0, 1))",
            "cannot be made: ValueError: expected a number from 0 to 1, got 3",
        ),
        "abstract": (
            "import abc\n@frozen\nclass Mine(LastStep, abc.ABC):\n"
            "    @abc.abstractmethod\n    def todo(self): pass",
            "cannot be made: TypeError: Can't instantiate abstract class Mine",
        ),
        "problems-raises": (
            "@frozen\nclass Mine(LastStep):\n    def problems(self, run): return run.no_such",
            "failed in problems: AttributeError",
        ),
    },
)

SURROGATE = """
@frozen
class Mine(LastStep):
    @hookimpl
    def build_surrogate(self, rollout):
        image, one = rollout.state(rollout.steps), torch.ones(1, 1)
        return {}
"""


def surrogate(text, cause):
    return SURROGATE.format(text), cause


# Its surrogate is none. The first optimizer step is planned before any weight loads.

ROWS += rows(
    "estimator",
    "found",
    {
        "surrogate-none": surrogate("None", "expected a Surrogate, got NoneType"),
        "surrogate-tuple": surrogate("(1, 2)", "expected a Surrogate, got tuple"),
        "surrogate-raises": surrogate("rollout.no_such", "has no attribute 'no_such'"),
        "surrogate-exits": surrogate("exit()", "called for an exit in hook 'build_surrogate'"),
        "steps-outside": surrogate(
            "Surrogate((Group((7,), (7,), one, 0.0),), image, None, rollout)",
            "steps [7] are not among the 5 of the rollout",
        ),
        "basis-not-finite": surrogate(
            "Surrogate((Group((0,), (0,), one / 0, 0.0),), image, None, rollout)",
            "a basis is not finite",
        ),
        "basis-of-wrong-shape": surrogate(
            "Surrogate((Group((0, 1), (0,), one, 0.0),), image, None, rollout)",
            "basis must be (1, 2), got (1, 1)",
        ),
        "basis-is-a-list": surrogate(
            "Surrogate((Group((0,), (0,), [[1.0]], 0.0),), image, None, rollout)",
            "basis",
        ),
        "first-step-inactive": surrogate(
            "Surrogate((Group((0, 1), (1,), torch.ones(1, 2), 0.5),), image, None, rollout)",
            "coupling 0.5 needs the group's first step 0 active, got [1]",
        ),
        "endpoint-of-wrong-shape": surrogate(
            "Surrogate((), image[:, :0], None, rollout)",
            "endpoint: expected a tensor of shape (1, 1), got (1, 0)",
        ),
        "endpoint-missing": surrogate(
            "Surrogate((Group((0,), (0,), one, 0.0),), None, None, rollout)",
            "no endpoint for the upstream 'endpoint' that the estimator declares",
        ),
        "weights-of-wrong-shape": surrogate(
            "Surrogate((), image, torch.ones(7), rollout)",
            "sample weights: expected a tensor of shape (1,), got (7,)",
        ),
    },
)


ROWS += rows(
    "estimator",
    "run",
    {
        "cotangents-of-wrong-shape": (
            method("LastStep", "aggregate(self, upstream): return upstream.sum(0)"),
            "hook 'aggregate': expected a tensor of shape (1, 4, 3, 4, 4), got (4, 3, 4, 4)",
        ),
        "backward-none": (
            method("LastStep", "backward(self, group): pass"),
            "hook 'backward': expected a tensor of shape (4, 3, 4, 4), got NoneType",
        ),
    },
)
