"""One launch of a run: its record, what it is told at its start, what it reports, and why it died."""
