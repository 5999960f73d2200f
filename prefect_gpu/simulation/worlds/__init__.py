"""The worlds of other simulators, rule for rule, so that our figures can be compared with theirs."""
