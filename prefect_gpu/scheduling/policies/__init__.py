"""Policies: small classes, each answering one question. A profile composes them by name."""
