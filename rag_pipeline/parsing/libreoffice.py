"""Converts files with LibreOffice where it is installed: legacy Office formats, and Office files to PDF."""

import contextlib
import os
import shutil
import signal
import subprocess
from pathlib import Path

from rag_pipeline.errors import CorruptDocumentError, ParseTimeoutError

_PROGRAMS = ("soffice", "libreoffice")


def is_installed() -> bool:
    """Whether a LibreOffice program is on the PATH."""
    return _program() is not None


def convert(path: Path, *, extension: str, folder: Path, seconds: float) -> Path:
    """Convert a file.

    Args:
        path: its extension tells LibreOffice the format.
        extension: of the wanted format, without the dot: pdf, docx, xlsx, pptx.
        folder: an existing, empty one; the result and LibreOffice's profile are written there.
        seconds: after which LibreOffice is stopped.

    Raises:
        CorruptDocumentError: LibreOffice cannot read the file, or wants a password for it.
        ParseTimeoutError: it takes too long.
        RuntimeError: LibreOffice is not installed; ask `is_installed` first.
    """
    program = _program()
    if program is None:
        raise RuntimeError("LibreOffice is not installed")
    command = [
        program,
        f"-env:UserInstallation={(folder / 'profile').as_uri()}",  # a shared profile is locked by the first process
        "--headless",
        "--norestore",
        "--convert-to",
        extension,
        "--outdir",
        str(folder / "converted"),
        str(path),
    ]
    # A session of its own: the program is a chain of processes, which end together.
    process = subprocess.Popen(  # noqa: S603 - the arguments are ours
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired as error:
        raise ParseTimeoutError(
            f"LibreOffice took longer than {seconds:.0f} s to convert the file to .{extension}: convert it yourself "
            "and submit the result"
        ) from error
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    converted = folder / "converted" / f"{path.stem}.{extension}"
    if not converted.is_file():
        raise CorruptDocumentError(
            f"LibreOffice could not convert the file to .{extension}: it is damaged or has a password; open it, "
            f"save it as .{extension} without a password and submit that"
        )
    return converted


def _program() -> str | None:
    return next((found for name in _PROGRAMS if (found := shutil.which(name))), None)
