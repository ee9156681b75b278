"""Start a script in several processes, as a user would."""

import os
import subprocess
import sys


def launch(processes, *arguments, sharded=False, timeout=600, extra=None):
    """Run a script in so many processes, as a user would."""
    environment = {**os.environ, "ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1"}
    if sharded:
        environment |= {"ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "2"}
    environment |= extra or {}
    command = [sys.executable, *arguments]
    if processes > 1:
        runner = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node"]
        command = [sys.executable, *runner, str(processes), *arguments]
    return subprocess.run(
        [str(c) for c in command], env=environment, timeout=timeout, capture_output=True, text=True
    )
