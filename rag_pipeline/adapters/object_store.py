"""Objects in any S3 server, through the `minio` client (path style, signed requests).

Nothing here knows which keys exist or what they mean; the key layout belongs to the stages.
"""

import contextlib
import io
import itertools
import os
import re
import uuid
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO
from urllib.parse import urlsplit

import urllib3
from minio import Minio
from minio.deleteobjects import DeleteObject
from minio.error import InvalidResponseError, MinioException, S3Error, ServerError
from urllib3.util import Retry, Timeout

from rag_pipeline.adapters.object_listing import list_in_key_order
from rag_pipeline.core.ports import ObjectInfo, ObjectStore
from rag_pipeline.errors import (
    ConfigurationError,
    DocumentTooLargeError,
    InvalidFileNameError,
    ObjectStoreUnavailableError,
    RagPipelineError,
    ResourceNotFoundError,
)
from rag_pipeline.settings import Settings

CONNECT_SECONDS = 5.0
READ_SECONDS = 30.0
"""Longest silence between two reads of the socket, not the length of a transfer."""
RETRIES = 3
CONNECTIONS = 32
"""Kept open per process: as many threads may use one store without waiting or reconnecting."""
PART_BYTES = 16 * 1024 * 1024
"""Part of a multipart upload; `minio` holds up to three in memory."""
READ_BYTES = 1024 * 1024
DELETE_KEYS = 1000
"""Most keys of one DeleteObjects request (S3 API)."""

_BUCKET_NAME = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_TEMPORARY_CODES = frozenset({"InternalError", "OperationAborted", "RequestTimeout", "ServiceUnavailable", "SlowDown"})
_TEMPORARY_STATUS = frozenset({408, 429})
_ABSENT = frozenset({"NoSuchKey", "NoSuchVersion"})
_BUCKET_EXISTS = frozenset({"BucketAlreadyExists", "BucketAlreadyOwnedByYou"})


