"""What TorchServe and its workers inherit of this process's environment: what they need, and nothing else.

A list of what may pass, not of what may not: a database's address in DATABASE_URL does not concern a worker, and
TorchServe obeys variables of its own (an inherited TS_CONFIG_FILE would replace the whole hardened configuration).
"""

from collections.abc import Iterable, Mapping

__all__ = ["inherited"]

_NAMES = {
    *("HOME", "LANG", "LANGUAGE", "LOGNAME", "PATH", "SHELL", "TERM", "TZ", "USER", "VIRTUAL_ENV", "XDG_CACHE_HOME"),
    *("JAVA_HOME", "LD_LIBRARY_PATH", "LD_PRELOAD", "DYLD_LIBRARY_PATH", "SYSTEMROOT"),
}
_PREFIXES = ("LC_", "CUDA_", "CUDNN_", "NVIDIA_", "OMP_", "MKL_", "OPENBLAS_", "ORT_", "TORCH_", "PYTORCH_", "PYTHON")
_NEVER = ("TOKEN", "SECRET", "PASSWORD", "PASSWD", "CREDENTIAL", "KEY")


def inherited(environment: Mapping[str, str], *, also: Iterable[str] = ()) -> dict[str, str]:
    """The part of an environment that the server may see; `also` names further variables, whatever they are called."""
    wanted = set(also)
    return {
        name: value
        for name, value in environment.items()
        if name in wanted
        or ((name in _NAMES or name.startswith(_PREFIXES)) and not any(word in name.upper() for word in _NEVER))
    }
