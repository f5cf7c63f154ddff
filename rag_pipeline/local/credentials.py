"""Secrets and ports of the embedded servers: generated once, kept with the data."""

import json
import secrets
import socket
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from rag_pipeline.errors import ConfigurationError
from rag_pipeline.local.files import write_private

HOST = "127.0.0.1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """What must stay the same between starts."""

    postgres_password: str
    s3_access_key: str
    s3_secret_key: str
    ports: dict[str, int] = field(default_factory=dict)
    """Server name -> port used last."""

    @classmethod
    def load_or_create(cls, path: Path) -> "Credentials":
        """Read the file, or generate new secrets and write it (mode 0600).

        Raises:
            ConfigurationError: the file is damaged; it is never replaced, because the data is bound to it.
        """
        try:
            return cls(**json.loads(path.read_text()))
        except FileNotFoundError:
            created = cls(
                postgres_password=secrets.token_urlsafe(24),
                s3_access_key=secrets.token_hex(10),
                s3_secret_key=secrets.token_urlsafe(30),
            )
            created.save(path)
            return created
        except (ValueError, TypeError) as error:
            raise ConfigurationError(
                f"{path} is damaged ({error}): restore it, or delete {path.parent} to start with empty servers"
            ) from error

    def with_port(self, name: str, port: int) -> "Credentials":
        """The same with another port of one server."""
        return replace(self, ports={**self.ports, name: port})

    def save(self, path: Path) -> None:
        """Write the file (mode 0600)."""
        write_private(path, json.dumps(asdict(self), indent=1))


def is_free(port: int) -> bool:
    """Whether a server could listen on 127.0.0.1:port; connections that linger from an old server do not count."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def free_port() -> int:
    """A port that is free now, chosen by the kernel."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def accepts(port: int) -> bool:
    """Whether something accepts connections on 127.0.0.1:port."""
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex((HOST, port)) == 0
