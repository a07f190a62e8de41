"""Files that are written beside their place and renamed when complete, never half there."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from secrets import token_hex

from fastdr.tables import TABLE_SUFFIXES

# What writing fails with, without a word about the file, where no more can be written.
FULL = {getattr(errno, name, None) for name in ("ENOSPC", "EDQUOT", "EFBIG")} - {None}


def output_path(path: str | os.PathLike[str]) -> Path:
    """Return the file that `path` stands for, behind symbolic links, if it can be written.

    Raises
    ------
    FileNotFoundError
        If its folder does not exist.
    PermissionError
        If its folder cannot be written.
    ValueError
        If there is something at `path` that is not a regular file, such as a folder, device or
        pipe: renaming would put a file in its place.

    Examples
    --------
    >>> import tempfile
    >>> output_path(tempfile.gettempdir())  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    ValueError: ...: is a directory; name a file to write.
    """
    target = Path(os.path.realpath(path))
    if os.path.isdir(path):
        raise ValueError(f"{path}: is a directory; name a file to write.")
    if not target.parent.is_dir():
        raise FileNotFoundError(f"{path}: no such directory: {target.parent}.")
    if target.is_symlink() or (os.path.exists(path) and not os.path.isfile(path)):
        raise ValueError(f"{path}: is a device, a pipe or a link to itself, and would be replaced; "
                         "name a regular file to write.")
    if not os.access(target.parent, os.W_OK | os.X_OK):
        raise PermissionError(f"{path}: no permission to write to {target.parent}.")
    return target


def check_output(path: Path, *inputs: Path | None) -> None:
    """Raise as `output_path`, and ValueError if `path` is one of the `inputs` or a file of one."""
    target = output_path(path)
    if not target.exists():
        return
    for given in filter(None, inputs):
        parts = [entry for entry in given.glob("*") if entry.suffix in (".npy", *TABLE_SUFFIXES)]
        if any(file.exists() and file.samefile(target) for file in (given, *parts)):
            raise ValueError(f"{path}: is read as {given} and would be replaced; write to another "
                             "file.")


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield an empty hidden file that takes the place of `path`, and its mode, at the end.

    After an error it is removed, and the file at `path` is as it was. See `output_path` for what
    is refused.
    """
    target = output_path(path)
    mode = stat.S_IMODE(target.stat().st_mode) if target.exists() else None
    part = target.with_name(f".{target.name}.{os.getpid()}-{token_hex(4)}.part")
    try:
        part.touch(0o666 if mode is None else 0o600, exist_ok=False)
        yield part
        with open(part, "rb+") as file:  # Windows flushes only what may be written
            os.fsync(file.fileno())
        if mode is not None:
            part.chmod(mode)
        os.replace(part, target)
    except OSError as error:
        if error.errno in FULL and error.filename is None:
            error.filename = os.fspath(path)  # writing does not say where to
        raise
    finally:
        part.unlink(missing_ok=True)
