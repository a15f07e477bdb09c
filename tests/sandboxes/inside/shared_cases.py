"""Programs that differ by nothing but who else has a list that they give, take or keep: one copies it where the other does not."""

from __future__ import annotations


def pairs() -> dict[str, tuple[str, str, str]]:
    """A program that plain Python passes, one that it fails, and the test code, by what the second does."""
    return _PAIRS


def right() -> dict[str, tuple[str, str]]:
    """Programs that plain Python passes, and the test code: a list is reached in two ways, or changed where nobody is told."""
    return _RIGHT


_RIGHT = {
    "a row, by a method and by the grid": (
        "class B:\n def __init__(self): self.g = [[0, 0], [0, 0]]\n def row(self, i): return self.g[i]",
        "b = B()\nr = b.row(0)\nr[0] = 1\nb.g[0][1] = 2\nassert b.g == [[1, 2], [0, 0]]",
    ),
    "an item that was added": (
        "class C:\n def __init__(self): self.items = []\n def add(self, n):\n  i = {'n': n}\n  self.items.append(i)\n  return i",
        "c = C()\na = c.add('x')\nc.items[0]['n'] = 'y'\nassert c.items[0]['n'] == 'y' and a['n'] == 'y'",
    ),
    "a list that has changed unseen": (
        "class School:\n def __init__(self): self.r = {}\n def add(self, n, g): self.r.setdefault(g, []).append(n)\n"
        " def grade(self, g): return self.r.get(g, [])",
        "s = School()\ns.add('a', 1)\nfirst = s.grade(1)\ns.add('b', 1)\nassert s.grade(1) == ['a', 'b']\n"
        "s.r[1].append('c')\nassert s.grade(1) == ['a', 'b', 'c']",
    ),
    "a row that has changed unseen": (
        "class S:\n def __init__(self): self.rows = [[1], [2]]\n def row(self, i): return self.rows[i]\n"
        " def put(self, i, x): self.rows[i].append(x)",
        "s = S()\nrows = s.rows\ns.put(0, 5)\nr = s.row(0)\nr.append(6)\nassert s.rows == [[1, 5, 6], [2]]",
    ),
    "an argument that has changed unseen": (
        "class VM:\n def __init__(self, stock): self.stock = stock\n def buy(self, k):\n  self.stock[k] -= 1\n  return k",
        "stock = {'cola': 1}\nv = VM(stock)\nassert v.buy('cola') == 'cola'\nv.stock['tea'] = 1\nassert v.buy('tea') == 'tea'",
    ),
    "an argument that has new items": (
        "def rotate(m):\n m[:] = [list(r) for r in zip(*m[::-1])]\n return m",
        "assert rotate([[1, 2, 3]]) == [[1], [2], [3]]",
    ),
    "two that swap what they have": (
        "def swap(r): r[0][0], r[1][0] = r[1][0], r[0][0]",
        "top, bottom = [1], [2]\nswap([top, bottom])\nassert top == [2] and bottom == [1]",
    ),
    "a defaultdict with a function": (
        "from collections import defaultdict\ndef tally(words, counts):\n for word in words: counts[word] += 1\n"
        "def table(): return defaultdict(lambda: 'none')",
        "from collections import defaultdict\ncounts = defaultdict(lambda: 10)\ntally('aab', counts)\nassert counts == {'a': 12, 'b': 11}\n"
        "assert counts['c'] == 10\nassert table()['x'] == 'none'",
    ),
    "callbacks that change a list": (
        "def solve(state, moves, apply, undo, done, out):\n if done(state):\n  out.append(list(state))\n  return\n for m in moves(state):\n"
        "  apply(state, m)\n  solve(state, moves, apply, undo, done, out)\n  undo(state, m)",
        "out = []\nsolve([], lambda s: [i for i in range(4) if i not in s], lambda s, m: s.append(m), lambda s, m: s.pop(), lambda s: len(s) == 4, out)\n"
        "assert len(out) == 24 and out[0] == [0, 1, 2, 3] and out[-1] == [3, 2, 1, 0]",
    ),
}

