"""DeepShare (2023): contention between jobs on several nodes, learned and trained policies."""
