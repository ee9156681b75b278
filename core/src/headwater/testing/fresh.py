"""What a plugin does when its module is imported and when it is constructed, seen from outside.

`python -m headwater.testing.fresh` answers requests, one line of JSON each, until its input ends.
It has imported torch and core and no plugin. Every request is answered by a fork of it, so that
each plugin meets a process that never saw it.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import random
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from types import FrameType
from typing import IO, Any

HEAVY = (
    *("transformers", "diffusers", "peft", "accelerate", "datasets", "onnxruntime"),
    *("tensorflow", "jax", "torchvision", "open_clip", "rapidocr_onnxruntime", "gradio"),
    *("wandb", "mlflow", "trackio", "tensorboard", "torch.utils.tensorboard", "matplotlib"),
)
"""Libraries that take long to import. They belong inside the method that needs them."""
WATCHED = {
    "open": "opens",
    "socket.": "uses the network:",
    "urllib.Request": "asks the network for",
    "subprocess.Popen": "starts a process:",
    "os.system": "starts a process:",
    "os.fork": "forks",
    "os.posix_spawn": "starts a process:",
    "os.mkdir": "makes the folder",
    "os.remove": "removes",
    "os.rename": "renames",
    "os.listdir": "lists",
    "os.scandir": "lists",
    "os.putenv": "sets the environment variable",
    "tempfile.": "makes a temporary file:",
    "sqlite3.connect": "opens",
    "ctypes.dlopen": "opens the library",
    "_thread.start_new_thread": "starts a thread",
}
"""Audit event (a trailing dot: all that begin so): what it is, in words."""
LARGEST = 2**20
"""Bytes of tensors that a module may make when it is imported: constants, no weights."""


def watched(module: str, attribute: str, settings: Mapping[str, Any]) -> list[str]:
    """Import a plugin's module and construct it; returns what it did that it may not."""
    watch = _Watch(module)
    before = _surroundings()
    heavy = {name for name in HEAVY if name in sys.modules}
    with watch.during("importing it"):
        found: Any = importlib.import_module(module)
    for name in attribute.split("."):
        found = getattr(found, name)
    with watch.during("constructing it"):
        from headwater.settings import structure

        _, problems = structure(found, settings, "")
    done = [*watch.seen, *problems]
    loaded = [name for name in HEAVY if name in sys.modules and name not in heavy]
    done += [f"importing it imports {name}" for name in loaded]
    if watch.allocated > LARGEST:
        done.append(f"it makes {watch.allocated / 2**20:.1f} MiB of tensors")
    after = _surroundings()
    return done + [f"it {what}" for what, value in after.items() if value != before[what]]


class _Watch:
    """An audit hook that blames a package for what its own code does.

    Walking outwards from an event, the first frame of the import system or of the package
    decides: what a library does while the package imports it is the library's.
    """

    def __init__(self, module: str) -> None:
        package = module.partition(".")[0]
        self.names = (module,) if package == "headwater" else (package,)
        self.seen: list[str] = []
        self.allocated = 0
        self.stage = ""
        sys.addaudithook(self._hear)

    @contextlib.contextmanager
    def during(self, stage: str) -> Iterator[None]:
        """Within it events are noted and the sizes of new tensors added up."""
        from torch.utils._python_dispatch import TorchDispatchMode
        from torch.utils._pytree import tree_flatten

        watch = self

        class Sizes(TorchDispatchMode):
            def __torch_dispatch__(
                self, func: Any, types: Any, args: Any = (), kwargs: Any = None
            ) -> Any:
                out = func(*args, **(kwargs or {}))
                if watch.blamed(sys._getframe(1)):
                    sizes = (getattr(t, "nbytes", 0) for t in tree_flatten(out)[0])
                    watch.allocated += sum(sizes)
                return out

        with Sizes():
            self.stage = stage
            try:
                yield
            finally:
                self.stage = ""

    def blamed(self, frame: FrameType | None) -> str:
        """`file:line` of the package's own code, or nothing."""
        while frame is not None:
            if frame.f_code.co_filename.startswith("<frozen importlib"):
                return ""
            name = str(frame.f_globals.get("__name__", ""))
            if any(name == own or name.startswith(f"{own}.") for own in self.names):
                return f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"  # noqa: PTH119
            frame = frame.f_back
        return ""

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.stage:
            return
        for name, words in WATCHED.items():
            if event == name or (name.endswith(".") and event.startswith(name)):
                place = self.blamed(sys._getframe(1))
                if place:
                    about = f" {arguments[0]}" if arguments else ""
                    self.seen.append(f"{self.stage} {words}{about} ({place})")
                return


def _surroundings() -> dict[str, Any]:
    """What of the process a plugin must leave as it was."""
    import numpy as np
    import torch

    return {
        "leaves a thread running": threading.active_count(),
        "draws from or seeds torch's global generator": torch.get_rng_state().tolist(),
        "draws from or seeds numpy's global generator": repr(np.random.get_state()),
        "draws from or seeds Python's global generator": random.getstate(),
        "changes torch's default dtype": str(torch.get_default_dtype()),
        "changes torch's number of threads": torch.get_num_threads(),
        "switches autograd": torch.is_grad_enabled(),
        "changes torch's deterministic mode": torch.are_deterministic_algorithms_enabled(),
        "starts CUDA": torch.cuda.is_initialized(),
        "changes the working directory": os.getcwd(),  # noqa: PTH109
    }


def _answer(line: str, out: IO[str]) -> None:
    request = json.loads(line)
    sys.path[:] = request["path"]
    importlib.invalidate_caches()
    try:
        done = watched(*request["plugin"])
    except BaseException as error:  # noqa: BLE001 - reported by the caller
        done = [f"importing or constructing it failed: {type(error).__name__}: {error}"]
    print(json.dumps({"done": done}), file=out, flush=True)


def main(out: IO[str]) -> None:
    """Answer requests until the input ends."""
    import torch

    import headwater.engine
    import headwater.randomness
    import headwater.settings
    import headwater.validators  # noqa: F401

    sys.dont_write_bytecode = True
    torch.set_num_threads(1)
    while line := sys.stdin.readline():
        if not hasattr(os, "fork"):
            _answer(line, out)
            return
        child = os.fork()
        if child == 0:
            try:
                _answer(line, out)
            finally:
                os._exit(0)
        os.waitpid(child, 0)


class Fresh:
    """The client of such a process."""

    def __init__(self) -> None:
        self.process: subprocess.Popen[str] | None = None

    def ask(self, target: str, settings: Mapping[str, Any]) -> list[str]:
        """What the plugin at `module:Class` does that it may not."""
        if self.process is None or self.process.poll() is not None:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "headwater.testing.fresh"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        assert self.process.stdin is not None and self.process.stdout is not None
        module, _, attribute = target.partition(":")
        request = {"path": sys.path, "plugin": [module, attribute, dict(settings)]}
        print(json.dumps(request), file=self.process.stdin, flush=True)
        answer = self.process.stdout.readline()
        if not answer:
            return ["importing or constructing it ends the process"]
        return list(json.loads(answer)["done"])

    def close(self) -> None:
        """End the process."""
        if self.process is not None:
            assert self.process.stdin is not None and self.process.stdout is not None
            self.process.stdin.close()
            self.process.wait()
            self.process.stdout.close()


if __name__ == "__main__":
    # What a plugin prints must not mix with the answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    main(answers)