_PAIRS = {
    "shared rows": (
        "def grid(n, m): return [[0]*m for _ in range(n)]",
        "def grid(n, m): return [[0]*m]*n",
        """
g = grid(3,3)
g[0][0] = 1
assert g == [[1,0,0],[0,0,0],[0,0,0]]
""",
    ),
    "generator that yields one list": (
        """
def prefixes(xs):
 row=[]
 for x in xs:
  row.append(x)
  yield list(row)
""",
        """
def prefixes(xs):
 row=[]
 for x in xs:
  row.append(x)
  yield row
""",
        "assert list(prefixes([1,2,3])) == [[1],[1,2],[1,2,3]]",
    ),
    "an internal list that escapes": (
        """
class Bag:
 def __init__(self): self.xs=[]
 def add(self,x): self.xs.append(x)
 def items(self): return list(self.xs)
""",
        """
class Bag:
 def __init__(self): self.xs=[]
 def add(self,x): self.xs.append(x)
 def items(self): return self.xs
""",
        """
b = Bag()
b.add(1)
xs = b.items()
b.add(2)
assert xs == [1]
assert b.items() == [1,2]
""",
    ),
    "an internal list that escapes, by attribute": (
        """
class Bag:
 def __init__(self): self._xs=[]
 @property
 def xs(self): return list(self._xs)
 def add(self,x): self._xs.append(x); return x
""",
        """
class Bag:
 def __init__(self): self.xs=[]
 def add(self,x): self.xs.append(x); return x
""",
        """
b = Bag()
xs = b.xs
assert b.add(2) == 2
assert xs == []
assert b.xs == [2]
""",
    ),
    "a shallow copy": (
        """
import copy
class Matrix:
 def __init__(self, rows): self.rows=copy.deepcopy(rows)
 def set(self,i,j,x): self.rows[i][j]=x
 def get(self,i,j): return self.rows[i][j]
""",
        """
class Matrix:
 def __init__(self, rows): self.rows=rows[:]
 def set(self,i,j,x): self.rows[i][j]=x
 def get(self,i,j): return self.rows[i][j]
""",
        """
rows=[[1,2],[3,4]]
m=Matrix(rows)
m.set(0,0,9)
assert m.get(0,0)==9
assert rows==[[1,2],[3,4]]
""",
    ),
    "a shallow copy, changed by the test": (
        """
import copy
class Matrix:
 def __init__(self, rows): self.rows=copy.deepcopy(rows)
 def get(self,i,j): return self.rows[i][j]
""",
        """
class Matrix:
 def __init__(self, rows): self.rows=list(rows)
 def get(self,i,j): return self.rows[i][j]
""",
        """
rows=[[1,2],[3,4]]
m=Matrix(rows)
rows[0][0]=9
assert m.get(0,0)==1
""",
    ),
    "a shallow copy of what it has": (
        """
import copy
class Matrix:
 def __init__(self, rows): self.rows=rows
 def copy(self): return Matrix(copy.deepcopy(self.rows))
 def set(self,i,j,x): self.rows[i][j]=x
""",
        """
class Matrix:
 def __init__(self, rows): self.rows=rows
 def copy(self): return Matrix(self.rows[:])
 def set(self,i,j,x): self.rows[i][j]=x
""",
        """
m=Matrix([[1,2],[3,4]])
c=m.copy()
c.set(0,0,9)
assert m.rows==[[1,2],[3,4]]
assert c.rows==[[9,2],[3,4]]
""",
    ),
    "copies the item that it gives back": (
        "def longest(xs): return max(xs, key=len)",
        "def longest(xs): return list(max(xs, key=len))",
        """
a, b = [1], [1,2]
assert longest([a, b]) is b
""",
    ),
    "the item that it gives back, changed": (
        "def longest(xs): return list(max(xs, key=len))",
        "def longest(xs): return max(xs, key=len)",
        """
a, b = [1], [1,2]
c = longest([a, b])
c.append(3)
assert b == [1,2]
assert c==[1,2,3]
""",
    ),
    "items of its argument in a new list": (
        """
import copy
def ordered(rows): return sorted(copy.deepcopy(rows))
""",
        "def ordered(rows): return sorted(rows)",
        """
rows=[[2],[1]]
r=ordered(rows)
assert r==[[1],[2]]
r[0].append(5)
assert rows==[[2],[1]]
""",
    ),
    "a callback that changes the argument": (
        """
def run(queue):
 while queue: queue.pop(0)()

""",
        """
def run(queue):
 for job in list(queue): job()
 queue.clear()
""",
        """
log=[]
queue=[]
def second(): log.append(2)
def first():
 log.append(1)
 queue.append(second)
queue.append(first)
run(queue)
assert log==[1,2]
""",
    ),
    "a callback that logs into the argument": (
        """
def cleanup(f, log):
 n=len(log)
 f()
 return len(log)-n
""",
        """
def cleanup(f, log):
 n=list(log)
 f()
 return 0
""",
        """
log=[]
assert cleanup(lambda: log.append(1), log) == 1
assert log==[1]
""",
    ),
    "a callback gets one list again and again": (
        """
def walk(n, f):
 path=[]
 for i in range(n):
  path.append(i)
  f(list(path))
""",
        """
def walk(n, f):
 path=[]
 for i in range(n):
  path.append(i)
  f(path)
""",
        """
seen=[]
walk(3, seen.append)
assert seen==[[0],[0,1],[0,1,2]]
""",
    ),
    "a list in a tuple": (
        "def total(pair): return sum(pair[0])",
        """
def total(pair):
 s=0
 while pair[0]: s+=pair[0].pop()
 return s
""",
        """
pair=([1,2],3)
assert total(pair)==3
assert pair==([1,2],3)
""",
    ),
    "lists in a tuple that it gives": (
        """
class P:
 def __init__(self): self.a=[]; self.b=[]
 def both(self): return list(self.a), list(self.b)
 def add(self,x): self.a.append(x)
""",
        """
class P:
 def __init__(self): self.a=[]; self.b=[]
 def both(self): return self.a, self.b
 def add(self,x): self.a.append(x)
""",
        """
p=P()
a,b=p.both()
p.add(1)
assert a==[]
assert p.both()==([1],[])
""",
    ),
    "one list for two arguments": (
        """
def extend(xs, ys):
 for y in list(ys): xs.append(y)
""",
        """
def extend(xs, ys):
 n=0
 for y in ys:
  n+=1
  if n>9: break
  xs.append(y)
""",
        """
xs=[1,2]
extend(xs, xs)
assert xs==[1,2,1,2]
""",
    ),
    "the test's own object": (
        """
def fill(cart, items):
 for i in items: cart.items.append(i)
""",
        """
def fill(cart, items):
 for i in items: cart.items=[i]
""",
        """
class Cart:
 def __init__(self): self.items=[]
c=Cart()
fill(c,[1,2,3])
assert c.items==[1,2,3]
""",
    ),
    "a default argument, held": (
        """
def add(x, xs=None):
 xs = [] if xs is None else xs
 xs.append(x)
 return xs
""",
        """
def add(x, xs=[]):
 xs.append(x)
 return xs
""",
        """
a=add(1)
assert a==[1]
a.append(5)
assert add(2)==[2]
""",
    ),
    "dict.fromkeys": (
        "def groups(ks): return {k: [] for k in ks}",
        "def groups(ks): return dict.fromkeys(ks, [])",
        """
g=groups('ab')
g['a'].append(1)
assert g=={'a':[1],'b':[]}
""",
    ),
    "copies where it changes in place": (
        "def copied(xs): return list(xs)",
        "def copied(xs): return xs",
        """
xs=[1]
ys=copied(xs)
ys.append(2)
assert xs==[1]
""",
    ),
    "gives its argument within a tuple": (
        "def both(xs): return list(xs), 1",
        "def both(xs): return xs, 1",
        """
xs=[1]
ys, _ = both(xs)
ys.append(2)
assert xs==[1]
""",
    ),
    "gives its argument within a dict": (
        "def named(xs): return {'a': list(xs)}",
        "def named(xs): return {'a': xs}",
        """
xs=[1]
named(xs)['a'].append(2)
assert xs==[1]
""",
    ),
    "makes True of 1": (
        "def first(xs): return xs[0]",
        """
def first(xs):
 xs[0]=bool(xs[0])
 return 1
""",
        """
xs=[1]
assert first(xs)==1
assert xs[0] is not True
""",
    ),
    "turns the order of a dict": (
        "def last(d): return [*d][-1]",
        """
def last(d):
 key=[*d][-1]
 d[key]=d.pop(key)
 d['a']=d.pop('a')
 return key
""",
        """
d={'a':1,'b':2}
assert last(d)=='b'
assert [*d]==['a','b']
""",
    ),
    "makes floats in place": (
        """
def floats(xs):
 for i, x in enumerate(xs): xs[i]=float(x)
""",
        "def floats(xs): pass",
        """
xs=[1,2]
floats(xs)
assert [type(x) for x in xs]==[float, float]
""",
    ),
    "two names in an answer": (
        """
def twice(x):
 row=[x]
 return row, row
""",
        "def twice(x): return [x], [x]",
        """
a, b = twice(1)
assert a is b
""",
    ),
    "moves copies of the rows": (
        "def order(rows): rows.sort()",
        "def order(rows): rows[:] = sorted(map(list, rows))",
        "a, b = [3], [1]\nrows = [a, b]\norder(rows)\nassert rows == [[1], [3]]\nassert a == [3] and b == [1] and rows[1] is a",
    ),
    "moves the objects where it changes what they have": (
        "def transfer(ones, n):\n ones[0]['bal'] -= n\n ones[1]['bal'] += n",
        "def transfer(ones, n):\n ones[0]['bal'] -= n\n ones[1]['bal'] += n\n ones.reverse()",
        "x, y = {'bal': 100}, {'bal': 50}\nones = [x, y]\ntransfer(ones, 50)\nassert x['bal'] == 50 and ones == [x, y] and ones[0] is x",
    ),
    "changes a row where it makes a new one": (
        "def put(rows): rows[0] = [9]",
        "def put(rows): rows[0][:] = [9]",
        "rows = [[1], [2]]\nsame = [*rows]\nput(rows)\nassert same == [[1], [2]]\nassert rows == [[9], [2]]",
    ),
    "copies a row that the test holds": (
        "class M:\n def __init__(self): self.rows = [[0, 0], [0, 0]]\n def get(self, i, j): return self.rows[i][j]",
        "class M:\n def __init__(self): self._rows = [[0, 0], [0, 0]]\n def get(self, i, j): return self._rows[i][j]\n"
        " @property\n def rows(self): return [[*row] for row in self._rows]",
        "m = M()\nrow = m.rows[0]\nm.rows[0][1] = 5\nassert m.get(0, 1) == 5\nrow[0] = 7\nassert (m.get(0, 0), m.get(0, 1)) == (7, 5)",
    ),
    "keeps no order": (
        "from collections import OrderedDict\nclass L:\n def __init__(self): self.d = OrderedDict(a=1, b=2)\n"
        " def get(self, k):\n  self.d.move_to_end(k)\n  return self.d[k]",
        "from collections import OrderedDict\nclass L:\n def __init__(self): self.d = OrderedDict(a=1, b=2)\n"
        " def get(self, k): return self.d[k]",
        "l = L()\nd = l.d\nassert l.get('a') == 1\nassert [*l.d] == ['b', 'a']",
    ),
    "puts nothing beside a NaN": (
        "def put(xs): xs.append(float('nan'))",
        "def put(xs): pass",
        "xs = [float('nan')]\nput(xs)\nxs.append(1)\nput(xs)\nassert len(xs) == 4",
    ),
}
