"""The state of the random number generators, so that a restored training draws the numbers it would have drawn."""

from __future__ import annotations

import random
import sys
from typing import Any


def random_state() -> dict[str, Any]:
    """The states of Python's generator, and of those of numpy and PyTorch where they are loaded; fit for JSON."""
    version, internal, gauss = random.getstate()
    state: dict[str, Any] = {"python": [version, list(internal), gauss]}
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None:
        name, keys, *rest = numpy.random.get_state()
        state["numpy"] = [name, keys.tolist(), *rest]
    torch: Any = sys.modules.get("torch")
    if torch is not None:
        state["torch"] = _hex(torch.get_rng_state())
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            state["cuda"] = [_hex(one) for one in torch.cuda.get_rng_state_all()]
    return state


def set_random_state(state: dict[str, Any]) -> None:
    """Put back what :func:`random_state` returned. GPUs other than then keep their own state."""
    version, internal, gauss = state["python"]
    random.setstate((version, tuple(internal), gauss))
    if "numpy" in state:
        import numpy

        name, keys, *rest = state["numpy"]
        numpy.random.set_state((name, numpy.array(keys, dtype=numpy.uint32), *rest))
    if "torch" in state:
        import torch

        torch.set_rng_state(_tensor(state["torch"]))
        if len(state.get("cuda", ())) == torch.cuda.device_count() > 0:
            torch.cuda.set_rng_state_all([_tensor(one) for one in state["cuda"]])


def _hex(state: Any) -> str:
    return bytes(state.cpu().numpy()).hex()


def _tensor(text: str) -> Any:
    import torch

    return torch.frombuffer(bytearray.fromhex(text), dtype=torch.uint8)
