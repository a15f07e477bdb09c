"""The tables of the store."""

from __future__ import annotations

from agentrl.record.end_reason import EndReason
from agentrl.rollout import batches, calls

SCHEMA_VERSION = 11

_REASONS = ", ".join(f"'{reason}'" for reason in EndReason)
_RUN = f"""
CREATE TABLE groups (
    id INTEGER PRIMARY KEY,
    epoch INTEGER NOT NULL,
    task INTEGER NOT NULL,
    state TEXT NOT NULL CHECK (state IN ('open', 'ready', 'rejected')),
    reason TEXT,
    step INTEGER REFERENCES batches (step),
    version INTEGER NOT NULL,
    task_digest TEXT NOT NULL
);
CREATE TABLE episodes (
    id INTEGER PRIMARY KEY,
    restart INTEGER NOT NULL,
    group_id INTEGER NOT NULL REFERENCES groups (id),
    episode_index INTEGER NOT NULL,
    seed INTEGER NOT NULL,
    status TEXT NOT NULL CHECK (status IN ({_REASONS})),
    reward REAL NOT NULL,
    has_turn_rewards INTEGER NOT NULL,
    metrics TEXT NOT NULL,
    error TEXT,
    record BLOB NOT NULL,
    prompt_ids BLOB NOT NULL,
    tokens INTEGER NOT NULL,
    interrupted_tokens INTEGER NOT NULL,
    replayed_tokens INTEGER NOT NULL,
    started_at REAL NOT NULL,
    duration_s REAL NOT NULL
);
CREATE INDEX episodes_by_group ON episodes (group_id);
CREATE UNIQUE INDEX finished_once ON episodes (group_id, episode_index) WHERE status = 'finished';
CREATE TABLE begun_checkpoints (path TEXT PRIMARY KEY);
CREATE TABLE restarts (restart INTEGER PRIMARY KEY, started_at REAL NOT NULL, config TEXT NOT NULL);
CREATE TABLE run_values (name TEXT PRIMARY KEY, value TEXT NOT NULL);
"""

SCHEMA = _RUN + calls.SCHEMA + batches.SCHEMA
