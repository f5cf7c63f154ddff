"""What Dagster loads: the asset graph as data, and that loading needs no server."""

import os
import subprocess
import sys
from pathlib import Path

import dagster as dg

from rag_pipeline.core.documents import Stage
from rag_pipeline.definitions import defs
from rag_pipeline.stages.services import CODE_VERSIONS

GRAPH = {
    "source_document": ([], {"s3", "file"}),
    "parsed_blocks": (["source_document"], {"python", "parquet"}),
    "chunks": (["parsed_blocks"], {"python", "parquet"}),
    "chunk_snapshot": (["chunks"], {"json", "file"}),
    "embeddings": (["chunk_snapshot"], {"numpy", "parquet"}),
    "index_writes": (["embeddings"], {"milvus", "postgres"}),
    "index_generation": (["index_writes"], {"milvus", "numpy"}),
    "retrieval_quality": (["index_writes"], {"milvus", "postgres"}),
    "document_stores": (["index_writes"], {"milvus", "postgres", "s3"}),
}


def test_asset_graph() -> None:
    specs = {spec.key.to_user_string(): spec for spec in defs.resolve_all_asset_specs()}
    assert {
        key: ([dep.asset_key.to_user_string() for dep in spec.deps], set(spec.kinds)) for key, spec in specs.items()
    } == GRAPH
    for stage in Stage:
        spec = specs[stage.value]
        assert spec.code_version == CODE_VERSIONS[stage]
        assert spec.group_name == "documents"
        assert spec.description
        assert spec.owners
        assert isinstance(spec.partitions_def, dg.DynamicPartitionsDefinition)


def test_materializing_documents_does_not_compare_the_stores() -> None:
    checks = defs.resolve_asset_graph().asset_check_keys
    assert {(check.asset_key.to_user_string(), check.name) for check in checks} == {
        ("document_stores", "stores_agree"),
        ("document_stores", "exact_words_are_found"),
        ("retrieval_quality", "retrieval_quality_holds"),
    }
    assert [node.name for node in defs.resolve_job_def("documents_job").nodes] == ["document_stages"]
    assert {node.name for node in defs.resolve_job_def("reconcile_job").nodes} == {
        "document_stores_stores_agree",
        "document_stores_exact_words_are_found",
    }


def test_definitions_load_without_servers_and_settings(tmp_path: Path) -> None:
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("RAG_", "DAGSTER_"))}
    code = "from rag_pipeline.definitions import defs; dg = defs.get_repository_def(); print(len(dg.sensor_defs))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout.strip()) == (0, "5"), done.stderr


def test_client_does_not_import_dagster() -> None:
    code = "import sys, rag_pipeline.query.client; print('dagster' in sys.modules, 'pymilvus' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False False"
