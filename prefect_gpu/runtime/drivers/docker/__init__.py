"""The `docker` drivers: runs are containers of one Docker Engine, or of the nodes of a Swarm."""

from prefect_gpu.runtime.drivers.docker.driver import DockerDriver
from prefect_gpu.runtime.drivers.docker.engine import Endpoint, EngineError
from prefect_gpu.runtime.drivers.docker.swarm import SwarmDriver

__all__ = ["DockerDriver", "Endpoint", "EngineError", "SwarmDriver"]
