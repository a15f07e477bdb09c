"""Sandboxes that run model-written code, and a grader of what it does. See docs/sandboxes.md and docs/grading.md."""

from agentrl.sandboxes.backends.bubblewrap import Bubblewrap
from agentrl.sandboxes.backends.docker_backend import Docker
from agentrl.sandboxes.backends.hosted import HostedSandbox, HostedService
from agentrl.sandboxes.choose import BackendName, open_sandbox
from agentrl.sandboxes.grading.comparison import Comparison
from agentrl.sandboxes.grading.extract import extract_code
from agentrl.sandboxes.grading.grade import grade
from agentrl.sandboxes.grading.task_tests import load_tests
from agentrl.sandboxes.grading.tasks import CodeTask, load_code_task
from agentrl.sandboxes.grading.tests import (
    CPP,
    JAVA,
    PYTHON,
    AssertTest,
    CallTest,
    Checker,
    IOTest,
    Language,
    Test,
    TestFile,
)
from agentrl.sandboxes.grading.verdict import Baseline, Status, TestResult, Verdict
from agentrl.sandboxes.linked_sandbox import Process
from agentrl.sandboxes.pool import SandboxPool, open_pool
from agentrl.sandboxes.python_session import PythonSession, python_session
from agentrl.sandboxes.run_sandboxes import open_sandboxes
from agentrl.sandboxes.sandbox import Backend, EndReason, ExecResult, Limits, Sandbox, SandboxSpec

__all__ = [
    "CPP",
    "JAVA",
    "PYTHON",
    "AssertTest",
    "Backend",
    "BackendName",
    "Baseline",
    "Bubblewrap",
    "CallTest",
    "Checker",
    "CodeTask",
    "Comparison",
    "Docker",
    "EndReason",
    "ExecResult",
    "HostedSandbox",
    "HostedService",
    "IOTest",
    "Language",
    "Limits",
    "Process",
    "PythonSession",
    "Sandbox",
    "SandboxPool",
    "SandboxSpec",
    "Status",
    "Test",
    "TestFile",
    "TestResult",
    "Verdict",
    "extract_code",
    "grade",
    "load_code_task",
    "load_tests",
    "open_pool",
    "open_sandbox",
    "open_sandboxes",
    "python_session",
]
