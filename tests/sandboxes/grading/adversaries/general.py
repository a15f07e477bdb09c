"""Programs that want more than their share, leave something behind, or want out."""

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
