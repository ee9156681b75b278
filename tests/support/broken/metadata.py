"""What is broken beside the module: metadata folders, commands, prompt lists, names."""

from support.broken.rows import HEAD


def _points(*lines: str) -> bytes:
    return "\n".join(["[headwater.estimator]", *lines, ""]).encode()


METADATA = {
    "no_name": {
        "METADATA": b"Version: 2.3\n",
        "entry_points.txt": _points("no-name = nowhere:Mine"),
    },
    "no_version": {
        "METADATA": b"Name: no-version\n",
        "entry_points.txt": _points("no-version = nowhere:Mine"),
    },
    "no_metadata": {"entry_points.txt": _points("no-metadata = nowhere:Mine")},
    "malformed": {"METADATA": b"", "entry_points.txt": _points("malformed")},
    "binary": {"METADATA": bytes(range(256)), "entry_points.txt": bytes(range(256))},
    "utf16": {"entry_points.txt": _points("a = b:C").decode().encode("utf-16")},
    "odd_points": {
        "entry_points.txt": _points("no-target =", "= b:C", "a a = b c", "[headwater.x]")
    },
    "newer": {
        "METADATA": b"Name: newer\nVersion: 2.3\nRequires-Dist: headwater>=9\n",
        "entry_points.txt": _points("newer = newer:Mine"),
    },
}
OTHERS = {
    "twice-a": ({"estimator twice": "Mine"}, HEAD),
    "twice-b": ({"estimator twice": "Mine"}, HEAD),
    "no-command": ({"command no-command": "Mine"}, HEAD + "Mine = 3"),
    "command-raises": ({"command command-raises": "Mine"}, HEAD + "1 / 0"),
    "command-exits": ({"command command-exits": "Mine"}, HEAD + "exit()"),
    "claims-a": ({"command claimed": "Mine"}, HEAD),
    "claims-b": ({"command claimed": "Mine"}, HEAD),
    "claims-run": ({"command run": "Mine"}, HEAD),
    "lists-raise": ({"prompts lists-raise": "Mine"}, HEAD + "import nowhere"),
    "lists-none": ({"prompts lists-none": "Mine"}, HEAD + "Mine = 3"),
}
"""Distribution: entry points and module."""
