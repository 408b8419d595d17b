"""Files that are there as a whole or not at all, and one writer at a time."""

import os
from pathlib import Path

import filelock


def write_atomically(path: Path, content: str | bytes) -> None:
    """Writes a file, and its folder if there is none. The old file stays whole until the new one is."""
    if isinstance(content, str):
        content = content.encode("utf-8")
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        new.write_bytes(content)
        new.replace(path)
    finally:
        new.unlink(missing_ok=True)


def locked(folder: Path) -> filelock.BaseFileLock:
    """`with locked(folder):` whoever else wants to write what is in the folder waits."""
    folder.mkdir(parents=True, exist_ok=True)
    return filelock.FileLock(folder / ".lock")
