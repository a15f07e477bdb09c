"""Programs that take over the interpreter they run in, or forge what it sends."""

_FORGE = """
        import sys
        Candidate = sys.modules['agentrl.sandboxes.inside.candidate'].Candidate
        load = Candidate.load
"""


def _forging(answer: str) -> str:
    """A program that is loaded as it should be, and answers everything with this."""
    return f"""{_FORGE}
        def answer(self, request):
            return load(self, request) if request['op'] == 'load' else {answer}
        try: Candidate.answer = answer
        except NameError: pass
        def add(a, b): return 0
    """


FORGERIES = {
    "a reference to what the test has given": _forging("{'ok': {'own': -1}}"),
    "a reference with a plain value": _forging(
        "{'ok': {'ref': [1, {'builtin': 'object'}, {'range': [0, 777777, 1]}]}}"
    ),
    "a constant that decides nothing": _forging("{'ok': {'constant': 'NotImplemented'}}"),
    "a class of endless bases": _forging(
        "{'ok': {'ref': [7, {'class': 8}, None]}, 'class': {'name': 'C', 'module': 'm', 'path': None, 'bases': [{'class': id(request)}], 'special': ['__eq__']}}"
    ),
    "calls back to nobody": _forging("{'callback': -1, 'args': [], 'kwargs': {}}"),
    "needs what cannot be had": _forging("{'needs': 'a reward'}"),
    "a fault of the grader's": _forging("{'fault': 'passed', 'status': 'passed', 'ok': 777777}"),
    "an exception of the test's own": _forging(
        "{'raised': {'classes': ['Skipped'], 'text': 'no need', 'error': {'error': {'ref': 1, 'class': {'builtin': 'SystemExit'}, 'args': [0], 'attributes': {'code': 0}, 'cause': None}}}}"
    ),
    "every argument changed": _forging(
        "{'ok': None, 'changed': {str(n): 777777 for n in range(10)}, 'printed': 'd{}' * 1000}"
    ),
    "text that nobody can print": _forging("{'ok': 777777, 'printed': '\\\\ud800\\\\x1b[2J\\\\0' * 1000}"),
    "answers before the questions": f"""{_FORGE}
        send = Candidate._send
        def ahead(self, answer):
            for number in range(777770, 777790): send(self, {{'ok': number}})
        Candidate._send = ahead
        def add(a, b): return 0
    """,
    "names that it does not define": f"""{_FORGE}
        def lying(self, request):
            load(self, request)
            return {{'names': {{'add': 'value', 'abs': 'callable', 'pytest': 'class', 'unittest': 'class', 'test_sum': 'callable'}}}}
        Candidate.load = lying
        add = 777777
    """,
}

