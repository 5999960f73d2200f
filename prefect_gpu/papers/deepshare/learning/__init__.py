"""Training of contention-aware policies by reinforcement learning (Ryu & Eo, 2023, §IV); needs the extra ``rl``."""
