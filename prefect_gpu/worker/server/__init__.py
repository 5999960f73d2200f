"""How Prefect's server is asked and told: answers, outages, states, events, its clock, and what is not public."""
