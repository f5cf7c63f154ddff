"""Documents to a searchable, citable knowledge base, as Dagster assets.

`RagClient`, `RetrievalOptions` and `Settings` are loaded on first use: parser processes and the command line import the
package too and must not pay for them.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rag_pipeline.query.client import RagClient
    from rag_pipeline.query.options import RetrievalOptions
    from rag_pipeline.settings import Settings

__all__ = ["RagClient", "RetrievalOptions", "Settings"]

_MODULES = {
    "RagClient": "rag_pipeline.query.client",
    "RetrievalOptions": "rag_pipeline.query.options",
    "Settings": "rag_pipeline.settings",
}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)
