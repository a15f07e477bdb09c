"""Rewrites a pytest file in unittest's form, so that one set of exercises is graded in both."""

from __future__ import annotations

import ast

HEAD = "import tempfile\nimport unittest\nfrom pathlib import Path\n"
FOLDER = "with tempfile.TemporaryDirectory() as folder:\n    tmp_path = Path(folder)\n"


class _Body(ast.NodeTransformer):
    """`assert` and `pytest.raises` as methods of a test case."""

    def __init__(self) -> None:
        self.caught: set[str] = set()
        """Names that `pytest.raises(...) as` gives."""

    def visit_withitem(self, node: ast.withitem) -> ast.withitem:
        if "pytest.raises" in ast.unparse(node.context_expr) and isinstance(node.optional_vars, ast.Name):
            self.caught.add(node.optional_vars.id)
        self.generic_visit(node)
        return node

    def visit_Assert(self, node: ast.Assert) -> ast.stmt:
        self.generic_visit(node)
        match node.test:
            case ast.Compare(left=left, ops=[ast.Eq()], comparators=[right]):
                return _statement("self.assertEqual(a, b)", a=left, b=right)
        return _statement("self.assertTrue(a)", a=node.test)

    def visit_Call(self, node: ast.Call) -> ast.expr:
        self.generic_visit(node)
        if ast.unparse(node.func) != "pytest.raises":
            return node
        match = [keyword.value for keyword in node.keywords if keyword.arg == "match"]
        node.func = ast.parse("self.assertRaisesRegex" if match else "self.assertRaises", mode="eval").body
        node.args, node.keywords = [*node.args, *match], []
        return node

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        self.generic_visit(node)
        if node.attr == "value" and isinstance(node.value, ast.Name) and node.value.id in self.caught:
            node.attr = "exception"
        return node


def _statement(text: str, **parts: ast.expr) -> ast.stmt:
    """The statement `text`, with these expressions in the place of names."""
    (statement,) = ast.parse(text).body
    call = statement.value  # type: ignore[attr-defined]
    call.args = [parts[name.id] for name in call.args]
    return statement


def as_unittest(code: str) -> str | None:
    """Return the file with its test functions as methods of a TestCase; None where it needs what only pytest has."""
    tree = ast.parse(code)
    tests = [one for one in tree.body if isinstance(one, ast.FunctionDef) and one.name.startswith("test")]
    rest = [one for one in tree.body if one not in tests and ast.unparse(one) != "import pytest"]
    methods = []
    for test in tests:
        if {one.arg for one in test.args.args} - {"tmp_path"} or test.decorator_list:
            return None
        rewrite = _Body()
        body = [rewrite.visit(statement) for statement in test.body]
        if test.args.args:
            (folder,) = ast.parse(FOLDER).body
            folder.body += body  # type: ignore[attr-defined]
            body = [folder]
        test.args.args, test.body = [ast.arg("self")], body
        methods.append(test)
    case = ast.ClassDef("TestAll", [ast.parse("unittest.TestCase", mode="eval").body], [], methods, [])
    text = HEAD + ast.unparse(ast.fix_missing_locations(ast.Module([*rest, *([case] if methods else [])], [])))
    return None if "pytest" in text else text + "\n"
