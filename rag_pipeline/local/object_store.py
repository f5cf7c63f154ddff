"""The embedded S3 server: `nanio serve`, one worker, signed requests only."""

import sys

import urllib3
from minio import Minio
from minio.error import MinioException

from rag_pipeline.local.credentials import HOST, Credentials, accepts
from rag_pipeline.local.files import ServerFolders
from rag_pipeline.local.process import ProcessSpec

NAME = "s3"


def spec(folders: ServerFolders, credentials: Credentials, *, port: int, region: str) -> ProcessSpec:
    """How to start the server."""
    data = folders.servers / "s3"
    data.mkdir(mode=0o700, exist_ok=True)
    # nanio's default host is 0.0.0.0.
    arguments = ("serve", "--data-dir", str(data), "--host", HOST, "--port", str(port), "--region", region)
    return ProcessSpec(
        name=NAME,
        command=(sys.executable, "-m", "nanio", *arguments, "--log-level", "warning", "--no-access-log"),
        environment={"NANIO_ACCESS_KEY": credentials.s3_access_key, "NANIO_SECRET_KEY": credentials.s3_secret_key},
        folder=folders.servers,
        log=folders.log(NAME),
        port=port,
    )


def is_ready(credentials: Credentials, *, port: int) -> bool:
    """Whether our server answers; the signature tells it from a foreign one."""
    if not accepts(port):
        return False
    try:
        _client(credentials, port).list_buckets()
    except (MinioException, urllib3.exceptions.HTTPError):
        return False
    return True


def create_bucket(credentials: Credentials, *, port: int, bucket: str) -> None:
    """Create the bucket if it is missing."""
    client = _client(credentials, port)
    if not client.bucket_exists(bucket):
        client.make_bucket(bucket)


def _client(credentials: Credentials, port: int) -> Minio:
    return Minio(
        f"{HOST}:{port}",
        access_key=credentials.s3_access_key,
        secret_key=credentials.s3_secret_key,
        secure=False,
        http_client=urllib3.PoolManager(retries=False, timeout=urllib3.Timeout(10)),
    )
