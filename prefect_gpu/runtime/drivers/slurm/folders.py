"""Where the files of runs are, as an agent sees them: in the worker's folders, or else in its node's own."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from prefect_gpu.runtime.disk import files
from prefect_gpu.runtime.drivers.slurm import words
from prefect_gpu.training.protocol import ENV_CHANNEL_FILE, ENV_CHECKPOINTS, ENV_CREDENTIALS_FILE, ENV_LOCKS


class Folders(Protocol):
    """What the two have in common.

    Attributes:
        own: Whether they are the node's own, so that the worker sees nothing of them.
    """

    own: bool

    def of(self, run_dir: str) -> Path:
        """The folder of a launch, given the one that the worker knows."""

    def specified(self, run_dir: str, spec: dict[str, Any] | None) -> dict[str, Any]:
        """What is to be started, with this node's own values.

        Args:
            spec: What came with the instruction; None: it lies in the launch's folder.
        """

    def environ(self, told: Mapping[str, str]) -> dict[str, str]:
        """An environment that the worker has told, with this node's own values."""

    def forget(self, run_dir: str) -> None:
        """The worker has all that there is of a launch."""

    def close(self) -> None:
        """The allocation is over."""


class SharedFolders:
    """The worker's, at the same path.

    Args:
        own: Names of variables of which this node's own values count.
    """

    own = False

    def __init__(self, own: Mapping[str, str]) -> None:
        self._own = own

    def of(self, run_dir: str) -> Path:
        return Path(run_dir)

    def specified(self, run_dir: str, spec: dict[str, Any] | None) -> dict[str, Any]:
        path = Path(run_dir) / words.SPEC
        told: dict[str, Any] = files.load(path)
        path.unlink()
        return told | {"env": self.environ(told["env"])}

    def environ(self, told: Mapping[str, str]) -> dict[str, str]:
        return {**told, **self._own}

    def forget(self, run_dir: str) -> None:
        return

    def close(self) -> None:
        return


class OwnFolders:
    """The node's own, in the folder for temporary files that Slurm or the site gives to the job.

    Args:
        agent: Whose they are; no other one has this name.
        own: Variables of this node that runs are told unless they are told otherwise.
    """

    own = True

    def __init__(self, agent: str, own: Mapping[str, str]) -> None:
        place = Path(os.environ.get("SLURM_TMPDIR") or tempfile.gettempdir())
        self._own, self._folder = own, place / f"prefect-gpu-{agent}"
        self._folder.mkdir(mode=0o700)
        (self._folder / "locks").mkdir()

    def of(self, run_dir: str) -> Path:
        return self._folder / "runs" / hashlib.sha256(run_dir.encode()).hexdigest()[:24]

    def specified(self, run_dir: str, spec: dict[str, Any] | None) -> dict[str, Any]:
        assert spec is not None, "a worker that shares no folder sends it"
        folder = self.of(run_dir)
        folder.mkdir(parents=True, exist_ok=True)
        env = self.environ(spec["env"])
        for name in (ENV_CHANNEL_FILE, ENV_CREDENTIALS_FILE):
            if name in env:
                env[name] = env[name].replace(words.RUN_FOLDER, str(folder), 1)
        if ENV_LOCKS in env:
            locks = [str(one).replace(words.NODE_FOLDER, str(self._folder), 1) for one in json.loads(env[ENV_LOCKS])]
            env[ENV_LOCKS] = json.dumps(locks)
        if "://" not in env.get(ENV_CHECKPOINTS, "://"):  # a folder of the worker's; who needs them there was refused
            env[ENV_CHECKPOINTS] = str(folder / "checkpoints")
        cwd = spec["cwd"]
        if not cwd:
            cwd = str(folder / "work")
            Path(cwd).mkdir(exist_ok=True)
        return spec | {"env": env, "cwd": cwd}

    def environ(self, told: Mapping[str, str]) -> dict[str, str]:
        return {**self._own, **told}

    def forget(self, run_dir: str) -> None:
        shutil.rmtree(self.of(run_dir), ignore_errors=True)

    def close(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)
