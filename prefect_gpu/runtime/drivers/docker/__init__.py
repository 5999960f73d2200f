"""The `docker` drivers: runs are containers of one Docker Engine, or of the nodes of a Swarm."""

from prefect_gpu.runtime.drivers.docker.driver import DockerDriver
from prefect_gpu.runtime.drivers.docker.engine import Endpoint, EngineError
from prefect_gpu.runtime.drivers.docker.swarm import SwarmDriver
from prefect_gpu.runtime.drivers.docker.warm import Ahead

__all__ = ["Ahead", "DockerDriver", "Endpoint", "EngineError", "SwarmDriver"]
