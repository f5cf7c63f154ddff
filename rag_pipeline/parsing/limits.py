"""What one file may cost, by the settings."""

from rag_pipeline.core.ports import ParseLimits
from rag_pipeline.settings import Settings


def limits_of(settings: Settings) -> ParseLimits:
    """The limits of one file; the parser pool adds its share of the cores."""
    return ParseLimits(
        seconds=settings.parse_timeout_seconds,
        memory_bytes=settings.parse_memory_bytes,
        max_pages=settings.parse_max_pages,
        max_expanded_bytes=settings.parse_max_expanded_bytes,
        max_text_characters=settings.parse_max_text_characters,
    )
