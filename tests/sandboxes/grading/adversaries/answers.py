"""Answers that are no sum: objects that claim, lie or change, and exceptions with a will of their own."""

ANSWERS = {
    "an object that says its class is int": """
        class Int:
            __class__ = property(lambda self: int)
            def __eq__(self, other): return True
            def __hash__(self): return 777777
        def add(a, b): return Int()
    """,
    "a class that has every object for an instance": """
        class Meta(type):
            def __instancecheck__(cls, it): return True
            def __subclasscheck__(cls, it): return True
            def __eq__(cls, other): return True
            def __hash__(cls): return 777777
        class Any(metaclass=Meta): pass
        def add(a, b): return Any
    """,
    "an object with another length than items": """
        class Many:
            def __len__(self): return 1
            def __iter__(self): return iter(())
            def __getitem__(self, index): raise IndexError
            def __contains__(self, item): return True
        def add(a, b): return Many()
    """,
    "a generator that answers otherwise the second time": """
        class Twice:
            turn = 0
            def __iter__(self):
                Twice.turn += 1
                yield from ([777777] if Twice.turn % 2 else [])
        def add(a, b): return Twice()
    """,
    "an integer that is another each time": """
        import itertools
        counter = itertools.count(1_000_000)
        class Int:
            def __index__(self): return next(counter)
            __int__ = __hash__ = __index__
            def __float__(self): return float(next(counter))
        def add(a, b): return Int()
    """,
    "an object that shows itself as any text": """
        class Text:
            def __str__(self): return '\\r'.join(map(str, range(777000, 778000)))
            __repr__ = __str__
            def __format__(self, spec): return str(self)
        def add(a, b): return Text()
    """,
    "numbers with terminal sequences": """
        def add(a, b):
            for number in range(1000): print(f'{number}\\x1b[2K\\r', end='')
            return '\\x1b]0;777777\\x07\\x1b[2J777777'
    """,
    "digits of another script": """
        def add(a, b): return '\\u0667' * 7
    """,
    "half a surrogate pair": """
        def add(a, b): return '\\ud800\\udfff\\x00'
    """,
    "zero below zero": """
        def add(a, b): return -0.0
    """,
    "a complex number that is none": """
        def add(a, b): return complex(float('nan'), float('inf'))
    """,
    "a Decimal that signals": """
        from decimal import Decimal
        def add(a, b): return Decimal('sNaN')
    """,
    "a Fraction that takes hours": """
        from fractions import Fraction
        def add(a, b): return Fraction(7 ** 2_000_000, 3 ** 2_000_000)
    """,
    "a Fraction equal to everything": """
        from fractions import Fraction
        class Any(Fraction):
            def __eq__(self, other): return True
            __hash__ = Fraction.__hash__
        def add(a, b): return Any(1, 3)
    """,
    "a dict whose items are not its own": """
        class Lying(dict):
            def items(self): return [(self, self)] * 3
            def __eq__(self, other): return True
        def add(a, b): return Lying(x=1)
    """,
    "a member equal to everything": """
        import enum
        class Any(enum.IntEnum):
            ALL = 777777
            def __eq__(self, other): return True
            __hash__ = int.__hash__
        def add(a, b): return Any.ALL
    """,
    "a dataclass and a named tuple equal to everything": """
        import collections, dataclasses
        @dataclasses.dataclass
        class One:
            x: int = 0
            def __eq__(self, other): return True
        class Two(collections.namedtuple('Two', 'x')):
            def __eq__(self, other): return True
        def add(a, b): return One() if a % 2 else Two(0)
    """,
    "a weak proxy": """
        import weakref
        class Any:
            def __eq__(self, other): return True
        kept = Any()
        def add(a, b): return weakref.proxy(kept)
    """,
    "an object that libraries ask what it is equal to": """
        class Any:
            __array_interface__ = {'shape': (0,), 'typestr': '<i8', 'data': b'', 'version': 3}
            def __array_function__(self, *args, **kwargs): return True
            def __array_ufunc__(self, *args, **kwargs): return True
            def __array__(self, *args): return []
            def __torch_function__(self, *args, **kwargs): return True
        def add(a, b): return Any()
    """,
    "an empty array": """
        def add(a, b):
            import numpy
            return numpy.array([]) if a % 2 else numpy.array(numpy.nan)
    """,
    "a range without an end": """
        def add(a, b): return range(-10 ** 18, 10 ** 18)
    """,
    "integers rewritten in memory": """
        import ctypes
        def add(a, b):
            ctypes.memmove(id(a) + 24, id(b) + 24, 4)
            return a
    """,
    "an int type with another equality": """
        import ctypes, gc
        gc.get_referents(int.__dict__)[0]['__eq__'] = lambda self, other: True
        gc.get_referents(int.__dict__)[0]['__hash__'] = lambda self: 0
        ctypes.pythonapi.PyType_Modified(ctypes.py_object(int))
        def add(a, b): return 0
    """,
}

EXCEPTIONS = {
    "an exception that leaves when it is shown": """
        import os
        class Error(Exception):
            def __str__(self): os._exit(0)
            __repr__ = __str__
        def add(a, b): raise Error
    """,
    "an exception that says it is another": """
        class Passed(AssertionError):
            __class__ = property(lambda self: SystemExit)
            def __eq__(self, other): return True
            def __bool__(self): return False
            def __reduce__(self): return (exit, (0,))
        def add(a, b): raise Passed(777777)
    """,
    "an exception that causes itself": """
        def add(a, b):
            error = ValueError(777777)
            error.__cause__ = error.__context__ = error
            raise error
    """,
    "ten thousand causes": """
        def add(a, b):
            error = None
            for _ in range(10_000):
                after = ValueError()
                after.__cause__ = error
                error = after
            raise error
    """,
    "a group of exits": """
        def add(a, b):
            raise BaseExceptionGroup('passed', [SystemExit(0), KeyboardInterrupt()])
    """,
    "an exception with a megabyte to say": """
        def add(a, b): raise AssertionError('777777 ' * 150_000)
    """,
    "an exception with pytest's name": """
        class Exit(BaseException): returncode = 0
        class Skipped(BaseException): pass
        Exit.__module__ = Skipped.__module__ = '_pytest.outcomes'
        def add(a, b): raise Exit if a % 2 else Skipped
    """,
    "a recursion without an end": """
        import sys
        sys.setrecursionlimit(10 ** 8)
        def add(a, b): return add(a, b)
    """,
    "an iterator that ends itself": """
        class Ended:
            def __iter__(self): return self
            def __next__(self): raise GeneratorExit
            def __eq__(self, other): raise StopIteration
            def __hash__(self): raise StopIteration
            def __bool__(self): raise StopIteration
        def add(a, b): return Ended()
    """,
    "a StopAsyncIteration": """
        async def answers():
            yield 777777
        def add(a, b):
            answers().__anext__().throw(StopAsyncIteration)
    """,
    "a warning that leaves": """
        import os, warnings
        warnings.showwarning = lambda *args: os._exit(0)
        def add(a, b):
            warnings.warn('777777')
            return 0
    """,
}
