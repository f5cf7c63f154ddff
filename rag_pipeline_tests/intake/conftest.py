import uuid
from collections.abc import Iterator

import pytest
from minio import Minio

from rag_pipeline.adapters.object_store import MinioObjectStore
from rag_pipeline.adapters.postgres.facts import Facts
from rag_pipeline.core.documents import KnowledgeBase
from rag_pipeline.intake.submission import Submission
from rag_pipeline.settings import Settings
from rag_pipeline_tests.intake.stores import LIMIT


@pytest.fixture
def bucket(servers: Settings) -> Iterator[Settings]:
    """Settings with an empty bucket of the test's own."""
    own = servers.model_copy(update={"s3_bucket": f"intake-{uuid.uuid4().hex[:12]}"})
    store = MinioObjectStore.from_settings(own)
    store.ensure_bucket()
    yield own
    store.delete([info.key for info in store.list("")])
    endpoint, access_key, secret_key = own.require_s3()
    address = endpoint.removeprefix("http://")
    Minio(address, access_key=access_key, secret_key=secret_key, secure=False).remove_bucket(own.s3_bucket)


@pytest.fixture
def objects(bucket: Settings) -> MinioObjectStore:
    return MinioObjectStore.from_settings(bucket)


@pytest.fixture
def submission(facts: Facts, objects: MinioObjectStore) -> Submission:
    return Submission(facts=facts, objects=objects, max_upload_bytes=LIMIT)


@pytest.fixture
def kb(facts: Facts) -> KnowledgeBase:
    return facts.knowledge_bases.create("handbook")
