"""Write something to every embedded server and read it back."""

import io

import psycopg2
from minio import Minio
from pymilvus import MilvusClient

from rag_pipeline.settings import Settings


def write_content(settings: Settings) -> None:
    """A table with a row, an object, and a collection with two rows."""
    with psycopg2.connect(plain_postgres_url(settings)) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE TABLE kept (text text); INSERT INTO kept VALUES ('保留')")
    connection.close()
    s3_client(settings).put_object(settings.s3_bucket, "dir/a b+保留.txt", io.BytesIO(b"kept"), 4)
    uri, token = settings.require_milvus()
    client = MilvusClient(uri, token=token)
    client.create_collection("kept", dimension=4)
    client.insert("kept", [{"id": 1, "vector": [1.0, 0, 0, 0]}, {"id": 2, "vector": [0, 1.0, 0, 0]}])
    client.close()


def read_content(settings: Settings) -> tuple[str, bytes, int]:
    """What `write_content` wrote: the row's text, the object, the number of vectors."""
    connection = psycopg2.connect(plain_postgres_url(settings))
    with connection, connection.cursor() as cursor:
        cursor.execute("SELECT text FROM kept")
        row = cursor.fetchone()
    connection.close()
    response = s3_client(settings).get_object(settings.s3_bucket, "dir/a b+保留.txt")
    content = response.read()
    response.close()
    response.release_conn()
    uri, token = settings.require_milvus()
    client = MilvusClient(uri, token=token)
    client.load_collection("kept")
    count = client.query("kept", filter="", output_fields=["count(*)"], consistency_level="Strong")[0]["count(*)"]
    client.close()
    return (row[0] if row else "", content, int(count))


WRITTEN = ("保留", b"kept", 2)
"""What `read_content` gives."""


def plain_postgres_url(settings: Settings) -> str:
    """The URL that libpq takes."""
    return settings.require_postgres().replace("postgresql+psycopg2", "postgresql")


def s3_client(settings: Settings) -> Minio:
    """A client of the embedded S3 server."""
    endpoint, access_key, secret_key = settings.require_s3()
    return Minio(endpoint.removeprefix("http://"), access_key=access_key, secret_key=secret_key, secure=False)
