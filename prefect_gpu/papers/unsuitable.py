"""What a world cannot take, as only its tables show."""


class Unsuitable(ValueError):
    """An argument that does not belong into a world."""
