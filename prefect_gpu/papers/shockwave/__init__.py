"""Shockwave (Zheng et al., NSDI 2023): fairness and makespan where batch sizes change, in its authors' world."""
