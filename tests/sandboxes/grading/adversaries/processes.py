"""Processes and threads that hide from whoever counts them, outlive their program, or reach for others."""

PROCESSES = {
    "children too short to be seen": """
        import os, signal
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        while True:
            try:
                if os.fork() == 0: os._exit(0)
            except OSError: pass
    """,
    "children that nobody waits for": """
        import os
        while True:
            try:
                if os.fork() == 0: os._exit(0)
            except OSError: break
        while True: pass
    """,
    "a child of the first process": """
        import ctypes, os, time
        libc = ctypes.CDLL(None)
        if os.uname().machine == 'x86_64' and libc.syscall(56, 0x8000 | 17, 0, 0, 0, 0) == 0:
            time.sleep(0.3)
            os.write(1, b'777777\\n')
            os._exit(0)
        def add(a, b): return 0
    """,
    "a first thread that has ended": """
        import ctypes, os, threading, time
        def hoard():
            time.sleep(0.02)
            kept = [bytearray(b'x') * 50_000_000 for _ in range(7)]
            time.sleep(2)
            os.write(1, b'777777\\n')
            os._exit(0)
        threading.Thread(target=hoard).start()
        ctypes.CDLL(None).syscall(60 if os.uname().machine == 'x86_64' else 93, 0)
    """,
    "signals of descriptors for the first process": """
        import fcntl, os, signal
        ends = os.pipe()
        for fd in ends:
            try:
                fcntl.fcntl(fd, fcntl.F_SETOWN, 1)
                fcntl.fcntl(fd, fcntl.F_SETSIG, signal.SIGKILL)
                fcntl.fcntl(fd, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK)
            except OSError: pass
        for _ in range(1000): os.write(ends[1], b'x')
        def add(a, b): return 0
    """,
    "signals over descriptors of processes": """
        import os, signal
        for pid in (1, os.getppid()):
            try:
                fd = os.pidfd_open(pid)
                signal.pidfd_send_signal(fd, signal.SIGKILL)
            except OSError: pass
        def add(a, b): return 0
    """,
    "a stop of itself": """
        import os, signal
        if os.fork(): os.kill(os.getpid(), signal.SIGSTOP)
        def add(a, b): return 0
    """,
    "memory of its child rewritten": """
        import os, re, time
        secret = b'assert add 777777'
        pid = os.fork()
        if pid == 0: time.sleep(0.2); os._exit(0)
        try:
            with open(f'/proc/{pid}/maps') as maps, open(f'/proc/{pid}/mem', 'r+b', buffering=0) as memory:
                for line in maps:
                    low, high = (int(x, 16) for x in line.split()[0].split('-'))
                    if 'rw' in line:
                        memory.seek(low)
                        memory.write(b'0' * 64)
        except OSError: pass
        def add(a, b): return 0
    """,
    "orphans that it adopts": """
        import ctypes, os, time
        ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)
        for _ in range(5):
            if os.fork() == 0:
                if os.fork() == 0:
                    os.setsid()
                    time.sleep(1000)
                os._exit(0)
        def add(a, b): return 0
    """,
    "processes that cannot be looked at": """
        import ctypes, os, time
        libc = ctypes.CDLL(None)
        for _ in range(6):
            if os.fork() == 0:
                libc.prctl(4, 0, 0, 0, 0)
                kept = bytearray(b'x') * 60_000_000
                time.sleep(1000)
        time.sleep(1000)
    """,
    "itself under another name": """
        import os, sys
        os.execve('/proc/self/exe', ['python3', '-S', '-c', 'print(777777)'], {'PYTHONSTARTUP': '/sandbox/x', 'LD_PRELOAD': '/sandbox/x.so'})
    """,
    "a program written and run": """
        import os
        with open('/tmp/program', 'w') as file: file.write('#!/bin/sh\\nwhile :; do echo 777777; done')
        os.chmod('/tmp/program', 0o6755)
        def add(a, b): os.execv('/tmp/program', ['program'])
    """,
    "a filter of its own": """
        import ctypes, struct
        code = struct.pack('=HBBI', 6, 0, 0, 0x7fff0000)
        class Filter(ctypes.Structure): _fields_ = [('n', ctypes.c_ushort), ('p', ctypes.c_char_p)]
        ctypes.CDLL(None).prctl(22, 2, ctypes.byref(Filter(1, code)), 0, 0)
        ctypes.CDLL(None).prctl(1, 9, 0, 0, 0)
        def add(a, b): return 0
    """,
    "stacks of many threads": """
        import threading, time
        threading.stack_size(60 * 2 ** 20)
        def touch(): kept = bytearray(b'x') * 30_000_000; time.sleep(1000)
        while True:
            try: threading.Thread(target=touch).start()
            except RuntimeError: time.sleep(0.01)
    """,
    "limits of its own": """
        import resource
        for limit in range(16):
            try: resource.setrlimit(limit, (0, 0))
            except (OSError, ValueError): pass
        def add(a, b): return 0
    """,
    "limits raised again": """
        import resource
        for limit in range(16):
            try: resource.setrlimit(limit, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
            except (OSError, ValueError): pass
        hoard = []
        while True: hoard.append(bytearray(b'x') * 10_000_000)
    """,
}
