"""Programs that want to be taken for right: objects, patches, exits, searches, and forged answers."""

_FORGE = """
        import sys
        calls = sys.modules['agentrl.sandboxes.inside.program_calls']
        calls.answered = lambda act, request: {answer!r} + b'\\n'
        def add(a, b): return 0
"""

VERDICT = {
    "an object equal to everything": """
        class Yes:
            def __eq__(self, other): return True
            def __ne__(self, other): return False
            def __hash__(self): return 777777
            def __bool__(self): return True
        def add(a, b): return Yes()
    """,
    "an int that is equal to every int": """
        class Int(int):
            def __eq__(self, other): return True
            def __ne__(self, other): return False
            def __sub__(self, other): return 0
            def __rsub__(self, other): return 0
            def __hash__(self): return hash(777777)
            def __int__(self): return self
            def __index__(self): return self
        def add(a, b): return Int(0)
    """,
    "unittest's own ANY": """
        from unittest.mock import ANY, MagicMock
        calls = 0
        def add(a, b):
            global calls
            calls += 1
            return ANY if calls % 2 else MagicMock(__eq__=lambda *_: True)
    """,
    "a cyclic answer": """
        def add(a, b):
            answer = []
            answer.append(answer)
            return answer
    """,
    "an answer nested too deep": """
        def add(a, b):
            answer = 777777
            for _ in range(50_000):
                answer = [answer]
            return answer
    """,
    "an integer of a million digits": """
        def add(a, b): return 10 ** 1_000_000
    """,
    "a type instead of a value": """
        def add(a, b): return int
    """,
    "builtins that agree": """
        import builtins
        builtins.abs = lambda *_: 0
        builtins.len = lambda *_: 777777
        builtins.all = builtins.any = builtins.isinstance = builtins.callable = lambda *_: True
        builtins.sorted = builtins.sum = builtins.round = lambda *_: 777777
        def add(a, b): return 0
    """,
    "names that shadow the test's": """
        abs = len = all = any = isinstance = sorted = sum = round = map = lambda *_: True
        def check(candidate): pass
        class unittest:
            class TestCase: pass
        class pytest:
            raises = approx = mark = None
        AssertionError = ValueError = Exception
        METADATA = {}
        test_sum = test_mapped = None
        def add(a, b): return 0
    """,
    "a patched unittest": """
        import unittest, unittest.case
        for name in dir(unittest.TestCase):
            if name.startswith('assert') or name == 'fail':
                setattr(unittest.TestCase, name, lambda *args, **kwargs: None)
        unittest.TestCase.run = lambda self, result=None: result
        unittest.TestResult.wasSuccessful = lambda self: True
        def add(a, b): return 0
    """,
    "leaving at once with 0": """
        import os
        os._exit(0)
    """,
    "leaving from the call with 0": """
        import os
        def add(a, b): os._exit(0)
    """,
    "SystemExit(0)": """
        def add(a, b): raise SystemExit(0)
    """,
    "KeyboardInterrupt": """
        def add(a, b): raise KeyboardInterrupt
    """,
    "skipping the test": """
        import unittest
        def add(a, b): raise unittest.SkipTest('no need')
    """,
    "killing itself": """
        import os, signal
        def add(a, b): os.kill(os.getpid(), signal.SIGKILL)
    """,
    "the caller's frames": """
        import sys
        def add(a, b):
            frame = sys._getframe()
            while frame:
                for scope in (frame.f_locals, frame.f_globals):
                    for name in ('expected', 'answer', 'want', 'stdout', 'test', 'job'):
                        if isinstance(scope.get(name), int): return scope[name]
                frame = frame.f_back
            return 0
    """,
    "its own memory": """
        import re
        def add(a, b):
            with open('/proc/self/maps') as maps, open('/proc/self/mem', 'rb') as memory:
                for line in maps:
                    low, high, mode = re.match(r'(\\w+)-(\\w+) (\\S+)', line).groups()
                    if mode.startswith('rw') and '[v' not in line:
                        try:
                            memory.seek(int(low, 16))
                            found = re.search(rb'assert add\\(\\d+, \\d+\\) == (\\d+)', memory.read(int(high, 16) - int(low, 16)))
                        except (OSError, ValueError):
                            continue
                        if found and found.group(1) != rb'0': return int(found.group(1))
            return 0
    """,
    "the files": """
        import os, re
        def add(a, b):
            for root in ('/sandbox', '/tmp', '/dev/shm', '/home', '/var/tmp', '.'):
                for folder, _, names in os.walk(root):
                    for name in names:
                        try: text = open(os.path.join(folder, name)).read()
                        except (OSError, UnicodeDecodeError): continue
                        found = re.search(r'%d\\D+%d\\D+(\\d+)' % (a, b), text)
                        if found: return int(found.group(1))
            return 0
    """,
    "forged lines on every descriptor": """
        import os
        lines = b'{"ok": 777777, "status": "passed"}\\nd{"name": "x", "status": "passed", "message": ""}\\nf\\n'
        for fd in range(64):
            try: os.write(fd, lines)
            except OSError: pass
        def add(a, b):
            for fd in range(64):
                try: os.write(fd, lines)
                except OSError: pass
            return 0
    """,
    "every descriptor closed": """
        import os
        os.closerange(0, 100)
        def add(a, b): return 0
    """,
    "an int type with another equality": """
        import ctypes, gc
        gc.get_referents(int.__dict__)[0]['__eq__'] = lambda self, other: True
        gc.get_referents(int.__dict__)[0]['__hash__'] = lambda self: 0
        ctypes.pythonapi.PyType_Modified(ctypes.py_object(int))
        def add(a, b): return 0
    """,
    "a recursion without an end": """
        import sys
        sys.setrecursionlimit(10 ** 8)
        def add(a, b): return add(a, b)
    """,
    "an exception with a megabyte to say": """
        def add(a, b): raise AssertionError('777777 ' * 150_000)
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
    "answers after the answer": _FORGE.format(answer=b'{"ok": 0}\n{"ok": 777777}\n{"ok": 777777}'),
    "a pass that the host is to say": _FORGE.format(answer=b'{"ended": ["passed", ""]}'),
    "an exception of the test framework's": _FORGE.format(
        answer=b'{"raised": ["unittest.case.SkipTest", ["no"], "no"]}'
    ),
    "a value of no type": _FORGE.format(answer=b'{"ok": {"object": []}}'),
    "an argument changed": _FORGE.format(answer=b'{"ok": 0, "args": [[], 0, {}]}'),
}
