"""The nodes and devices of a pool: which there are, who manages them, and which are out of service."""
