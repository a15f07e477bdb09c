"""Programs that use what the tests give them of their own classes: right ones, and faulty ones that plain Python fails."""

from __future__ import annotations

from textwrap import dedent

_HTTP_ERROR = """
        class HttpError(Exception):
            limit = 3
            def __init__(self, status, headers=()):
                super().__init__(f"status {status}")
                self.status, self.headers = status, headers
            def __str__(self): return f"HTTP {self.status}"
            @property
            def is_transient(self): return self.status >= 500
        def fails(times, error):
            left = [error] * times
            def call():
                if left: raise left.pop()
                return "ok"
            return call
"""
_CASES: dict[str, tuple[str, str, str]] = {
    "an exception's attributes": (
        """
        def retry(call, times):
            for _ in range(times):
                try: return call()
                except Exception as error:
                    if getattr(error, "status", 0) != 503: raise
        """,
        """
        def retry(call, times):
            for _ in range(times):
                try: return call()
                except Exception: pass
        """,
        f"""
        import pytest
        from solution import retry
        {_HTTP_ERROR}
        def test_again(): assert retry(fails(2, HttpError(503)), 5) == "ok"
        def test_not_again():
            with pytest.raises(HttpError) as caught: retry(fails(1, HttpError(404)), 5)
            assert caught.value.status == 404 and str(caught.value) == "HTTP 404"
        """,
    ),
    "an exception's text, property and class attribute": (
        """
        def tell(call):
            try: call()
            except Exception as error:
                return f"{type(error).__name__}: {error}", error.is_transient, error.limit, hasattr(error, "code"), error.headers
        """,
        """
        def tell(call):
            try: call()
            except Exception as error:
                return f"{type(error).__name__}: {error.args[0]}", True, 3, False, {"a": [1]}
        """,
        f"""
        from solution import tell
        {_HTTP_ERROR}
        def test():
            assert tell(fails(1, HttpError(503, {{"a": [1]}}))) == ("HttpError: HTTP 503", True, 3, False, {{"a": [1]}})
        """,
    ),
    "what a program notes in an exception": (
        """
        def run(call):
            try: return call()
            except Exception as error:
                error.status += 1
                error._seen = True
                error.add_note("in run")
                assert error._seen and str(error) == f"HTTP {error.status}"
                raise
        """,
        "def run(call): return call()",
        f"""
        import pytest
        from solution import run
        {_HTTP_ERROR}
        def test():
            with pytest.raises(HttpError) as caught: run(fails(1, HttpError(500)))
            assert caught.value.status == 501
        """,
    ),
    "an attribute of an exception of Python's own": (
        """
        def code(call):
            try: call()
            except ValueError as error: return error.code
        """,
        "def code(call): return None",
        """
        from solution import code
        def test():
            def call():
                error = ValueError("x")
                error.code = 4
                raise error
            assert code(call) == 4
        """,
    ),
}


def pairs() -> dict[str, tuple[str, str, str]]:
    """Return by name a right program, a faulty one, and their file of tests."""
    return {
        name: (dedent(right).strip(), dedent(faulty).strip(), dedent(code).strip())
        for name, (right, faulty, code) in _CASES.items()
    }
