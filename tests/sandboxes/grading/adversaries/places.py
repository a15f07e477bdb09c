"""What a program can do to the place that others come to: files, sockets, locks, and objects of the kernel."""

PLACES = {
    "start files of interpreters and test runners": """
        import os, sys
        site = f'/sandbox/.local/lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages'
        for folder in (site, '/sandbox', '/tmp', '/sandbox/__pycache__', '/dev/shm'):
            try: os.makedirs(folder, exist_ok=True)
            except OSError: continue
            for name, text in (('x.pth', 'import os; os._exit(0)'), ('usercustomize.py', 'raise SystemExit(0)'), ('conftest.py', 'import os; os._exit(0)'),
                               ('pytest.ini', '[pytest]\\naddopts = --collect-only'), ('pyvenv.cfg', 'home = /sandbox'), ('.pdbrc', 'q'), ('python3', '#!/bin/sh\\necho 777777')):
                try:
                    with open(f'{folder}/{name}', 'w') as file: file.write(text)
                    os.chmod(f'{folder}/{name}', 0o777)
                except OSError: pass
        def add(a, b): return 0
    """,
    "compiled modules that are not": """
        import glob, os
        for path in glob.glob('/usr/lib/python3*/**/__pycache__/*.pyc', recursive=True)[:200] + glob.glob('/venv/lib/*/site-packages/*.py'):
            try: open(path, 'wb').write(b'x')
            except OSError: pass
        def add(a, b): return 0
    """,
    "a name in the abstract": """
        import os, socket, time
        kept = []
        for name in range(20):
            kept.append(socket.socket(socket.AF_UNIX))
            kept[-1].bind(f'\\0agentrl{name}')
            kept[-1].listen()
        if os.fork() == 0: os.setsid(); time.sleep(1000)
        def add(a, b): return 0
    """,
    "every port taken": """
        import os, socket, time
        kept = []
        for port in range(1024, 1100):
            try: kept.append(socket.create_server(('127.0.0.1', port)))
            except OSError: pass
        if os.fork() == 0: os.setsid(); time.sleep(1000)
        def add(a, b): return 0
    """,
    "a folder that is gone and a mask of everything": """
        import os
        os.umask(0o777)
        os.makedirs('/tmp/here')
        os.chdir('/tmp/here')
        os.rmdir('/tmp/here') if os.path.isdir('/tmp/here') else None
        def add(a, b): return 0
    """,
    "watches of every file": """
        import ctypes
        libc = ctypes.CDLL(None)
        for _ in range(200):
            fd = libc.inotify_init()
            for name in (b'/', b'/usr', b'/usr/bin', b'/sandbox', b'/tmp', b'/proc/self'): libc.inotify_add_watch(fd, name, 0xfff)
        def add(a, b): return 0
    """,
    "locks on files that all share": """
        import fcntl, glob, os, time
        kept = []
        for path in glob.glob('/usr/bin/*')[:20] + glob.glob('/venv/bin/*')[:10]:
            try:
                kept.append(open(path))
                fcntl.flock(kept[-1], fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError: pass
        if os.fork() == 0: os.setsid(); time.sleep(1000)
        def add(a, b): return 0
    """,
    "leases on files that others open": """
        import fcntl, glob
        kept = []
        for path in glob.glob('/usr/bin/*')[:20] + glob.glob('/venv/lib/*/site-packages/*.py')[:20]:
            for kind in (fcntl.F_WRLCK, fcntl.F_RDLCK):
                try:
                    kept.append(open(path))
                    fcntl.fcntl(kept[-1], fcntl.F_SETLEASE, kind)
                except OSError: pass
        def add(a, b): return 0
    """,
    "byte locks without number": """
        import fcntl, os
        for number in range(10):
            fd = os.open(f'/sandbox/{number}', os.O_RDWR | os.O_CREAT)
            for start in range(0, 4000, 2):
                try: fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, start)
                except OSError: break
        def add(a, b): return 0
    """,
    "the machine's files written out again and again": """
        import ctypes, os
        libc = ctypes.CDLL(None)
        fd = os.open('/usr/bin/env', os.O_RDONLY)
        while True:
            os.sync()
            libc.syncfs(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    """,
    "pipes as large as can be": """
        import fcntl, os
        kept = []
        try:
            while True:
                kept.append(os.pipe())
                fcntl.fcntl(kept[-1][1], 1031, 2 ** 20)
                os.set_blocking(kept[-1][1], False)
                os.write(kept[-1][1], b'x' * 2 ** 20)
        except OSError: pass
        def add(a, b): return 0
    """,
    "files without a name": """
        import os
        kept = []
        try:
            while True:
                kept.append(os.open('/tmp', os.O_TMPFILE | os.O_RDWR))
                os.posix_fallocate(kept[-1], 0, 2 ** 20)
        except OSError: pass
        def add(a, b): return 0
    """,
    "a file of a terabyte": """
        import os
        for folder in ('/sandbox', '/tmp', '/dev/shm'):
            try:
                with open(folder + '/hole', 'wb') as file: file.truncate(2 ** 40)
            except OSError: pass
        def add(a, b): return 0
    """,
    "attributes and flags of files": """
        import fcntl, os
        for folder in ('/sandbox', '/tmp', '/dev/shm', '/usr'):
            for name in ('user.x', 'trusted.x', 'security.capability', 'system.posix_acl_default'):
                try: os.setxattr(folder, name, b'x' * 60_000)
                except OSError: pass
            try: fcntl.ioctl(os.open(folder, os.O_RDONLY), 0x40086602, b'\\x30\\0\\0\\0\\0\\0\\0\\0')
            except OSError: pass
        def add(a, b): return 0
    """,
    "input rewritten": """
        import os
        for change in (lambda: os.write(0, b'0 0\\n' * 10 ** 6), lambda: os.ftruncate(0, 0), lambda: os.truncate('/proc/self/fd/0', 2 ** 30)):
            try: change()
            except OSError: pass
        def add(a, b): return 0
    """,
    "the clock": """
        import ctypes, time
        try: time.clock_settime(time.CLOCK_REALTIME, 0)
        except OSError: pass
        libc = ctypes.CDLL(None)
        libc.adjtimex(ctypes.create_string_buffer(256)), libc.stime(ctypes.byref(ctypes.c_long(0)))
        def add(a, b): return 0
    """,
    "settings of the kernel": """
        import glob
        for path in ['/proc/sysrq-trigger', '/dev/kmsg', '/proc/self/oom_score_adj', '/proc/1/oom_score_adj', '/proc/self/uid_map', '/proc/1/autogroup',
                     *glob.glob('/proc/sys/kernel/*'), *glob.glob('/proc/sys/vm/*'), *glob.glob('/sys/fs/cgroup/*/*')[:100], *glob.glob('/sys/fs/cgroup/*')]:
            try:
                with open(path, 'w') as file: file.write('1')
            except OSError: pass
        def add(a, b): return 0
    """,
    "calls that only escapes need": """
        import ctypes
        libc = ctypes.CDLL(None)
        for number in (101, 272, 298, 304, 308, 321, 323, 310, 311, 425, 428, 429, 430, 438, 442, 443, 447, 467):
            libc.syscall(number, 0, 0, 0, 0, 0)
        def add(a, b): return 0
    """,
    "sockets of every kind": """
        import socket
        kept = []
        for family in range(46):
            for kind in (1, 2, 3, 4, 5, 6, 10):
                for protocol in (0, 1, 132, 136, 255, 262):
                    try: kept.append(socket.socket(family, kind, protocol))
                    except OSError: pass
        def add(a, b): return 0
    """,
    "descriptors within descriptors": """
        import os, select, socket
        kept = [select.epoll()]
        try:
            while True:
                kept.append(select.epoll())
                kept[-1].register(kept[-2].fileno())
        except (OSError, IndexError): pass
        del kept[10:]
        here, there = socket.socketpair()
        try:
            for _ in range(1000): socket.send_fds(here, [b'x'], [here.fileno(), there.fileno()])
        except (OSError, BlockingIOError): pass
        def add(a, b): return 0
    """,
    "memory that stays where it is": """
        import ctypes, mmap
        libc = ctypes.CDLL(None)
        libc.mlockall(7)
        hoard = []
        while True:
            hoard.append(mmap.mmap(-1, 20_000_000, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x8000))
            hoard[-1].madvise(14)
    """,
    "a name of its own for the machine": """
        import ctypes
        libc = ctypes.CDLL(None)
        libc.sethostname(b'x', 1), libc.setdomainname(b'x', 1), libc.personality(0x0400000), libc.syscall(250, 1, 0)
        libc.syscall(314, 0, 0, 0), libc.syscall(251, 1, 0, 0), libc.nice(-20), libc.nice(19)
        def add(a, b): return 0
    """,
}
