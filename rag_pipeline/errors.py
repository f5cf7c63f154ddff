"""The error tree. Every error of the package is one of these; foreign errors are translated in the adapters.

RagPipelineError
├── PermanentError                 trying again without a change cannot help
│   ├── InvalidDocumentError       the file itself: nothing to retry until it is replaced
│   │   ├── CorruptDocumentError       code corrupt
│   │   ├── EncryptedDocumentError     code encrypted
│   │   ├── EmptyDocumentError         code empty
│   │   ├── UnsupportedFormatError     code unsupported
│   │   ├── DocumentTooLargeError      code too_large
│   │   ├── ParseTimeoutError          code timeout
│   │   └── InvalidFileNameError       code invalid_name
│   ├── ResourceNotFoundError      code not_found
│   ├── AmbiguousNameError         code ambiguous: several documents go by this name
│   ├── KnowledgeBaseInactiveError code knowledge_base_inactive
│   ├── DocumentBusyError          code busy
│   ├── IllegalTransitionError     code illegal_transition
│   ├── ConfigurationError         code configuration
│   ├── MissingArtefactError       code missing_artefact
│   ├── EmbeddingRejectedError     code embedding_rejected
│   ├── ModelRejectedError         code model_rejected: a chat or rerank endpoint refuses, or answers nonsense
│   └── InternalError              code internal: a bug of ours, kept per document with its type and message
└── TemporaryError                 the same call may succeed later
    ├── ObjectStoreUnavailableError    code object_store_unavailable
    ├── VectorStoreUnavailableError    code vector_store_unavailable
    ├── FactsUnavailableError          code facts_unavailable
    ├── SnapshotWriteError             code snapshot_not_written
    ├── EmbeddingUnavailableError      code embedding_unavailable (may carry retry_after_seconds)
    ├── ModelUnavailableError          code model_unavailable: a chat or rerank endpoint is down or too slow
    ├── ServerStartError               code server_not_started: an embedded server did not come up
    ├── ParserCrashedError             code parser_crashed: the worker process died; bounded by attempts
    ├── OwnershipLostError             code ownership_lost: another run owns the document now
    └── GenerationSwitchedError        code generation_switched: another collection answers queries since a moment ago

`code` is stable and stored with the document; the message is for people and says what to do.
"""

from typing import ClassVar, Literal

ErrorClass = Literal["permanent", "temporary", "dead"]
"""How a failed document is treated: never retried, retried by recovery, or out of attempts."""


class RagPipelineError(Exception):
    """Base of every error raised by this package."""

    code: ClassVar[str] = "error"
    error_class: ClassVar[ErrorClass] = "permanent"


class PermanentError(RagPipelineError):
    """Trying again without a change of the file or the configuration cannot help."""


class TemporaryError(RagPipelineError):
    """The same call may succeed later."""

    error_class = "temporary"

    def __init__(self, message: str, *, retry_after_seconds: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_seconds = retry_after_seconds
        """What the other side asked for (HTTP Retry-After), in seconds; None when it did not say."""


class InvalidDocumentError(PermanentError):
    """The file cannot become a document; it has to be replaced."""

    code = "invalid_document"


class CorruptDocumentError(InvalidDocumentError):
    """The bytes are damaged beyond what the parser repairs."""

    code = "corrupt"


class EncryptedDocumentError(InvalidDocumentError):
    """The file needs a password that was not given, or a wrong one was given."""

    code = "encrypted"


class EmptyDocumentError(InvalidDocumentError):
    """The file has no bytes."""

    code = "empty"


class UnsupportedFormatError(InvalidDocumentError):
    """No parser takes this kind of file."""

    code = "unsupported"


class DocumentTooLargeError(InvalidDocumentError):
    """The file, or what it expands to, is over a limit."""

    code = "too_large"


class ParseTimeoutError(InvalidDocumentError):
    """The parser did not finish within its time limit."""

    code = "timeout"


class InvalidFileNameError(InvalidDocumentError):
    """The given file name is a path, or has no usable characters."""

    code = "invalid_name"


class ResourceNotFoundError(PermanentError):
    """A knowledge base, document or image with this id or name does not exist."""

    code = "not_found"


class AmbiguousNameError(PermanentError):
    """Several documents go by the given name; the message lists their ids, of which one is to be given instead."""

    code = "ambiguous"


class KnowledgeBaseInactiveError(PermanentError):
    """The knowledge base is being deleted and takes no new work."""

    code = "knowledge_base_inactive"


class DocumentBusyError(PermanentError):
    """A version of the document is being built; wait for it or cancel it."""

    code = "busy"


class IllegalTransitionError(PermanentError):
    """A status change that the transition table does not allow."""

    code = "illegal_transition"


class ConfigurationError(PermanentError):
    """A setting is missing or wrong; the message names it, its value and the remedy."""

    code = "configuration"


class MissingArtefactError(PermanentError):
    """A stage was asked to run without its upstream artefact; materialize the named upstream asset first."""

    code = "missing_artefact"


class EmbeddingRejectedError(PermanentError):
    """The embedding service refuses the request itself (HTTP 4xx other than 408 and 429, or a wrong answer shape)."""

    code = "embedding_rejected"


class ModelRejectedError(PermanentError):
    """A chat or rerank endpoint refuses the request (HTTP 4xx other than 408 and 429), or its answer has no sense."""

    code = "model_rejected"


class InternalError(PermanentError):
    """An unexpected error while one document was processed: a fault of this package, reported with its type."""

    code = "internal"


class ObjectStoreUnavailableError(TemporaryError):
    """The S3 server cannot be reached or answers with a server error."""

    code = "object_store_unavailable"


class VectorStoreUnavailableError(TemporaryError):
    """Milvus cannot be reached or answers with a server error."""

    code = "vector_store_unavailable"


class FactsUnavailableError(TemporaryError):
    """PostgreSQL cannot be reached."""

    code = "facts_unavailable"


class SnapshotWriteError(TemporaryError):
    """The chunk snapshot could not be written to disk (no space, no permission)."""

    code = "snapshot_not_written"


class EmbeddingUnavailableError(TemporaryError):
    """The embedding service is down, slow, over its rate limit, or answered with a server error."""

    code = "embedding_unavailable"


class ModelUnavailableError(TemporaryError):
    """A chat or rerank endpoint is down, slow, over its rate limit, or answered with a server error."""

    code = "model_unavailable"


class ServerStartError(TemporaryError):
    """An embedded server did not come up; the message has the end of its log."""

    code = "server_not_started"


class ParserCrashedError(TemporaryError):
    """The parser process died (killed, out of memory, crashed in native code)."""

    code = "parser_crashed"


class OwnershipLostError(TemporaryError):
    """Another run owns the document now; this one must not write any more."""

    code = "ownership_lost"


class GenerationSwitchedError(TemporaryError):
    """Another collection answers queries since a moment ago; what was written to the one before does not count."""

    code = "generation_switched"
