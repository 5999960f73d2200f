"""Bundle execution step: run the flow of a bundle in *this* process.

``python -m prefect_gpu.bundles.execute --directory FOLDER --key KEY``

Prefect's own step starts another interpreter for the flow. Here the process that the worker started is the one
that trains: it is the one measured, signalled and started warm.
"""

from __future__ import annotations

import argparse
import asyncio
import inspect
import json
import os
import socket
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

from prefect_gpu.bundles.folder import bundle_path
from prefect_gpu.training.scratch import Scratch

_scratch: Scratch | None = None  # its folder goes with this process


def read_bundle(directory: str | Path, key: str) -> dict[str, Any]:
    """The bundle as Prefect wrote it.

    Raises:
        FileNotFoundError: It is not in this machine's folder. The message says what to do.
    """
    path = bundle_path(directory, key)
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise FileNotFoundError(
            f"The flow's bundle {path} is not on this machine ({socket.gethostname()}): the run was submitted from "
            "another machine, or the bundle was deleted. To submit from other machines, name a folder that all of them "
            "see (PREFECT_INTEGRATIONS_GPU_BUNDLES), or use S3: prefect work-pool storage configure --help."
        ) from None


def execute(directory: str | Path, key: str) -> None:
    """Run a bundle's flow, as ``python -m prefect.engine`` runs a deployment's.

    Args:
        directory: The bundle folder.
        key: The bundle's name in it.

    Raises:
        SystemExit: The engine has already reported how the run ended.
    """
    # Imported here: the command's own errors should not wait for Prefect.
    from prefect.bundles import _deserialize_bundle_object, extract_flow_from_bundle
    from prefect.engine import handle_engine_signals
    from prefect.flow_engine import flow_run_logger, load_flow_run, run_flow

    from prefect_gpu.instance import is_first_instance, is_further_instance, not_tried_here, run_function

    bundle = read_bundle(directory, key)
    flow_run_id = UUID(bundle["flow_run"]["id"])
    with handle_engine_signals(flow_run_id):
        # Read again rather than taken from the bundle: a moved or resized run is run a second time.
        flow_run = load_flow_run(flow_run_id)
        logger = flow_run_logger(flow_run)
        try:
            if bundle.get("files_key"):
                _unpack(bundle_path(directory, bundle["files_key"]))
            flow = extract_flow_from_bundle(bundle)  # type: ignore[arg-type]
            context = _deserialize_bundle_object(bundle["context"])
        except Exception:
            logger.error(
                "The flow could not be unpacked from its bundle, which opens only in the version of Python that made "
                "it. This is %s.%s.",
                *sys.version_info[:2],
                exc_info=True,
            )
            raise
        # Where the run is, the worker's settings count (API address, key, home), not the submitter's.
        context.pop("settings_context", None)
        if is_further_instance():
            run_function(flow, flow_run)
            return
        if is_first_instance():
            flow = not_tried_here(flow)
        _drive(run_flow(flow, flow_run=flow_run, error_logger=logger, context=context))  # type: ignore[arg-type]


def _unpack(archive: Path) -> None:
    """Unpack the included files into a folder of the run's own and work there.

    Never into the present folder: on one machine that is often the user's project, whose files may be newer.
    """
    global _scratch
    _scratch = Scratch("prefect-gpu-files-")
    folder = _scratch.empty()
    with zipfile.ZipFile(archive) as files:
        files.extractall(folder)
        for info in files.infolist():  # extractall leaves out the permissions, which scripts need
            mode = info.external_attr >> 16 & 0o777
            if mode and not info.is_dir():
                (folder / info.filename).chmod(mode)
    os.chdir(folder)
    sys.path.insert(0, str(folder))


def _drive(result: Any) -> None:
    """Carry out what an async flow or a generator flow has only begun."""
    if inspect.iscoroutine(result):
        asyncio.run(result)  # type: ignore[arg-type]
    elif inspect.isasyncgen(result):

        async def consume() -> None:
            async for _ in result:
                pass

        asyncio.run(consume())
    elif inspect.isgenerator(result):
        for _ in result:
            pass


def main(arguments: Sequence[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m prefect_gpu.bundles.execute", description=__doc__)
    parser.add_argument("--directory", required=True, help="the bundle folder")
    parser.add_argument("--key", required=True, help="the bundle's name in the folder")
    options = parser.parse_args(arguments)
    execute(options.directory, options.key)


if __name__ == "__main__":
    main()
