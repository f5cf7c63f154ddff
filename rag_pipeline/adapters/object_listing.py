"""Listings of S3 servers that keep objects as files and walk folders depth first, such as nanio.

S3 lists keys in the order of their bytes. Such a server lists `docs/1` before `docs.zip`, although `.` comes before
`/`, and then leaves `docs.zip` out of the second page, because it is smaller than where the page began. A page that
holds everything is complete, though, and so is a listing of one folder with a delimiter; both are put into key order
here.
"""

import itertools
from collections.abc import Iterator

from minio import Minio
from minio.datatypes import Object

PAGE = 1000
"""Objects of one page (the S3 API's limit and `minio`'s default)."""


def list_in_key_order(client: Minio, bucket: str, *, prefix: str, start_after: str) -> Iterator[Object]:
    """Objects whose key begins with `prefix` and comes after `start_after`, in key order, none left out."""
    page = list(
        itertools.islice(
            client.list_objects(bucket, prefix=prefix, recursive=True, start_after=start_after or None), PAGE
        )
    )
    if len(page) < PAGE:
        yield from sorted(page, key=_key)
        return
    folder = prefix[: prefix.rfind("/") + 1]
    yield from _list_folder(client, bucket, folder, prefix=prefix, start_after=start_after)


def _list_folder(client: Minio, bucket: str, folder: str, *, prefix: str, start_after: str) -> Iterator[Object]:
    # Folders come again on every page: keep one of each.
    entries = {_key(entry): entry for entry in client.list_objects(bucket, prefix=folder, recursive=False)}
    for key in sorted(entries):
        if key.endswith("/") and entries[key].is_dir:
            leads_to_prefix = key.startswith(prefix) or prefix.startswith(key)
            if leads_to_prefix and (key > start_after or start_after.startswith(key)):
                yield from _list_folder(client, bucket, key, prefix=prefix, start_after=start_after)
        elif key.startswith(prefix) and key > start_after:
            yield entries[key]


def _key(entry: Object) -> str:
    return str(entry.object_name)
