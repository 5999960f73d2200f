"""Whether a fork of the warm interpreter would be what a fresh one is, and making it so.

A warm start is an optimisation: a run must not be able to tell. What a fresh interpreter would take from its
environment after it has started is applied to the fork (:func:`ForkCompatibility.apply`); for what it would take while
it starts, or while it loads a module that is loaded here already, the run is refused and starts cold
(:meth:`ForkCompatibility.difference`); and what makes forking unsafe altogether is found once
(:func:`unfit`). Standard library only: this runs inside the warm interpreter.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.machinery
import io
import os
import random
import runpy
import shutil
import site
import stat
import sys
import sysconfig
import threading
import time
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

# PYTHON* variables that can be applied to a running interpreter, or that are read when they are needed.
_APPLICABLE = frozenset(
    f"PYTHON{name}" for name in ("PATH", "UNBUFFERED", "DONTWRITEBYTECODE", "BREAKPOINT", "ASYNCIODEBUG", "STARTUP")
)
# Read once by the C library or the interpreter, at the start of the process.
_AT_START = ("LANG", "LC_ALL", "LC_CTYPE", "GLIBC_TUNABLES")
_AT_START_PREFIXES = ("PYTHON", "LD_", "MALLOC_")
# Read by native libraries while they are loaded, or on first use, which may have been here.
_NATIVE_PREFIXES = ("OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "GOTO_", "BLIS_", "NUMEXPR_", "TBB_", "NPY_")
_NATIVE_OWN_PREFIXES = {
    "numpy": (),
    "scipy": (),
    "sklearn": (),
    "pandas": (),
    "numexpr": (),
    "xgboost": (),
    "lightgbm": (),
    "pyarrow": ("ARROW_",),
    "polars": ("POLARS_",),
    "cupy": ("CUPY_", "CUDA_"),
    "numba": ("NUMBA_", "CUDA_"),
    "torch": ("TORCH_", "PYTORCH_", "ATEN_", "CUDA_", "CUBLAS_"),
    "jax": ("JAX_", "XLA_", "TF_", "CUDA_"),
    "tensorflow": ("TF_", "XLA_", "CUDA_"),
}
# By cuInit, or as a process first reaches the GPU, which has not happened here (see unfit); every run is given these.
_READ_LATE = frozenset(("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"))


def unfit(our_fds: frozenset[int]) -> str | None:
    """Why this interpreter, its modules loaded, must not be forked; None if it may."""
    names = sorted(thread.name for thread in threading.enumerate() if thread is not threading.main_thread())
    if names:
        return f"a preloaded module started threads ({', '.join(names)}), which do not survive a fork"
    devices, endpoints = _open_files(our_fds)
    if devices:
        return f"a preloaded module opened the GPU ({', '.join(devices)}), and CUDA does not survive a fork"
    if endpoints:
        return f"a preloaded module opened {', '.join(endpoints)}, which runs must not share"
    if len(os.listdir("/proc/self/task")) > 1:
        # Libraries made for forking (OpenBLAS) end their threads before one and start them again when needed.
        child = os.fork()
        if child == 0:
            os._exit(0)
        os.waitpid(child, 0)
        others = [name for name in os.listdir("/proc/self/task") if int(name) != os.getpid()]
        if others:
            comms = sorted({Path(f"/proc/self/task/{name}/comm").read_text().strip() for name in others})
            return f"a preloaded library keeps native threads ({', '.join(comms)}) that do not survive a fork"
    return None


def _open_files(our_fds: frozenset[int]) -> tuple[list[str], list[str]]:
    devices, endpoints = [], []
    for name in os.listdir("/proc/self/fd"):
        fd = int(name)
        if fd in our_fds:
            continue
        try:
            target, mode = os.readlink(f"/proc/self/fd/{name}"), os.fstat(fd).st_mode
        except OSError:
            continue  # the descriptor of the listing itself
        if target.startswith(("/dev/nvidia", "/dev/kfd", "/dev/dri")):
            devices.append(target)
        elif not (stat.S_ISREG(mode) or stat.S_ISDIR(mode) or stat.S_ISCHR(mode)):
            endpoints.append(target)
    return sorted(set(devices)), sorted(set(endpoints))


def unlike_warm(argv: Sequence[str], environment: dict[str, str], cwd: Path | str) -> tuple[str, bool] | None:
    """Why a command cannot be a fork of our interpreter, and whether one would have expected it to be.

    Returns:
        None for ``python -m module ...`` with this very interpreter; otherwise the reason, and True if the command
        is a module of some Python (False: it is cold on purpose).
    """
    is_module = len(argv) >= 3 and argv[1] == "-m"
    if not Path(argv[0]).name.startswith("python") or "-m" not in argv[1:]:
        return f"`{argv[0]}` is not `python -m ...`", False
    program = argv[0]
    if os.sep in program:
        found: str | None = os.path.join(cwd, program)
    else:
        found = shutil.which(program, path=environment.get("PATH", os.defpath))
    if found is None or _interpreter(found) != _interpreter(sys.executable):
        return f"`{program}` is another interpreter ({found}) than the worker's ({sys.executable})", True
    if not is_module:
        return f"`{program} {argv[1]}`: options come between the interpreter and -m", True
    return None


def _interpreter(program: str) -> tuple[str, str | None]:
    """What a program would be as an interpreter: its binary, and the virtual environment around it.

    The environment is where ``pyvenv.cfg`` lies beside the path as it is called: resolved links lead out of it.
    """
    folder = Path(os.path.abspath(program)).parent
    for place in (folder, folder.parent):
        if (place / "pyvenv.cfg").is_file():
            return os.path.realpath(program), os.path.realpath(place)
    return os.path.realpath(program), None


def acts_at_start(name: str) -> bool:
    """Whether a variable may act when an interpreter starts or a library is loaded, so that it must be right then."""
    own = {prefix for prefixes in _NATIVE_OWN_PREFIXES.values() for prefix in prefixes}
    at_start = (*_AT_START, "PATH", "HOME")
    return (name in at_start or name.startswith((*_AT_START_PREFIXES, *_NATIVE_PREFIXES, *own))) and (
        name not in _READ_LATE
    )


class ForkCompatibility:
    """Compares what a run asks for with what this interpreter was started with.

    Args:
        environment: The environment that this interpreter was given. Make the object before anything is
            preloaded, with the current folder already taken off ``sys.path``; call :meth:`loaded` afterwards.
    """

    def __init__(self, environment: dict[str, str]) -> None:
        self._environment = environment
        # What an interpreter adds by itself: LC_CTYPE, where it makes the C locale one of UTF-8 (PEP 538).
        self._added = {name: value for name, value in os.environ.items() if name not in environment}
        self._python_path = _python_path(environment, os.getcwd())
        # What follows the entries of PYTHONPATH is the same for every run of this interpreter.
        self._base_path = [entry for entry in sys.path if entry not in self._python_path]
        self._hidden = _added_by_site().intersection(self._python_path) if self._python_path else set()
        self._unbuffered = bool(environment.get("PYTHONUNBUFFERED"))
        self._at_start_names = _AT_START + (("HOME", "PYTHONUSERBASE") if site.ENABLE_USER_SITE else ())
        self._origins: dict[str, str] = {}
        self._homes: set[str] = set()  # entries of sys.path from which something was loaded
        self._files: dict[str, tuple[int, int, int]] = {}
        self._native_prefixes: tuple[str, ...] = ()
        self._native_names: list[str] = []

    def loaded(self) -> None:
        """Take note of what has been loaded."""
        library = sysconfig.get_path("stdlib") + os.sep
        site_packages = (sysconfig.get_path("purelib") + os.sep, sysconfig.get_path("platlib") + os.sep)
        for name, module in list(sys.modules.items()):
            spec = getattr(module, "__spec__", None)
            origin = getattr(spec, "origin", None)
            inside = list(getattr(spec, "submodule_search_locations", None) or ())  # of a package, namespaces included
            if "." not in name:
                self._homes.update(os.path.dirname(place) for place in inside or [origin] if place)
            if not origin or not getattr(spec, "has_location", False):
                continue
            if "." not in name and name != "__main__":
                self._origins[name] = origin
            if origin.startswith(site_packages) or not origin.startswith(library):
                self._files[origin] = identity(origin)
        self._native_names = [name for name in _NATIVE_OWN_PREFIXES if name in sys.modules]
        if self._native_names:
            own = {prefix for name in self._native_names for prefix in _NATIVE_OWN_PREFIXES[name]}
            self._native_prefixes = _NATIVE_PREFIXES + tuple(own)

    def stale(self) -> str | None:
        """What has changed on disk since it was loaded: a fresh interpreter would load the new version."""
        for path, before in self._files.items():
            if identity(path) != before:
                return f"{path} has changed since it was preloaded"
        return None

    def difference(self, environment: dict[str, str], cwd: str) -> str | None:
        """Why a fork cannot be what a fresh interpreter in this environment and folder would be, or None."""
        for name in sorted(environment.keys() | self._environment.keys()):
            if environment.get(name) == self._environment.get(name) or name in _APPLICABLE:
                continue
            if name in self._at_start_names or name.startswith(_AT_START_PREFIXES):
                return f"{name} only acts when an interpreter starts, and differs from the warm one's"
            if self._native_prefixes and name.startswith(self._native_prefixes) and name not in _READ_LATE:
                libraries = ", ".join(self._native_names)
                return f"{name} differs from the warm interpreter's, which has loaded {libraries}"
        return self._shadowed(environment, cwd)

    def _shadowed(self, environment: dict[str, str], cwd: str) -> str | None:
        """Whether the run's own folders hold another version of a module that is loaded here."""
        ahead = _python_path(environment, cwd)
        for entry in self._python_path:
            if entry not in ahead and (entry in self._homes or entry in self._hidden):
                return f"{entry} is on the warm interpreter's PYTHONPATH, but not on the run's"
        for name in ("sitecustomize", "usercustomize"):
            found = importlib.machinery.PathFinder.find_spec(name, ahead)
            if found is not None and found.origin != self._origins.get(name):
                return f"{found.origin} only acts when an interpreter starts"
        if not getattr(sys.flags, "safe_path", False):
            ahead = [cwd, *ahead]
        candidates: set[str] = set()
        for entry in ahead:
            try:
                candidates.update(name.partition(".")[0] for name in os.listdir(entry))
            except NotADirectoryError:
                candidates.update(self._origins)  # a zip file: ask it for every name
            except OSError:
                continue
        for name in sorted(candidates & self._origins.keys()):
            found = importlib.machinery.PathFinder.find_spec(name, ahead)
            if found is not None and found.has_location and found.origin != self._origins[name]:
                return f"{found.origin} takes the place of the preloaded module {name}"
        return None

    def apply(self, environment: dict[str, str], module: str, arguments: list[str]) -> None:
        """Make this fork what ``python -m module arguments`` would be, in the current folder.

        Args:
            environment: The whole environment of the run.
            module: The module that will be run as ``__main__``.
            arguments: What follows it on the command line.
        """
        os.environ.clear()
        os.environ.update({**self._added, **environment})
        time.tzset()
        cwd = os.getcwd()
        path = _python_path(environment, cwd)
        path += [entry for entry in self._base_path if entry not in path]
        sys.path[:] = path if getattr(sys.flags, "safe_path", False) else [cwd, *path]
        importlib.invalidate_caches()
        sys.dont_write_bytecode = bool(environment.get("PYTHONDONTWRITEBYTECODE"))
        sys.argv[:] = ["-m", *arguments]  # runpy puts the module's file in place of "-m"
        if hasattr(sys, "orig_argv"):
            sys.orig_argv[:] = [sys.executable, "-m", module, *arguments]
        unbuffered = bool(environment.get("PYTHONUNBUFFERED"))
        if unbuffered != self._unbuffered:
            if isinstance(sys.stdin, io.TextIOWrapper):
                sys.stdin.reconfigure(write_through=unbuffered)  # it means nothing there, but a program sees it
            for name, fd in (("stdout", 1), ("stderr", 2)):
                _reopen(name, fd, unbuffered)
        # A preloaded module must be run afresh as __main__, and not be found half-way as itself.
        sys.modules.pop(module, None)
        main = ModuleType("__main__")
        main.__builtins__ = sys.modules["builtins"]  # type: ignore[attr-defined]
        if "__annotations__" in vars(sys.modules["__main__"]):  # up to Python 3.13
            main.__annotations__ = {}
        sys.modules["__main__"] = main
        random.seed()
        if "numpy.random" in sys.modules:
            sys.modules["numpy.random"].seed()

    def become(
        self,
        job: dict[str, Any],
        after_fork: str | None,
        begins: Callable[[], None],
        refuse: Callable[[Exception], None],
    ) -> None:
        """Make this fork the run, and run its module to the end. Exit code, exit handlers and threads are Python's own.

        Args:
            job: ``argv`` and ``env`` of the run.
            after_fork: ``"module:function"``, called before the run's own module; or None.
            begins: Called as nothing can keep the run from beginning any more.
            refuse: Given an error if it cannot begin; does not return.
        """
        module, arguments = job["argv"][2], job["argv"][3:]
        try:
            self.apply(job["env"], module, arguments)
        except (OSError, ValueError) as error:
            refuse(error)
        begins()
        if after_fork:
            home, _, function = after_fork.partition(":")
            getattr(importlib.import_module(home), function)()
        # What `python -m` itself calls.
        try:
            runpy._run_module_as_main(module)  # type: ignore[attr-defined]
        except Exception as error:
            shown = error.__traceback__.tb_next if error.__traceback__ else None  # without this frame
            sys.excepthook(type(error), error.with_traceback(shown), shown)
            sys.exit(1)


