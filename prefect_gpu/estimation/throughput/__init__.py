"""F-scheduling's f_M(R) (Seo, 2020): the training speed of a program on any resources, from those that were tried."""

from prefect_gpu.estimation.throughput.function import Throughput
from prefect_gpu.estimation.throughput.prior import NO_PRIOR, Prior, learn_prior
from prefect_gpu.estimation.throughput.setups import Setup, Tried

__all__ = ["NO_PRIOR", "Prior", "Setup", "Throughput", "Tried", "learn_prior"]
