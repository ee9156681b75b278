"""Modules that cannot be imported or hold no plugin, and imports with effects beside."""

from support.broken.rows import PLUGIN, Row, method, rows

ROWS: list[Row] = []

ROWS += rows(
    "estimator",
    "found",
    {
        "import-error": ("import nothing_of_that_name", "No module named 'nothing_of_that_name'"),
        "exit": ("raise SystemExit(0)", "SystemExit: 0"),
        "interrupt": ("raise KeyboardInterrupt", "KeyboardInterrupt"),
        "syntax-error": ("def", "SyntaxError: invalid syntax"),
        "recursion": ("def f(): f()\nf()", "RecursionError: maximum recursion depth"),
        "error-without-text": (
            "class Silent(Exception):\n    def __str__(self): return 1 / 0\nraise Silent",
            "Silent: an error whose text cannot be shown",
        ),
        "long-error": ("raise ValueError('long\\n' * 10_000)", "ValueError: long long"),
        "no-attribute": ("class Other: pass", "has no attribute 'Mine'"),
        "none": ("Mine = None", "None is not a class"),
        "function": ("def Mine(): pass", "is not a class"),
        "plain-class": ("class Mine: pass", "Mine is not an attrs class"),
        "by-value": ("import attrs\n@attrs.define\nclass Mine: pass", "Mine compares by value"),
        "field-without-type": (
            "import attrs\n@attrs.frozen(eq=False)\nclass Mine:\n    a = attrs.field(default=1)",
            "the field 'a' of Mine has no type",
        ),
        "unknown-type": (
            "import attrs\n@attrs.frozen(eq=False)\nclass Mine:\n    a: 'Nowhere' = 1",
            "the type of a field of Mine cannot be resolved: NameError",
        ),
    },
    head="",
)

HARMLESS: list[Row] = []


HARMLESS += rows(
    "estimator",
    "harmless",
    {
        name: (f"{source}\n@frozen\nclass Mine(LastStep): pass", cause)
        for name, (source, cause) in {
            "prints": ("print('hello')", "hello"),
            "warns": ("import warnings\nwarnings.warn('beware')", "Warning: beware"),
            "changes-folder": ("import os\nos.chdir('/')", "changes the working directory"),
            "changes-path": ("import sys\nsys.path.insert(0, '/nowhere')", ""),
            "changes-signals": (
                "import signal\nfor s in 'INT', 'TERM': signal.signal(getattr(signal, f'SIG{s}'), print)",
                "changes the handler of SIGINT, the handler of SIGTERM; put back",
            ),
            "changes-warnings": (
                "import warnings\nwarnings.simplefilter('error')",
                "changes which warnings are errors; put back",
            ),
            "changes-dtype": (
                "torch.set_default_dtype(torch.float16)",
                "changes torch's default dtype; put back",
            ),
            "changes-device": ("torch.set_default_device('meta')", "torch's default device"),
            "changes-autograd": ("torch.set_grad_enabled(False)", "changes autograd's mode"),
            "seeds": (
                "import random, numpy\nrandom.seed(1), numpy.random.seed(1), torch.manual_seed(1)",
                "",
            ),
        }.items()
    },
)
HARMLESS += rows(
    "observer",
    "harmless",
    {
        "observer-raises": (
            method("Recorder", "after_step(self, step): raise OSError('gone')"),
            "failed in after_step: OSError: gone",
        ),
        "observer-exits": (
            method("Recorder", "after_step(self, step): exit(5)"),
            "failed in after_step: SystemExit: 5",
        ),
    },
)

PLAIN = {
    "estimator": PLUGIN + "@frozen\nclass Mine(LastStep): pass",
    "observer": PLUGIN + "@define\nclass Mine(Recorder): pass",
}
"""The same without a fault."""
