"""The tables of the store.

A reply is a row of `calls` without an episode, which is the log of an episode that goes on, until that ends: then it is its turn number
`turn`, or deleted where the record does not have it. A batch's `restart` is the one that trained it; `groups` and `minibatches` are those of its TrainedStep, as JSON. `rejected`: why a group is not trained on. `damaged`: why a
checkpoint cannot be loaded, until it is made again.
"""

from __future__ import annotations

from agentrl.record.end_reason import EndReason

SCHEMA_VERSION = 16

_REASONS = ", ".join(f"'{reason}'" for reason in EndReason)
SCHEMA = f"""
CREATE TABLE groups (
    id INTEGER PRIMARY KEY,
    epoch INTEGER NOT NULL,
    task INTEGER NOT NULL,
    state TEXT NOT NULL CHECK (state IN ('open', 'ready', 'rejected')),
    rejected TEXT,
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
    reason TEXT NOT NULL CHECK (reason IN ({_REASONS})),
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
    duration_s REAL NOT NULL,
    details TEXT
);
CREATE INDEX episodes_by_group ON episodes (group_id, reason, reward);
CREATE UNIQUE INDEX finished_once ON episodes (group_id, episode_index) WHERE reason = 'finished';
CREATE TABLE calls (
    group_id INTEGER NOT NULL REFERENCES groups (id),
    episode_index INTEGER NOT NULL,
    episode INTEGER REFERENCES episodes (id),
    turn INTEGER,
    request TEXT NOT NULL,
    completion_id TEXT NOT NULL,
    choice_index INTEGER NOT NULL,
    tool_call_ids TEXT NOT NULL,
    output_ids BLOB NOT NULL,
    logprobs BLOB NOT NULL,
    versions BLOB NOT NULL,
    finish TEXT NOT NULL CHECK (finish IN ('stop', 'length')),
    cached_tokens INTEGER NOT NULL,
    top_logprobs BLOB,
    CHECK ((episode IS NULL) = (turn IS NULL))
);
CREATE UNIQUE INDEX logged_once ON calls (group_id, episode_index, completion_id, choice_index) WHERE episode IS NULL;
CREATE UNIQUE INDEX turns_of_episodes ON calls (episode, turn) WHERE episode IS NOT NULL;
CREATE TABLE batches (
    step INTEGER PRIMARY KEY,
    checkpoint INTEGER NOT NULL REFERENCES checkpoints (step),
    restart INTEGER NOT NULL,
    groups TEXT NOT NULL,
    minibatches TEXT NOT NULL,
    optimizer_steps INTEGER NOT NULL
);
CREATE TABLE token_figures (episode INTEGER PRIMARY KEY REFERENCES episodes (id), proximal BLOB, entropy BLOB, advantage BLOB);
CREATE TABLE checkpoints (
    step INTEGER PRIMARY KEY,
    restart INTEGER NOT NULL,
    path TEXT NOT NULL,
    reward_mean REAL,
    reward_groups INTEGER NOT NULL DEFAULT 0,
    made_at REAL NOT NULL,
    kept INTEGER NOT NULL DEFAULT 1,
    damaged TEXT
);
CREATE TABLE evaluations (step INTEGER PRIMARY KEY, figures TEXT NOT NULL);
CREATE TABLE begun_checkpoints (path TEXT PRIMARY KEY);
CREATE TABLE restarts (restart INTEGER PRIMARY KEY, started_at REAL NOT NULL, config TEXT NOT NULL);
CREATE TABLE run_values (name TEXT PRIMARY KEY, value TEXT NOT NULL);
"""
