"""The `docker` driver: runs are containers of a Docker Engine."""

from prefect_gpu.runtime.drivers.docker.driver import DockerDriver
from prefect_gpu.runtime.drivers.docker.engine import Endpoint, EngineError

__all__ = ["DockerDriver", "Endpoint", "EngineError"]
