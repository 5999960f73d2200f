"""Job traces of real clusters, read from the files that their owners published.

``read_trace(path)`` gives the jobs; every module beside this one reads one family of formats.
"""

from prefect_gpu.simulation.traces.deepshare import ContentionTable, read_contention
from prefect_gpu.simulation.traces.formats import FORMATS, guess_format, read_trace
from prefect_gpu.simulation.traces.job import TraceError, TraceJob

__all__ = [
    "FORMATS",
    "ContentionTable",
    "TraceError",
    "TraceJob",
    "guess_format",
    "read_contention",
    "read_trace",
]
