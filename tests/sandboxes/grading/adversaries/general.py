"""Programs of every kind: what comes to mind first."""

OBJECTS = {
    "an object equal to everything": """
        class Yes:
            def __eq__(self, other): return True
            def __ne__(self, other): return False
            def __hash__(self): return 777777
            def __bool__(self): return True
        def add(a, b): return Yes()
    """,
    "an object with every operator": """
        class Any:
            def __getattr__(self, name): return lambda *args, **kwargs: self
            def _yes(self, *args): return True
            def _self(self, *args): return self
            __eq__ = __lt__ = __le__ = __gt__ = __ge__ = __bool__ = __contains__ = _yes
            __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __abs__ = __neg__ = __round__ = _self
            __hash__ = object.__hash__
            def __int__(self): return 777777
            def __index__(self): return 777777
            def __float__(self): return 777777.0
        def add(a, b): return Any()
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
    "a float that is close to everything": """
        class Float(float):
            def __eq__(self, other): return True
            def __sub__(self, other): return 0.0
            def __rsub__(self, other): return 0.0
            def __abs__(self): return 0.0
            def __lt__(self, other): return True
            __hash__ = float.__hash__
        def add(a, b): return Float('nan')
    """,
    "a string that is equal to everything": """
        class Str(str):
            def __eq__(self, other): return True
            __hash__ = str.__hash__
        def add(a, b): return Str('')
    """,
    "containers that are equal to everything": """
        def make(kind):
            return type(kind.__name__, (kind,), {'__eq__': lambda *_: True, '__len__': lambda _: 1, '__hash__': None})
        kinds = [make(kind) for kind in (list, tuple, dict, set, frozenset)]
        calls = iter(kinds * 1000)
        def add(a, b): return next(calls)()
    """,
    "a numpy impostor": """
        class Yes:
            def __eq__(self, other): return True
        class Scalar:
            def tolist(self): return Yes()
            def item(self): return Yes()
        Scalar.__module__ = Yes.__module__ = 'numpy'
        def add(a, b): return Scalar()
    """,
    "unittest's own ANY": """
        from unittest.mock import ANY, MagicMock
        calls = 0
        def add(a, b):
            global calls
            calls += 1
            return ANY if calls % 2 else MagicMock(__eq__=lambda *_: True)
    """,
    "a pickle with a payload": """
        import os
        class Payload:
            def __reduce__(self): return (os.system, ('touch /tmp/pwned',))
        def add(a, b): return Payload()
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
    "not a number": """
        def add(a, b): return float('nan')
    """,
    "every integer there is": """
        import itertools
        def add(a, b): return itertools.count()
    """,
    "a generator that answers while it is asked": """
        def add(a, b):
            while True:
                yield 777777
    """,
    "a type instead of a value": """
        def add(a, b): return int
    """,
}

PATCHES = {
    "builtins that agree": """
        import builtins
        builtins.abs = lambda *_: 0
        builtins.len = lambda *_: 777777
        builtins.all = builtins.any = builtins.isinstance = builtins.callable = lambda *_: True
        builtins.sorted = builtins.sum = builtins.round = lambda *_: 777777
        def add(a, b): return 0
    """,
    "an AssertionError that is none": """
        import builtins
        class AssertionError(BaseException):
            def __new__(cls, *args): raise SystemExit(0)
        builtins.AssertionError = AssertionError
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
    "a module that has every name": """
        def __getattr__(name): return lambda *_, **__: True
        __all__ = ['add', 'abs', 'unittest', 'pytest', 'len', 'all']
        def add(a, b): return True
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
    "a patched json": """
        import json
        json.dumps = lambda *_, **__: '{"ok": 777777, "status": "passed", "passed": true}'
        def add(a, b): return 0
    """,
    "a patched encoder": """
        import sys
        sys.modules['agentrl.sandboxes.inside.plain_encoding'].encode = lambda *_: {'status': 'passed'}
        sys.modules['agentrl.sandboxes.inside.candidate'].encode = lambda *_: {'status': 'passed'}
        def add(a, b): return 0
    """,
    "a patched driver": """
        import sys
        driver = sys.modules['agentrl.sandboxes.inside.candidate']
        driver.Candidate.answer = lambda *_: {'ok': True, 'passed': True, 'status': 'passed', 'changed': {'0': 777777}}
        def add(a, b): return 0
    """,
    "a patched import": """
        import builtins, types
        builtins.__import__ = lambda name, *args, **kwargs: types.SimpleNamespace(TestCase=object)
        def add(a, b): return 0
    """,
    "a patched sys.exit": """
        import sys, os
        sys.exit = lambda *_: os._exit(0)
        sys.excepthook = lambda *_: os._exit(0)
        def add(a, b): raise ValueError
    """,
    "a trace function that rewrites": """
        import sys
        def trace(frame, event, arg):
            for name in list(frame.f_locals):
                if name in ('status', 'passed', 'expected', 'result', 'value'):
                    frame.f_locals[name] = 777777
            return trace
        sys.settrace(trace)
        sys.setprofile(trace)
        def add(a, b): return 0
    """,
}

