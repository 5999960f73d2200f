"""When jobs of Shockwave's world ask for another batch size, and in which epochs they are."""

from __future__ import annotations

SAMPLES = {"ResNet-18": 50_000, "ResNet-50": 100_000, "Transformer": 10_000, "LM": 59_675, "Recommendation": 117_907}
"""Samples of an epoch."""
LARGEST = {"ResNet-18": 256, "ResNet-50": 128, "LM": 80, "Recommendation": 8_192}
"""Largest batch of the models for which it may change at all."""


def steps_of_epoch(model: str, batch: int) -> int:
    """Steps of an epoch, the last of which may be a smaller one."""
    return -(-SAMPLES[model] // batch)


def critical(model: str, original: int, epoch: int) -> bool:
    """Whether accordion keeps to the original batch size in this epoch.

    Args:
        original: The batch size that was asked for.
        epoch: Counted from 0.
    """
    match model:
        case "LM":
            return epoch < 10
        case "Recommendation":
            return epoch < {512: 30, 1_024: 30, 2_048: 40}.get(original, 10)
        case "ResNet-50":
            return epoch % 30 < 10
        case "ResNet-18":
            return epoch < (20 if original == LARGEST[model] else 10) or 150 <= epoch < 160 or 250 <= epoch < 260
    return True
