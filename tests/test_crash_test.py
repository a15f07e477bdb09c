"""The power cut of `benchmarks/crash_test.py`: what was durable is there, what was not synced is gone, and nothing is torn."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from agentrl.store.database import check_pages, open_database
from benchmarks.crash_test import ROOT, disturb, synced_note

BEGIN = """
import resource, signal, sqlite3, sys, time
from pathlib import Path
from agentrl.store.database import create_database, open_database, transaction

path = Path(sys.argv[1])
create_database(path)
db = open_database(path)
with transaction(db, path, durable=True):
    db.execute("CREATE TABLE kept (name TEXT, body BLOB)")

def write(name, count=1, durable=False):
    with transaction(db, path, durable=durable):
        db.executemany("INSERT INTO kept VALUES (?, zeroblob(20000))", [(name,)] * count)

def reader():
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN")
    other.execute("SELECT COUNT(*) FROM kept").fetchone()
    return other
"""
NOTHING_COPIED = """
reading = reader()
write("durable", durable=True)
write("ordinary")
"""
A_LONG_LOG = """
write("durable", 20, durable=True)
write("ordinary before", 20)
reading = reader()
db.execute("DELETE FROM kept WHERE rowid % 2")
"""
HALF_COPIED = (
    A_LONG_LOG
    + """
write("durable", durable=True)
write("ordinary")
"""
)
KILLED_WHILE_COPYING = """
write("durable", 40, durable=True)
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (500_000, 500_000))
write("durable", durable=True)
"""
BEGUN_ANEW = """
reading = reader()
write("durable", 5, durable=True)
reading.execute("COMMIT")
db.execute("PRAGMA wal_checkpoint(PASSIVE)")
write("ordinary")
"""
NOTHING_DURABLE = """
write("durable", durable=True)
write("ordinary")
"""
COPIED_AS_IT_IS_LONG = (
    A_LONG_LOG
    + """
write("ordinary", 300)
"""
)


@pytest.mark.parametrize(
    ("does", "left"),
    [
        pytest.param(NOTHING_COPIED, {"durable": 1}, id="a reader keeps the whole log"),
        pytest.param(HALF_COPIED, {"durable": 11, "ordinary before": 10}, id="a reader keeps half of the log"),
        pytest.param(KILLED_WHILE_COPYING, {"durable": 41}, id="killed while the log was copied"),
        pytest.param(BEGUN_ANEW, {"durable": 5}, id="the log was copied and has begun anew"),
        pytest.param(NOTHING_DURABLE, {"durable": 1}, id="nothing of the log was synced"),
        pytest.param(
            COPIED_AS_IT_IS_LONG, {"durable": 20, "ordinary before": 20}, id="SQLite copies half of a long log unasked"
        ),
    ],
)
def test_a_power_cut_leaves_what_a_disk_may_leave(tmp_path: Path, does: str, left: dict[str, int]) -> None:
    run_dir = tmp_path / "disk" / "run"
    run_dir.mkdir(parents=True)
    path = run_dir / "store.sqlite"
    noting = {
        "PYTHONPATH": str(ROOT / "benchmarks" / "injected_faults"),
        "AGENTRL_SYNCED_NOTE": str(synced_note(run_dir)),
    }
    words = [sys.executable, "-c", BEGIN + does + "print('ready', flush=True)\ntime.sleep(60)", str(path)]
    with subprocess.Popen(words, env={**os.environ, **noting}, stdout=subprocess.PIPE) as program:
        assert program.stdout is not None
        try:
            assert program.stdout.readline() == b"ready\n"
            assert disturb("power cut", program, run_dir, None)
        finally:
            program.kill()
    with closing(open_database(path)) as db:
        check_pages(db, path)
        assert dict(db.execute("SELECT name, COUNT(*) FROM kept GROUP BY name")) == left