class MinioObjectStore(ObjectStore):
    """One bucket of one S3 server. Safe to share between threads."""

    def __init__(self, *, endpoint: str, access_key: str, secret_key: str, region: str, bucket: str) -> None:
        """Open nothing yet.

        Raises:
            ConfigurationError: the endpoint is not `http(s)://host[:port]`, or the bucket name is not one of S3.
        """
        parts = urlsplit(endpoint)
        if parts.scheme not in {"http", "https"} or not parts.netloc or parts.path.strip("/") or parts.username:
            raise ConfigurationError(f"RAG_S3_ENDPOINT={endpoint!r} is not of the form http://host:port")
        if not _BUCKET_NAME.fullmatch(bucket):
            raise ConfigurationError(f"RAG_S3_BUCKET={bucket!r}: 3 to 63 lower-case letters, digits, '.' and '-'")
        self._endpoint = f"{parts.scheme}://{parts.netloc}"
        self._bucket = bucket
        self._lists_depth_first: bool | None = None
        retries = Retry(
            total=RETRIES,
            read=1,
            backoff_factor=0.2,
            status_forcelist=(500, 502, 503, 504),
            allowed_methods=None,
            raise_on_status=False,
            respect_retry_after_header=False,
        )
        self._http = urllib3.PoolManager(
            maxsize=CONNECTIONS, timeout=Timeout(connect=CONNECT_SECONDS, read=READ_SECONDS), retries=retries
        )
        self._client = Minio(
            parts.netloc,
            access_key=access_key,
            secret_key=secret_key,
            secure=parts.scheme == "https",
            region=region,
            http_client=self._http,
        )

    @classmethod
    def from_settings(cls, settings: Settings) -> "MinioObjectStore":
        """The store that the settings name. Raises `ConfigurationError`."""
        endpoint, access_key, secret_key = settings.require_s3()
        return cls(
            endpoint=endpoint,
            access_key=access_key,
            secret_key=secret_key,
            region=settings.s3_region,
            bucket=settings.s3_bucket,
        )

    def ensure_bucket(self) -> None:
        """Create the bucket if it is missing; two processes may do so at once."""
        with self._translated(""):
            if self._client.bucket_exists(self._bucket):
                return
            try:
                self._client.make_bucket(self._bucket)
            except S3Error as error:
                # A bucket of somebody else answers the same; the check below is then refused.
                if error.code not in _BUCKET_EXISTS or not self._client.bucket_exists(self._bucket):
                    raise

    def put(self, key: str, content: bytes | Path, *, content_type: str = "application/octet-stream") -> str:
        """Store an object, replacing an older one, and return its ETag."""
        with self._translated(key), contextlib.ExitStack() as stack:
            if isinstance(content, Path):
                stream = stack.enter_context(content.open("rb"))
                length = os.fstat(stream.fileno()).st_size
                return self._put(key, stream, length, content_type)
            return self._put(key, io.BytesIO(content), len(content), content_type)

    def get(self, key: str, *, max_bytes: int | None = None) -> bytes:
        """The content, in memory."""
        with self._translated(key), self._opened(key) as response:
            if max_bytes is None:
                return bytes(response.read())
            declared = int(response.headers.get("Content-Length", "0"))
            content = b"" if declared > max_bytes else bytes(response.read(max_bytes + 1))
            if max(declared, len(content)) > max_bytes:
                raise DocumentTooLargeError(f"object {key!r} has {declared} bytes; the limit is {max_bytes}")
            return content

    def download(self, key: str, path: Path) -> None:
        """Stream the content to `path`; the file appears whole or not at all.

        Raises:
            ObjectStoreUnavailableError: also when the local disk is full; the message says so.
        """
        partial = path.with_name(f".{uuid.uuid4().hex}.part")
        try:
            with self._translated(key), self._opened(key) as response, _local_write(partial) as file:
                for block in response.stream(READ_BYTES):
                    file.write(block)
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)

    def stat(self, key: str) -> ObjectInfo | None:
        """Facts about one object, None if it does not exist."""
        with self._translated(key):
            try:
                found = self._client.stat_object(self._bucket, _addressable(key))
            except S3Error as error:
                if error.code in _ABSENT:
                    return None
                raise
            return _info(key, found)

    def list(self, prefix: str, *, start_after: str = "", limit: int | None = None) -> Iterator[ObjectInfo]:
        """Objects in key order, read page by page while the caller iterates."""
        with self._translated(prefix):
            if self._walks_folders():
                found = list_in_key_order(self._client, self._bucket, prefix=prefix, start_after=start_after)
            else:
                found = self._client.list_objects(
                    self._bucket, prefix=prefix, recursive=True, start_after=start_after or None
                )
        for _ in itertools.count() if limit is None else range(limit):
            with self._translated(prefix):
                item = next(found, None)
            if item is None:
                return
            yield _info(str(item.object_name), item)

    def delete(self, keys: Sequence[str]) -> None:
        """Remove objects, up to `DELETE_KEYS` per request; missing ones are fine."""
        for start in range(0, len(keys), DELETE_KEYS):
            group = keys[start : start + DELETE_KEYS]
            with self._translated(group[0]):
                failed = self._client.remove_objects(self._bucket, [DeleteObject(key) for key in group])
                refused = [error for error in failed if error.code not in _ABSENT]
            if refused:
                first = refused[0]
                message = f"{len(refused)} of {len(group)} objects not deleted; {first.name!r}: {first.code}"
                raise _by_code(first.code, message)

    def _walks_folders(self) -> bool:
        """Whether the server is nanio, which says only that it runs on uvicorn; see `object_listing`."""
        if self._lists_depth_first is None:
            response = self._http.request("HEAD", self._endpoint)
            self._lists_depth_first = response.headers.get("Server", "") == "uvicorn"
        return self._lists_depth_first

    def _put(self, key: str, stream: BinaryIO, length: int, content_type: str) -> str:
        result = self._client.put_object(
            self._bucket, _addressable(key), stream, length, content_type=content_type, part_size=PART_BYTES
        )
        return str(result.etag)

    @contextlib.contextmanager
    def _opened(self, key: str) -> Iterator[urllib3.BaseHTTPResponse]:
        response = self._client.get_object(self._bucket, _addressable(key))
        try:
            yield response
        finally:
            response.close()
            response.release_conn()

    @contextlib.contextmanager
    def _translated(self, key: str) -> Iterator[None]:
        """The one place where errors of `minio` and `urllib3` become ours."""
        where = f"{self._endpoint}/{self._bucket}/{key}"
        try:
            yield
        except S3Error as error:
            raise self._from_s3(error, key, where) from error
        except (ServerError, InvalidResponseError) as error:
            status = error.status_code if isinstance(error, ServerError) else error._code
            if status >= 500 or status in _TEMPORARY_STATUS:
                raise ObjectStoreUnavailableError(f"{where}: HTTP {status}") from error
            raise ConfigurationError(f"{where}: HTTP {status}; is RAG_S3_ENDPOINT an S3 server?") from error
        except urllib3.exceptions.HTTPError as error:
            raise ObjectStoreUnavailableError(f"{where}: {type(error).__name__}: {error}") from error
        except MinioException as error:
            raise ObjectStoreUnavailableError(f"{where}: {error}") from error

    def _from_s3(self, error: S3Error, key: str, where: str) -> RagPipelineError:
        if error.code in _ABSENT:
            return ResourceNotFoundError(f"object {key!r} does not exist in bucket {self._bucket!r}")
        if error.code == "NoSuchBucket":
            return ConfigurationError(f"bucket {self._bucket!r} does not exist at {self._endpoint}; create it")
        if error.response.status >= 500 or error.response.status in _TEMPORARY_STATUS:
            return ObjectStoreUnavailableError(f"{where}: {error.code}: {error.message}")
        return _by_code(error.code, f"{where}: {error.code}: {error.message}")


def _by_code(code: str | None, message: str) -> RagPipelineError:
    if code in _TEMPORARY_CODES:
        return ObjectStoreUnavailableError(message)
    return ConfigurationError(f"{message}; check RAG_S3_ACCESS_KEY, RAG_S3_SECRET_KEY and the bucket's policy")


def _addressable(key: str) -> str:
    """The key itself; HTTP clients resolve `.` and `..` path segments, so such a key would name another object."""
    if not key or any(segment in {".", ".."} for segment in key.split("/")):
        raise InvalidFileNameError(f"object key {key!r} is empty or has a '.' or '..' segment; rename the object")
    return key


@contextlib.contextmanager
def _local_write(path: Path) -> Iterator[io.BufferedWriter]:
    try:
        with path.open("xb") as file:
            yield file
    except OSError as error:
        raise ObjectStoreUnavailableError(f"cannot write the download to {path.parent}: {error.strerror}") from error


def _info(key: str, found: object) -> ObjectInfo:
    modified = getattr(found, "last_modified", None)
    return ObjectInfo(
        key=key,
        size=getattr(found, "size", None) or 0,
        etag=str(getattr(found, "etag", None) or "").strip('"'),
        modified_at=modified if isinstance(modified, datetime) else datetime.fromtimestamp(0, UTC),
    )
