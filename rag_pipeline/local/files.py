"""Where the embedded servers keep their files, and files that only their owner may read."""

import os
from dataclasses import dataclass
from pathlib import Path

from rag_pipeline.settings import SERVERS_FILE


@dataclass(frozen=True, slots=True)
class ServerFolders:
    """Paths below `data_dir`, all absolute."""

    data_dir: Path

    @classmethod
    def at(cls, data_dir: Path) -> "ServerFolders":
        """Create the folders that must exist."""
        folders = cls(data_dir.resolve())
        for path in (folders.servers, folders.logs):
            path.mkdir(parents=True, exist_ok=True)
        # Another user may have to pass through to its own folder (PostgreSQL when we are root), but not to list.
        folders.servers.chmod(0o711)
        return folders

    @property
    def servers(self) -> Path:
        """Data folders, credentials, lock and process records."""
        return self.data_dir / "servers"

    @property
    def logs(self) -> Path:
        """One file per process."""
        return self.data_dir / "logs"

    @property
    def lock(self) -> Path:
        """Held while servers are started or stopped."""
        return self.servers / "lock"

    @property
    def credentials(self) -> Path:
        """Generated secrets and the ports used last; kept for the life of the data."""
        return self.servers / "credentials.json"

    @property
    def addresses(self) -> Path:
        """Addresses and secrets of the servers that run now; `Settings` reads it. Absent when none runs."""
        return self.data_dir / SERVERS_FILE

    def log(self, name: str) -> Path:
        """The log of a process."""
        return self.logs / f"{name}.log"


def write_private(path: Path, text: str) -> None:
    """Replace a file in one step; only its owner can read it (0600), also while it is being written."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.unlink(missing_ok=True)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
