"""How fast a training gets on whose batch may change: Pollux' throughput and statistical efficiency, learned."""
