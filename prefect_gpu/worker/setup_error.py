"""What a worker says if it cannot serve with the settings that it has."""

from __future__ import annotations


class SetupError(ValueError):
    """The settings ask for what cannot be. The message names the setting and the remedy."""