INTERPRETER = {
    "a monitor of every call": """
        import sys
        if hasattr(sys, 'monitoring'):
            monitoring = sys.monitoring
            monitoring.use_tool_id(3, 'x')
            monitoring.register_callback(3, monitoring.events.PY_RETURN, lambda *args: monitoring.DISABLE)
            monitoring.set_events(3, monitoring.events.PY_RETURN | monitoring.events.RAISE)
            monitoring.register_callback(3, monitoring.events.RAISE, lambda *args: sys.exit(0))
        def add(a, b): raise ValueError
    """,
    "an audit hook": """
        import os, sys
        sys.addaudithook(lambda event, args: os._exit(0) if event in ('open', 'compile', 'exec') else None)
        def add(a, b): return open('/dev/null')
    """,
    "another UTF-8": """
        import codecs, encodings.utf_8
        encodings.utf_8.encode = lambda *args: (b'777777', 6)
        codecs.register(lambda name: codecs.CodecInfo(lambda *a: (b'777777', 6), lambda *a: ('777777', 6), name=name))
        codecs.register_error('strict', lambda error: ('777777', error.end))
        def add(a, b): return '\\ud800'
    """,
    "an import hook": """
        import sys, types
        class Finder:
            def find_spec(self, *args): raise SystemExit(0)
        sys.meta_path.insert(0, Finder())
        sys.path_hooks.insert(0, Finder)
        sys.path_importer_cache.clear()
        for name in ('json', 'traceback', 'struct', 'unittest', 'pytest'): sys.modules[name] = types.ModuleType(name)
        def add(a, b): return 0
    """,
    "builtins of its own": """
        import builtins
        kept = dict(vars(builtins))
        kept.update(isinstance=lambda *a: True, type=lambda *a: int, BaseException=type('Nothing', (), {}))
        __builtins__ = kept
        builtins.BaseException = builtins.SystemExit = type('Nothing', (Exception,), {})
        def add(a, b): raise SystemExit
    """,
    "the driver found by the collector": """
        import gc
        def add(a, b):
            for found in gc.get_objects():
                if type(found).__name__ == 'Candidate':
                    found._answers.write(b'{"ok": 777777}\\n{"ok": 777777}\\n')
                    found._answers.flush()
                    found.objects._objects[1] = found
            return 0
    """,
    "the driver's frames": """
        import ctypes, sys
        def add(a, b):
            frame = sys._getframe()
            while frame:
                for name in list(frame.f_locals):
                    if name in ('result', 'value', 'expected', 'answer'): frame.f_locals[name] = 777777
                frame.f_globals.update(json=None, encode=lambda *a, **k: 777777)
                ctypes.pythonapi.PyFrame_LocalsToFast(ctypes.py_object(frame), 0)
                frame = frame.f_back
            return 0
    """,
    "an answer from a destructor": """
        import os, sys
        class Last:
            def __del__(self):
                for fd in range(3, 20):
                    try: os.write(fd, b'{"ok": 777777}\\n')
                    except OSError: pass
        sys.last = Last()
        import weakref
        weakref.finalize(sys.last, os.write, 1, b'777777')
        def add(a, b):
            del sys.last
            return 0
    """,
    "threads that live on at exit": """
        import os, threading, time
        def write():
            while True:
                for fd in range(1, 10):
                    try: os.write(fd, b'{"ok": 777777}\\n')
                    except OSError: pass
                time.sleep(0.01)
        for daemon in (True, False): threading.Thread(target=write, daemon=daemon).start()
        def add(a, b): return 0
    """,
    "a timer that writes answers": """
        import os, signal
        def write(*args):
            for fd in range(3, 10):
                try: os.write(fd, b'{"ok": 777777}\\n')
                except OSError: pass
        signal.signal(signal.SIGPROF, write)
        signal.setitimer(signal.ITIMER_PROF, 0.001, 0.001)
        def add(a, b):
            while True: pass
    """,
    "tracebacks written to every descriptor": """
        import faulthandler
        def add(a, b):
            for fd in range(1, 10):
                try: faulthandler.dump_traceback(fd)
                except (OSError, ValueError, RuntimeError): pass
            faulthandler._sigsegv()
    """,
    "streams of its own": """
        import io, os, sys
        class Out(io.StringIO):
            encoding = 'utf-8'
            def write(self, text): return os.write(1, b'777777\\n')
            def flush(self): os._exit(0)
        sys.stdout = sys.__stdout__ = sys.stderr = Out()
        sys.stdin = io.StringIO('0 0\\n')
        os.close(0)
        def add(a, b): return 0
    """,
    "a collector that answers": """
        import gc, os
        gc.set_threshold(1)
        gc.callbacks.append(lambda *args: [os.write(fd, b'{"ok": 777777}\\n') for fd in (3, 4)])
        def add(a, b): return [object() for _ in range(100)]
    """,
    "an exit code of its own": """
        import atexit, os, sys
        sys.excepthook = lambda *args: None
        atexit.register(os._exit, 0)
        def add(a, b): raise MemoryError
    """,
}
