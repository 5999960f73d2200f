"""Pollux (Qiao et al., OSDI 2021): elastic jobs whose batch size may change, in the world of its authors' simulator."""
