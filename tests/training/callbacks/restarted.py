"""A training that is stopped by the pool, and carried on by another process: does it end as if nothing had happened?"""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

from prefect_gpu.training.protocol import CHECKPOINT, ENV_CHECKPOINTS, PROGRESS, STOP

OFFLINE = {"HF_HUB_OFFLINE": "1", "KERAS_BACKEND": "torch", "TQDM_DISABLE": "1", "OMP_NUM_THREADS": "1"}
PATIENCE = 120.0  # three imports of a large library on a busy machine

# What every training begins with: wait() holds a run of the pool until it has been told to stop, and digest() says
# which weights came out of it, to the last bit.
COMMON = """
import hashlib, os, time
from prefect_gpu.training import training_run

def wait(run):
    while "PREFECT_GPU_TOKEN" in os.environ and run._mailbox.stop is None:
        time.sleep(0.001)

def digest(arrays):
    return hashlib.sha256(b"".join(array.tobytes() for array in arrays)).hexdigest()
"""


def ends_alike(controller: Any, folder: Path, training: str, *, held_at: int) -> tuple[list[int], list[str]]:
    """Train in the pool until it says stop, carry on in a second process, and train the whole in a third one.

    Args:
        training: A program that prints its first step, its last step, and the digest of its weights.
        held_at: The steps that have been reported when it calls ``wait()``.

    Returns:
        The steps at which the pool got a checkpoint, and what the second process said before its digest.
    """
    program = COMMON + textwrap.dedent(training)
    process = controller.popen(program, **OFFLINE)
    controller.wait_for(lambda: any(data["step"] == held_at for data in controller.data(PROGRESS)))
    controller.instruct(STOP, reason="enough")
    out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, err
    carried_on = _alone(program, folder, {ENV_CHECKPOINTS: str(controller.checkpoints)})
    whole = _alone(program, folder, {})
    assert carried_on[-1] == whole[-1], (carried_on, whole)
    assert out.split()[-1] != whole[-1]
    return [event["step"] for event in controller.data(CHECKPOINT)], carried_on[:-1]


def _alone(program: str, folder: Path, env: dict[str, str]) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, **OFFLINE, **env},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()
