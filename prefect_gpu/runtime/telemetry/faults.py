"""What may be wrong with a GPU, in words, and whether that is reason enough to give it to nobody any more.

Sources: NVIDIA's Xid catalogue (docs.nvidia.com/deploy/xid-errors), its notes on page retirement
(docs.nvidia.com/deploy/dynamic-page-retirement) and on row remapping (docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt).
An Xid whose remedy there is to restart the application says nothing of the GPU; one after which the GPU is to be reset
or looked at does. A row that is to be remapped at the next reset is no reason to stop: NVIDIA says that other work goes
on unharmed, and may begin.
"""

from __future__ import annotations

from dataclasses import dataclass

OF_APPLICATIONS: dict[int, str] = {
    13: "a program's kernel failed",
    31: "a program used memory that is not its own",
    32: "a program's commands were invalid",
    43: "a program's channel was reset",
    45: "a program was ended",
    68: "a program's video decoding failed",
    69: "a program's commands were of no class",
    109: "switching between programs took too long",
}
"""Xids of programs: the GPU is none the worse."""

OF_DEVICES: dict[int, tuple[str, bool]] = {
    46: ("it stopped processing", True),
    48: ("an uncorrectable memory error", True),
    62: ("its power management halted", True),
    63: ("a page or row of its memory is retired at the next reset", False),
    64: ("a page or row of its memory could not be retired", True),
    74: ("an error of NVLink", True),
    79: ("it has fallen off the bus", True),
    92: ("many memory errors that could be corrected", False),
    94: ("a memory error that was contained: the program that met it ended", False),
    95: ("a memory error that was not contained", True),
    110: ("a security fault", True),
    119: ("its system processor did not answer", True),
    120: ("its system processor failed", True),
    136: ("a link to another GPU failed in training", True),
    140: ("an error of its memory that was not repaired", True),
    143: ("it could not be initialised", True),
}
"""Xids of the GPU, in words, and whether they are serious."""

THERMAL, SLOW = "thermal", "slow"
"""Troubles that are told, and take a GPU out of service only if the operator says so."""


@dataclass(frozen=True)
class Fault:
    """Something is wrong with a device.

    Attributes:
        device: Its id.
        code: What it is, in one word; the same fault is told once.
        words: What it is, after "device X: ".
        serious: Whether nobody should be given the device any more.
    """

    device: str
    code: str
    words: str
    serious: bool


def of_xid(device: str, xid: int) -> Fault | None:
    """What an Xid says of a device; None if it is a program's affair, or unknown."""
    if xid in OF_DEVICES:
        words, serious = OF_DEVICES[xid]
        return Fault(device, f"xid-{xid}", f"{words} (Xid {xid})", serious)
    return None