def _python_path(environment: dict[str, str], cwd: str) -> list[str]:
    """The entries of PYTHONPATH as ``sys.path`` shows them: absolute, each once."""
    value = environment.get("PYTHONPATH")
    if not value:
        return []
    return list(dict.fromkeys(os.path.abspath(os.path.join(cwd, part)) for part in value.split(os.pathsep)))


def _added_by_site() -> set[str]:
    """Entries that ``sys.path`` has without PYTHONPATH, as far as PYTHONPATH may hide them by having them, too."""
    places = {*site.getsitepackages(), site.getusersitepackages(), *sysconfig.get_paths().values()}
    found = set(places)
    for place in places:
        try:
            names = [name for name in os.listdir(place) if name.endswith(".pth")]
        except OSError:
            continue
        for name in names:
            with contextlib.suppress(OSError, UnicodeDecodeError):
                lines = Path(place, name).read_text().splitlines()
                found.update(os.path.abspath(os.path.join(place, line.strip())) for line in lines if line.strip())
    return found


def identity(path: str) -> tuple[int, int, int]:
    """What changes when a file is replaced or written to; the same for all that cannot be read."""
    try:
        found = os.stat(path)
    except OSError:
        return (0, 0, 0)
    return (found.st_ino, found.st_mtime_ns, found.st_size)


def _reopen(name: str, fd: int, unbuffered: bool) -> None:
    old = getattr(sys, name)
    stream: Any = io.FileIO(fd, "wb", closefd=False)
    new = io.TextIOWrapper(
        stream if unbuffered else io.BufferedWriter(stream),
        encoding=old.encoding,
        errors=old.errors,
        newline="\n",
        line_buffering=name == "stderr" and not unbuffered,
        write_through=unbuffered,
    )
    setattr(sys, name, new)
    setattr(sys, f"__{name}__", new)
