"""Optional packages for single file formats, which a plain installation can lack."""

from importlib import import_module
from pathlib import Path


def require_extra(package: str, path: Path | str, extra: str) -> None:
    """Imports a package that a file needs.

    **Raises:** `ValueError` with the command that installs it.
    """
    try:
        import_module(package)
    except ImportError:
        raise ValueError(f"{path} needs {package}: pip install 'node_fit[{extra}]'.") from None
