"""Conversations, their turns, and the evidence of each answer.

Revision ID: 0004
Revises: 0003
"""

from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

STATEMENTS = """
CREATE TABLE conversations (
    id TEXT NOT NULL,
    kb_id TEXT NOT NULL,
    title TEXT NOT NULL,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    updated_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    CONSTRAINT pk_conversations PRIMARY KEY (id),
    CONSTRAINT fk_conversations_kb_id_knowledge_bases FOREIGN KEY(kb_id) REFERENCES knowledge_bases (id)
);

CREATE INDEX ix_conversations_kb_id_updated_at ON conversations (kb_id, updated_at);

CREATE TABLE conversation_turns (
    conversation_id TEXT NOT NULL,
    position INTEGER NOT NULL,
    question TEXT NOT NULL,
    answer TEXT NOT NULL,
    kind TEXT NOT NULL,
    notes JSONB NOT NULL,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    CONSTRAINT pk_conversation_turns PRIMARY KEY (conversation_id, position),
    CONSTRAINT fk_conversation_turns_conversation_id_conversations FOREIGN KEY(conversation_id)
        REFERENCES conversations (id) ON DELETE CASCADE
);

CREATE TABLE conversation_evidence (
    conversation_id TEXT NOT NULL,
    position INTEGER NOT NULL,
    number INTEGER NOT NULL,
    document_id TEXT NOT NULL,
    citation JSONB NOT NULL,
    CONSTRAINT pk_conversation_evidence PRIMARY KEY (conversation_id, position, number),
    CONSTRAINT fk_conversation_evidence_turn FOREIGN KEY(conversation_id, position)
        REFERENCES conversation_turns (conversation_id, position) ON DELETE CASCADE,
    CONSTRAINT fk_conversation_evidence_document_id_documents FOREIGN KEY(document_id)
        REFERENCES documents (id) ON DELETE CASCADE
);

CREATE INDEX ix_conversation_evidence_document_id ON conversation_evidence (document_id);
"""


def upgrade() -> None:
    """Add the tables."""
    op.execute(STATEMENTS)
