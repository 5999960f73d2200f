"""A run that was stopped finds nothing of its checkpoints where it carries on."""

from __future__ import annotations

import logging
import platform

from prefect_gpu.training.checkpoints.manifest import Store

logger = logging.getLogger("prefect_gpu.training")


def tell_if_lost(store: Store, step: str, place: str) -> None:
    """Say that a run begins anew although it was stopped with a checkpoint.

    It is no error: of two machines that share no folder, either may be the one that the run carries on at.

    Args:
        store: In which no checkpoint was found. It may be the first training of a run whose second one had saved.
        step: What the run had done when it saved the checkpoint.
        place: The store's address.
    """
    if store.holding() is None:
        logger.warning(
            "This run had saved step %s when it was stopped. Of that, %s finds nothing in %s, so it begins anew. Is "
            "the folder mounted there? Runs that are stopped need a place for checkpoints that all machines of their "
            "pool reach: the operator sets it as PREFECT_INTEGRATIONS_GPU_CHECKPOINTS.",
            step,
            platform.node(),
            place,
        )