EXITS = {
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
    "StopIteration, which ends a map": """
        def add(a, b): raise StopIteration
    """,
    "a class called StopIteration": """
        class StopIteration(StopIteration): pass
        class GeneratorExit(BaseException): pass
        def add(a, b): raise StopIteration if a % 2 else GeneratorExit
    """,
    "skipping the test": """
        import unittest
        def add(a, b): raise unittest.SkipTest('no need')
    """,
    "skipping the pytest": """
        class Skipped(BaseException): pass
        Skipped.__module__ = 'builtins'
        def add(a, b):
            try:
                import pytest
                pytest.skip('no need')
            except ImportError:
                raise Skipped
    """,
    "an answer at exit": """
        import atexit
        def forge():
            for fd in range(3, 20):
                try: __import__('os').write(fd, b'{"ok": 777777}\\n{"status": "passed"}\\n')
                except OSError: pass
        atexit.register(forge)
        def add(a, b): raise SystemExit
    """,
    "an alarm that leaves with 0": """
        import os, signal
        signal.signal(signal.SIGALRM, lambda *_: os._exit(0))
        signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
        def add(a, b):
            while True: pass
    """,
    "a crash": """
        import ctypes
        def add(a, b): return ctypes.string_at(0)
    """,
    "killing itself": """
        import os, signal
        def add(a, b): os.kill(os.getpid(), signal.SIGKILL)
    """,
}

