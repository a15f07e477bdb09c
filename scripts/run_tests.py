"""Run one ring of the tests: `make test` runs the gate, `make soak` the soak.

    pytest ──► tests that failed ──► pytest again, one by one ──► failed twice: the ring fails
      │                                        └── passed: FLAKY, a line in tests/flaky.txt
      └── after the ring's time limit: the tests that were running, and the ring fails

Whatever the tests leave running is ended, since this process adopts orphans.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

ROOT = Path(__file__).parents[1]
FLAKY = ROOT / "tests" / "flaky.txt"
LAST_FAILED = ROOT / ".pytest_cache" / "v" / "cache" / "lastfailed"
MOST_RERUN = 20
"""More failed tests than this are no flakes, and are not run again."""
PATIENCE_S = 30
"""How long pytest may take to say what was running when its time was over."""
PR_SET_CHILD_SUBREAPER = 36
"""From linux/prctl.h."""


def descendants(of: int) -> Iterator[int]:
    """Yield the living processes below a process, those nearest to it first."""
    found = [of]
    for parent in found:
        with suppress(OSError):
            for thread in Path(f"/proc/{parent}/task").iterdir():
                children = [int(child) for child in (thread / "children").read_text().split()]
                found += children
                yield from children


def end_descendants() -> list[str]:
    """Kill what is still running below this process, and return the command of each."""
    commands = []
    for _ in range(10):  # one that is killed leaves its own children to this process
        for pid in descendants(os.getpid()):
            with suppress(OSError):
                command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                os.kill(pid, signal.SIGKILL)
                commands += [f"{pid} {command[:150]}"] if command else []
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(0.05)
    return commands


def ended(pid: int, limit_s: float) -> int | None:
    """Wait for a child, and return its exit code; None: it has not ended within `limit_s`. Orphans that end meanwhile are reaped."""
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        reaped, status = os.waitpid(-1, os.WNOHANG)
        if reaped == pid:
            return os.waitstatus_to_exitcode(status)
        if not reaped:
            time.sleep(0.05)
    return None


def run_pytest(words: list[str], limit_s: float) -> int:
    """Run pytest, for `limit_s` at most, and return its exit code. tests/conftest.py says at SIGTERM what was running."""
    pid = os.posix_spawn(sys.executable, [sys.executable, "-m", "pytest", *words], os.environ)
    if (code := ended(pid, limit_s)) is None:
        os.kill(pid, signal.SIGTERM)
        if ended(pid, PATIENCE_S) is None:
            os.kill(pid, signal.SIGKILL)
        return 1
    return code


def failed_tests() -> list[str]:
    """Return the ids of the tests that failed in the last run of pytest here."""
    return sorted(json.loads(LAST_FAILED.read_text())) if LAST_FAILED.exists() else []


def run_ring(words: list[str], processes: int, limit_s: float, *, once: bool) -> int:
    """Run the tests that `words` choose, those that failed once more, and return the exit code of the ring."""
    begin = time.monotonic()
    LAST_FAILED.unlink(missing_ok=True)
    code = run_pytest([*words, f"--numprocesses={processes}"], limit_s)
    failed = failed_tests()
    left_s = limit_s - (time.monotonic() - begin)
    if once or code != 1 or not failed or len(failed) > MOST_RERUN or left_s <= 0:
        return code
    print(f"{len(failed)} failed, and each is run once more, alone", flush=True)
    code = run_pytest([*words, "--numprocesses=1", "--last-failed", "--last-failed-no-failures=none"], left_s)
    if flaky := [test for test in failed if test not in failed_tests()] if code in (0, 1) else []:
        FLAKY.write_text("".join(f"{test}\n" for test in sorted({*FLAKY.read_text().splitlines(), *flaky})))
        print(f"FLAKY ({len(flaky)}, in tests/flaky.txt; mend them, or move them to the soak): {'; '.join(flaky)}")
    return code


def main() -> int:
    """Run the ring that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=2, help="among which the tests are shared")
    parser.add_argument("--limit-s", type=float, default=40 * 60, help="for all tests together")
    parser.add_argument("--once", action="store_true", help="run no test a second time")
    options, words = parser.parse_known_args()
    os.chdir(ROOT)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    code = run_ring(words, options.processes, options.limit_s, once=options.once)
    if left := end_descendants() if sys.platform == "linux" else []:
        print("ended, as tests left them running:", *left, sep="\n  ")
    return code


if __name__ == "__main__":
    sys.exit(main())
