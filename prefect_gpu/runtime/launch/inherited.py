"""Which of the worker's environment variables its runs are told: what training needs, and nothing else.

What is not listed here is not passed, whatever it is called: the worker's environment holds the passwords of its
history, of Prefect's database, and of whatever else its operator runs. It is no wall between a run that is a process of
this machine and the worker: both are one user, and each can look into the other. Containers are one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase

_NAMES = frozenset(
    (
        *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "TERM", "COLUMNS", "LINES", "NO_COLOR"),
        *("HOSTNAME", "TMPDIR", "TMP", "TEMP", "VIRTUAL_ENV", "CONDA_PREFIX", "CONDA_DEFAULT_ENV", "DO_NOT_TRACK"),
        *("LD_LIBRARY_PATH", "LD_PRELOAD", "LIBRARY_PATH", "CPATH", "GLIBC_TUNABLES"),
        *("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "all_proxy", "no_proxy"),
        *("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "WEBSOCKET_CLIENT_CA_BUNDLE"),
        *(
            "HF_HOME",
            "HF_HUB_CACHE",
            "HF_HUB_OFFLINE",
            "HF_DATASETS_CACHE",
            "HF_DATASETS_OFFLINE",
            "TRANSFORMERS_CACHE",
        ),
        *("TRANSFORMERS_OFFLINE", "MPLBACKEND", "MPLCONFIGDIR", "CC", "CXX"),
        *("PREFECT_API_URL", "PREFECT_API_KEY", "PREFECT_API_AUTH_STRING", "PREFECT_API_TLS_INSECURE_SKIP_VERIFY"),
        *("PREFECT_API_SSL_CERT_FILE", "PREFECT_API_ENABLE_HTTP2", "PREFECT_API_REQUEST_TIMEOUT"),
        *("PREFECT_HOME", "PREFECT_PROFILE", "PREFECT_PROFILES_PATH", "PREFECT_DEBUG_MODE", "PREFECT_UI_URL"),
        *("PREFECT_LOCAL_STORAGE_PATH", "PREFECT_SERVER_UI_API_URL", "PREFECT_SERVER_UI_URL"),
        *("PREFECT_SERVER_ALLOW_EPHEMERAL_MODE", "PREFECT_INTEGRATIONS_GPU_STATE_DIR"),
    )
)
_PREFIXES = (
    *(
        "LC_",
        "XDG_",
        "PYTHON",
        "CUDA",
        "CUDNN_",
        "CUBLAS_",
        "CUPY_",
        "NVIDIA_",
        "NCCL_",
        "GLOO_",
        "UCX_",
        "OMPI_",
        "FI_",
    ),
    *("TORCH", "PYTORCH_", "TRITON_", "TF_", "XLA_", "JAX_", "KERAS_", "OMP_", "KMP_", "GOMP_", "MKL_", "OPENBLAS_"),
    *("BLIS_", "NUMEXPR_", "VECLIB_", "NUMBA_", "MALLOC_", "RAY_"),
    *(f"PREFECT_{part}_" for part in ("CLI", "CLIENT", "CLOUD", "DEFAULT", "DEPLOYMENTS", "EXPERIMENTS", "EVENTS")),
    *(f"PREFECT_{part}_" for part in ("FLOW", "FLOWS", "INTERNAL", "LOGGING", "PLUGINS", "RESULTS", "RUNNER", "TASK")),
    *(f"PREFECT_{part}_" for part in ("TASKS", "TELEMETRY", "TESTING", "TEST", "WORKER")),
)
# Not by a prefix, which others use too: NVIDIA_API_KEY, and Terraform's TF_VAR_...
_PATIENCE = {"PREFECT_CLIENT_MAX_RETRIES": "9", "PREFECT_CLIENT_RETRY_EXTRA_CODES": "401,500,504"}
"""Of runs, unless the worker has other settings. By Prefect's own, a run gives up after a minute without its API, and
at once where a gateway refuses it; a training of weeks that ends just then would count as crashed. Nine tries, each
after twice the pause of the one before, are a quarter of an hour."""

_SECRET = re.compile(r"PASS(WORD|WD|PHRASE)?$|SECRET|TOKEN|CREDENTIAL|AUTH|_KEY$|^TF_VAR_")


def is_passed(name: str, more: Iterable[str] = ()) -> bool:
    """Whether runs are told a variable of the worker's.

    Args:
        more: Names, or patterns with ``*``, that the operator lets pass.

    Example:
        >>> [is_passed(name) for name in ("NCCL_DEBUG", "NVIDIA_API_KEY", "PREFECT_SERVER_DATABASE_PASSWORD")]
        [True, False, False]
        >>> is_passed("WANDB_API_KEY", ["WANDB_*"])
        True
    """
    if name in _NAMES or any(fnmatchcase(name, pattern) for pattern in more):
        return True
    if name.startswith("PREFECT__"):  # what Prefect's worker tells the engine of the run
        return True
    return name.startswith(_PREFIXES) and not _SECRET.search(name)


def inherited(environ: Mapping[str, str], more: Iterable[str] = ()) -> dict[str, str]:
    """Those of the worker's variables that runs are told, and how patient they are with Prefect's API."""
    patterns = tuple(more)
    return _PATIENCE | {name: value for name, value in environ.items() if is_passed(name, patterns)}
