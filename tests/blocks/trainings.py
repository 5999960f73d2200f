"""A training for the tests of blocks."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from prefect import flow

from prefect_gpu import training_run
from prefect_gpu.training.checkpoints import open_store


def tell(text: str, seen: str) -> None:
    """Write into the file, which is whole as soon as it is there; print where there is none."""
    if not seen:
        print(f"seen {text}", flush=True)
        return
    aside = Path(f"{seen}.tmp")
    aside.write_text(text)
    aside.replace(seen)


@flow
def keeps(seen: str = "", fail: bool = False, steps: int = 3) -> int:
    """Saves a checkpoint in each step; writes down, or prints, what it sees of its place; may fail at the end."""
    facts = {name: os.environ.get(name) for name in ("AWS_ACCESS_KEY_ID", "AWS_SESSION_TOKEN", "PREFECT_GPU_CPUS")}
    with training_run(steps=steps, checkpoint_every=0.001) as run:
        first = run.restore(lambda path: int(path.read_text())) or 0
        for step in run.steps():
            time.sleep(0.01)  # a checkpoint is due after a thousandth of a second
            run.report(loss=1.0, checkpoint=lambda path, step=step: path.write_text(str(step + 1)))  # type: ignore[misc]
    text = json.dumps({**facts, "first": first})
    tell(text, seen)
    if fail:
        raise RuntimeError("on purpose")
    return first


@flow
def reaches(key: str, seen: str = "", go: str = "") -> None:
    """Saves and restores its own checkpoint; writes down what its credentials may do with an object that is not its.

    Args:
        go: A file; once it is there, the flow saves again, as a process that has just begun does.
    """
    from botocore.exceptions import ClientError

    store: Any = open_store(os.environ["PREFECT_GPU_CHECKPOINTS"])
    for step in range(1, 5):
        store.save(lambda path: path.write_text("mine"), step)
    assert store.restore().path.read_text() == "mine"
    place = {"Bucket": store.location.bucket}
    ways = {
        "read": lambda: store._client.get_object(**place, Key=key),
        "list": lambda: store._client.list_objects_v2(**place, Prefix=key.rpartition("/")[0]),
        "list all": lambda: store._client.list_objects_v2(**place),
        "write": lambda: store._client.put_object(**place, Key=key + ".forged", Body=b"forged"),
        "remove": lambda: store._client.delete_object(**place, Key=key),
    }
    found = {"AWS_SECRET_ACCESS_KEY": os.environ.get("AWS_SECRET_ACCESS_KEY")}
    for what, way in ways.items():
        try:
            way()
            found[what] = "done"
        except ClientError as error:
            found[what] = error.response["Error"]["Code"]
    text = json.dumps(found | {"kept": [one.name for one in store._keys("")]})
    tell(text, seen)
    while go and not Path(go).exists():
        time.sleep(0.05)
    open_store(str(store.location)).save(lambda path: path.write_text("mine"), 9)