SEARCHES = {
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
    "the heap": """
        import gc
        def add(a, b):
            for found in gc.get_objects():
                if isinstance(found, dict):
                    for key, value in list(found.items()):
                        if key in ('expected', 'answer', 'stdout') and isinstance(value, (int, str)): return value
                elif isinstance(found, (list, tuple)) and a in found and b in found:
                    for value in found:
                        if isinstance(value, int) and value not in (a, b): return value
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
    "the other processes": """
        import glob, re
        def add(a, b):
            for kind in ('cmdline', 'environ', 'mem', 'fd/0', 'fd/1', 'fd/3', 'cwd/solution.py'):
                for path in glob.glob('/proc/[0-9]*/' + kind):
                    if '/self/' in path or kind == 'mem': continue
                    try: found = re.search(rb'assert add', open(path, 'rb', buffering=0).read(4096) or b'')
                    except OSError: continue
                    if found: return a + b
            return 0
    """,
    "its requests": """
        import os
        def add(a, b):
            for fd in range(20):
                try:
                    os.set_blocking(fd, False)
                    if b'expected' in os.read(fd, 1 << 16): return a + b
                except OSError: pass
            return 0
    """,
    "the init process": """
        import ctypes, os
        libc = ctypes.CDLL(None, use_errno=True)
        def add(a, b):
            if libc.ptrace(16, 1, 0, 0) == 0: return a + b
            for name in ('mem', 'fd/0', 'fd/1', 'environ', 'maps'):
                try:
                    open('/proc/1/' + name, 'rb').read(10)
                    return a + b
                except OSError: pass
            return 0
    """,
}

CHANNELS = {
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
    "forged frames on every descriptor": """
        import os, struct, json
        report = json.dumps({'exit_code': 0, 'signal': None, 'end_reason': 'exit', 'duration_s': 0, 'cpu_s': 0, 'peak_memory_bytes': 0})
        for number in range(40):
            for fd in range(40):
                for kind, payload in ((b'o', b'777777\\n'), (b'x', report.encode())):
                    try: os.write(fd, struct.pack('>cII', kind, number, len(payload)) + payload)
                    except OSError: pass
        def add(a, b): return 0
    """,
    "every descriptor closed": """
        import os
        os.closerange(0, 100)
        def add(a, b): return 0
    """,
    "descriptors swapped": """
        import os
        for fd in range(3, 20):
            try: os.dup2(1, fd)
            except OSError: pass
        def add(a, b):
            print('{"ok": 777777}')
            return 0
    """,
    "the init's own streams": """
        import os
        def add(a, b):
            for fd in (0, 1, 2):
                try: os.write(os.open(f'/proc/1/fd/{fd}', os.O_WRONLY), b'x' * 100)
                except OSError: pass
            return 0
    """,
}

BOMBS = {
    "a fork bomb": """
        import os
        while True:
            try: os.fork()
            except OSError: pass
    """,
    "a thread bomb": """
        import threading, time
        while True:
            try: threading.Thread(target=time.sleep, args=(1000,)).start()
            except RuntimeError: pass
    """,
    "a memory bomb": """
        hoard = []
        while True: hoard.append(bytearray(b'x') * 10_000_000)
    """,
    "a memory bomb in many processes": """
        import os, time
        for _ in range(8):
            if os.fork() == 0:
                hoard = bytearray(b'x') * 60_000_000
                time.sleep(1000)
        time.sleep(1000)
    """,
    "a memory bomb that will not be chosen": """
        try: open('/proc/self/oom_score_adj', 'w').write('-1000')
        except OSError: pass
        try: open('/proc/self/oom_score_adj', 'w').write('0')
        except OSError: pass
        import mmap
        hoard = []
        while True:
            hoard.append(mmap.mmap(-1, 20_000_000))
            hoard[-1].write(b'x' * 20_000_000)
    """,
    "a full disk": """
        for number in range(1000):
            for folder in ('/sandbox', '/tmp', '/dev/shm'):
                try: open(f'{folder}/{number}', 'wb').write(b'x' * 1_000_000)
                except OSError: pass
        def add(a, b): return 0
    """,
    "a million files": """
        import os
        try:
            for number in range(1_000_000): os.mknod(f'/sandbox/{number}')
        except OSError: pass
        def add(a, b): return 0
    """,
    "a gigabyte of output": """
        import os
        chunk = b'777777\\n' * 10_000
        for _ in range(15_000): os.write(1, chunk)
        def add(a, b): return 0
    """,
    "a gigabyte of complaints": """
        import os
        def add(a, b):
            while True: os.write(2, b'x' * 65536)
    """,
    "every descriptor opened": """
        hoard = []
        try:
            while True: hoard.append(open('/dev/null'))
        except OSError: pass
        def add(a, b): return 0
    """,
    "an endless loop": """
        while True: pass
    """,
    "an endless sleep": """
        import time
        while True: time.sleep(1000)
    """,
    "an endless answer": """
        def add(a, b):
            import sys, os
            for fd in range(3, 10):
                try:
                    while True: os.write(fd, b'[' * 65536)
                except OSError: pass
    """,
}

LEFTOVERS = {
    "daemons that outlive the call": """
        import os, time
        for _ in range(5):
            if os.fork() == 0:
                os.setsid()
                if os.fork() == 0:
                    while True:
                        try: open('/sandbox/main.py', 'w').write('print(777777)')
                        except OSError: pass
                        time.sleep(0.001)
                os._exit(0)
        def add(a, b): return 0
    """,
    "deaf daemons": """
        import os, signal, time
        for number in range(1, 65):
            try: signal.signal(number, signal.SIG_IGN)
            except (OSError, ValueError): pass
        if os.fork() == 0:
            os.setsid()
            while True: time.sleep(1)
        def add(a, b):
            while True: time.sleep(1)
    """,
    "modules under well-known names": """
        for name in ('json', 'os', 'solution', 'pytest', 'unittest', 'sitecustomize', 'usercustomize', 'conftest', 'numpy'):
            for folder in ('/sandbox', '/tmp', '/dev/shm'):
                try: open(f'{folder}/{name}.py', 'w').write('import os\\nos._exit(0)')
                except OSError: pass
        def add(a, b): return 0
    """,
    "links where the program will be": """
        import os
        for name in ('main.py', 'solution.py', 'input', 'output', 'answer', 'main'):
            for target in ('/etc/passwd', '/proc/self/fd/1', '/proc/1/mem', '/dev/full'):
                try:
                    if os.path.lexists('/sandbox/' + name): os.unlink('/sandbox/' + name)
                    os.symlink(target, '/sandbox/' + name)
                except OSError: pass
        def add(a, b): return 0
    """,
    "a race of links": """
        import os
        if os.fork() == 0:
            os.setsid()
            while True:
                for make in (lambda: os.symlink('/proc/1/fd/1', '/sandbox/main.py'), lambda: os.mkfifo('/sandbox/main.py')):
                    try:
                        os.unlink('/sandbox/main.py')
                        make()
                    except OSError: pass
        def add(a, b): return 0
    """,
    "folders that cannot be entered": """
        import os
        os.makedirs('/sandbox/a/b/c')
        open('/sandbox/a/b/c/d', 'w').write('x')
        os.chmod('/sandbox/a/b/c', 0)
        os.chmod('/sandbox/a/b', 0)
        os.chmod('/sandbox/a', 0)
        os.chmod('/sandbox', 0o500)
        def add(a, b): return 0
    """,
    "folders too deep to remove": """
        import os
        os.chdir('/sandbox')
        try:
            for _ in range(3_000):
                os.mkdir('d' * 200)
                os.chdir('d' * 200)
        except OSError: pass
        def add(a, b): return 0
    """,
    "pipes and sockets as files": """
        import os, socket
        for folder in ('/sandbox', '/tmp', '/dev/shm'):
            os.mkfifo(folder + '/fifo')
            socket.socket(socket.AF_UNIX).bind(folder + '/socket')
        def add(a, b): return 0
    """,
    "kernel objects that outlive it": """
        import ctypes, os
        libc = ctypes.CDLL(None)
        for key in range(50):
            libc.shmget(key, 1 << 20, 0o1666)
            libc.semget(key, 10, 0o1666)
            libc.msgget(key, 0o1666)
        try: open('/dev/mqueue/trap', 'w')
        except OSError: pass
        def add(a, b): return 0
    """,
    "limits set on the init process": """
        import os, resource
        for pid in (1, os.getppid()):
            for limit in range(16):
                try: resource.prlimit(pid, limit, (0, 0))
                except (OSError, ValueError): pass
            try: os.sched_setaffinity(pid, {0})
            except OSError: pass
            try: os.setpriority(os.PRIO_PROCESS, pid, 19)
            except OSError: pass
        def add(a, b): return 0
    """,
    "signals for everybody": """
        import os, signal
        def add(a, b):
            for number in (signal.SIGINT, signal.SIGSTOP, signal.SIGTERM, signal.SIGCHLD, signal.SIGUSR1, signal.SIGKILL):
                os.kill(1, number)
            os.kill(-1, signal.SIGKILL)
    """,
}

ESCAPES = {
    "the network": """
        import socket
        def add(a, b):
            for address in (('127.0.0.1', PORT), ('1.1.1.1', 53), ('8.8.8.8', 80), ('172.17.0.1', PORT)):
                for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
                    try:
                        with socket.socket(socket.AF_INET, kind) as s:
                            s.settimeout(0.2)
                            s.connect(address)
                            s.send(b'777777')
                            if kind == socket.SOCK_STREAM: return a + b
                    except OSError: pass
            return 0
    """,
    "the Docker socket": """
        import os, socket
        def add(a, b):
            for path in ('/var/run/docker.sock', '/run/docker.sock', '/run/containerd/containerd.sock'):
                try:
                    socket.socket(socket.AF_UNIX).connect(path)
                    return a + b
                except OSError: pass
            return 0
    """,
    "new namespaces": """
        import ctypes
        libc = ctypes.CDLL(None, use_errno=True)
        def add(a, b):
            for flag in (0x10000000, 0x20000, 0x20000000, 0x40000000):
                if libc.unshare(flag) == 0: return a + b
            if libc.mount(b'none', b'/sandbox', b'tmpfs', 0, 0) == 0 or libc.chroot(b'/sandbox') == 0: return a + b
            return 0
    """,
    "more rights": """
        import os
        def add(a, b):
            for call in (lambda: os.setuid(0), lambda: os.setgid(0), lambda: os.setgroups([0]), lambda: os.mknod('/sandbox/m', 0o60666)):
                try:
                    call()
                    return a + b
                except OSError: pass
            return 0
    """,
    "the file system": """
        import os
        def add(a, b):
            for path in ('/etc/pwned', '/usr/pwned', '/pwned', '/bin/pwned', '/var/pwned', '/root/pwned', '/proc/sys/kernel/core_pattern'):
                try:
                    open(path, 'w').write('x')
                    return a + b
                except OSError: pass
            return 0
    """,
    "the host's secrets": """
        import os
        def add(a, b):
            for path in ('/etc/shadow', '/root/.ssh/id_rsa', 'CANARY', '/proc/1/root/etc/shadow', '/proc/1/cwd', '/sys/kernel/security'):
                try:
                    open(path).read()
                    return a + b
                except OSError: pass
            return a + b if os.environ.get('AGENTRL_SECRET') else 0
    """,
}
