"""What the contract suite does not reach: error translation, configuration, wrong credentials."""

import http.client

import minio.error
import pytest
import urllib3
from minio.error import InvalidResponseError, MinioException, S3Error, ServerError
from urllib3.exceptions import HTTPError

from rag_pipeline.adapters.object_store import MinioObjectStore
from rag_pipeline.errors import (
    ConfigurationError,
    ObjectStoreUnavailableError,
    RagPipelineError,
    ResourceNotFoundError,
)
from rag_pipeline.settings import Settings


def make_store(endpoint: str = "http://127.0.0.1:9", bucket: str = "bucket") -> MinioObjectStore:
    return MinioObjectStore(
        endpoint=endpoint, access_key="key", secret_key="secret-key", region="us-east-1", bucket=bucket
    )


def s3_error(code: str, status: int) -> S3Error:
    response = urllib3.HTTPResponse(status=status)
    return S3Error(response, code, "message", "/bucket/key", "request", "host", "bucket", "key")


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (s3_error("NoSuchKey", 404), ResourceNotFoundError),
        (s3_error("NoSuchBucket", 404), ConfigurationError),
        (s3_error("AccessDenied", 403), ConfigurationError),
        (s3_error("InvalidAccessKeyId", 403), ConfigurationError),
        (s3_error("SignatureDoesNotMatch", 403), ConfigurationError),
        (s3_error("KeyTooLongError", 400), ConfigurationError),
        (s3_error("InternalError", 500), ObjectStoreUnavailableError),
        (s3_error("SlowDown", 503), ObjectStoreUnavailableError),
        (s3_error("RequestTimeout", 400), ObjectStoreUnavailableError),
        (s3_error("TooManyRequests", 429), ObjectStoreUnavailableError),
        (ServerError("failed", 503), ObjectStoreUnavailableError),
        (ServerError("failed", 304), ConfigurationError),
        (InvalidResponseError(502, "text/html", "<html>"), ObjectStoreUnavailableError),
        (InvalidResponseError(200, "text/html", "<html>"), ConfigurationError),
    ],
    ids=lambda value: getattr(value, "code", None) or getattr(value, "__name__", None) or str(value)[:40],
)
def test_answers_of_the_server_are_translated(error: Exception, expected: type[RagPipelineError]) -> None:
    with pytest.raises(expected) as raised, make_store()._translated("key"):
        raise error
    assert raised.value.__cause__ is error


VENDOR_ERRORS = [
    error
    for module in (minio.error, urllib3.exceptions)
    for error in vars(module).values()
    if isinstance(error, type)
    and issubclass(error, MinioException | HTTPError)
    and error not in {S3Error, ServerError, InvalidResponseError}
]


@pytest.mark.parametrize("error_class", VENDOR_ERRORS, ids=lambda error: error.__name__)
def test_every_error_of_the_client_is_translated(error_class: type[Exception]) -> None:
    error = error_class.__new__(error_class)
    if isinstance(error, http.client.IncompleteRead):
        vars(error).update(partial=0, expected=1, response=urllib3.HTTPResponse(), length=0)
    with pytest.raises(ObjectStoreUnavailableError) as raised, make_store()._translated("key"):
        raise error
    assert raised.value.__cause__ is error


@pytest.mark.parametrize(
    "endpoint", ["127.0.0.1:9000", "ftp://host", "http://", "http://host/path", "http://user@host"], ids=repr
)
def test_a_wrong_endpoint_is_a_configuration_error(endpoint: str) -> None:
    with pytest.raises(ConfigurationError, match="RAG_S3_ENDPOINT"):
        make_store(endpoint)


@pytest.mark.parametrize("bucket", ["", "ab", "Upper", "a/b", "under_score"], ids=repr)
def test_a_wrong_bucket_name_is_a_configuration_error(bucket: str) -> None:
    with pytest.raises(ConfigurationError, match="RAG_S3_BUCKET"):
        make_store(bucket=bucket)


def test_wrong_credentials_are_a_configuration_error_without_the_secret(servers: Settings) -> None:
    endpoint, access_key, _ = servers.require_s3()
    store = MinioObjectStore(
        endpoint=endpoint, access_key=access_key, secret_key="not-the-secret", region="us-east-1", bucket="bucket"
    )
    with pytest.raises(ConfigurationError, match="RAG_S3_SECRET_KEY") as raised:
        store.get("key")
    assert "not-the-secret" not in str(raised.value)


def test_settings_name_the_store(settings: Settings) -> None:
    store = MinioObjectStore.from_settings(settings)
    store.put("key", b"x")
    assert store.get("key") == b"x"
