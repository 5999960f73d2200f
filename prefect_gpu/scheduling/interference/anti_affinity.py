"""Jobs that were parted because they slowed each other down: they do not meet again while there is another way."""

from __future__ import annotations


class AntiAffinity:
    """Remembers who was stopped because of whom, until one of the two is over.

    That two *programs* slow each other down is the business of the table. These two jobs have met already, and one of
    them has been stopped for it: to bring them together again would cost another stop. See :func:`.kept_from`.
    """

    def __init__(self) -> None:
        self._others: dict[str, frozenset[str]] = {}

    def part(self, one: str, other: str) -> None:
        """Keep two jobs apart from now on."""
        self._others[one] = self.others(one) | {other}
        self._others[other] = self.others(other) | {one}

    def forget(self, job: str) -> None:
        """The job is over."""
        for other in self._others.pop(job, ()):
            self._others[other] -= {job}
            if not self._others[other]:
                del self._others[other]

    def others(self, job: str) -> frozenset[str]:
        """The jobs that a job is kept apart from."""
        return self._others.get(job, frozenset())
