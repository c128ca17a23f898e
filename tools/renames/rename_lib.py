import ast, pathlib

def path_of(root, mod):
    base = pathlib.Path(root) / ("src" if mod.startswith("hansa") else ".") / mod.replace(".", "/")
    for p in (base.with_suffix(".py"), base / "__init__.py"):
        if p.exists(): return p
    return None

def locate(tree, qual, src):
    parts = qual.split(".")
    lines = src.splitlines()
    def name_pos(node, name):
        line = lines[node.lineno - 1]
        # decorators precede; def/class name on node.lineno
        col = line.index(name, node.col_offset)
        return node.lineno - 1, col
    def find(body, name):
        for n in body:
            if isinstance(n, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)) and n.name == name: return n
            if isinstance(n, ast.AnnAssign) and isinstance(n.target, ast.Name) and n.target.id == name: return n.target
            if isinstance(n, ast.Assign):
                for t in n.targets:
                    for e in ast.walk(t):
                        if isinstance(e, ast.Name) and e.id == name: return e
            if isinstance(n, (ast.If, ast.Try)):
                r = find(ast.iter_child_nodes(n), name)
                if r is not None: return r
        return None
    scope = tree
    for i, part in enumerate(parts):
        got = find(scope.body, part) if hasattr(scope, "body") and not isinstance(scope, (ast.FunctionDef, ast.AsyncFunctionDef)) else None
        if got is None and isinstance(scope, (ast.FunctionDef, ast.AsyncFunctionDef)):
            a = scope.args
            for x in [*a.posonlyargs, *a.args, *a.kwonlyargs, *([a.vararg] if a.vararg else []), *([a.kwarg] if a.kwarg else [])]:
                if x.arg == part: return x.lineno - 1, x.col_offset
            for e in ast.walk(scope):
                if isinstance(e, ast.Name) and e.id == part and isinstance(e.ctx, ast.Store): return e.lineno - 1, e.col_offset
        if got is None and isinstance(scope, ast.ClassDef):
            for e in ast.walk(scope):
                if isinstance(e, ast.Attribute) and e.attr == part and isinstance(e.value, ast.Name) and e.value.id == "self" and isinstance(e.ctx, ast.Store):
                    line = lines[e.end_lineno - 1]
                    return e.end_lineno - 1, e.end_col_offset - len(part)
        if got is None: return None
        scope = got
    if isinstance(scope, ast.Name): return scope.lineno - 1, scope.col_offset
    return name_pos(scope, parts[-1])

