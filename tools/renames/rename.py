#!/usr/bin/env python3
"""rename.py REPO MAPFILE [--dry]: semantic renames through pyright's language server.

MAPFILE lines: `module:Qual.name new_name` ('#' comments). Qual.name: Class, function, CONSTANT, Class.method,
Class.attribute (annotated field or first self.attribute assignment), Class.method.parameter, function.parameter.
All renames are computed against the unchanged tree, then applied at once.
"""
from rename_lib import locate
import ast, json, pathlib, subprocess, sys, threading, queue, urllib.parse, os, time

class Lsp:
    def __init__(self, root):
        self.p = subprocess.Popen(["pyright-langserver", "--stdio"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=root)
        self.n = 0; self.replies = {}; self.cv = threading.Condition()
        threading.Thread(target=self._read, daemon=True).start()
        self.root = root
        uri = pathlib.Path(root).as_uri()
        self.ask("initialize", {"processId": os.getpid(), "rootUri": uri, "capabilities": {"workspace": {"workspaceEdit": {"documentChanges": False}, "configuration": True, "workspaceFolders": True}, "textDocument": {"rename": {"prepareSupport": False}}}, "workspaceFolders": [{"uri": uri, "name": "x"}]})
        self.tell("initialized", {})
        self.versions = {}
    def _read(self):
        f = self.p.stdout
        while True:
            h = {}
            while True:
                line = f.readline()
                if not line: return
                line = line.strip()
                if not line: break
                k, _, v = line.decode().partition(":"); h[k.lower()] = v.strip()
            m = json.loads(f.read(int(h["content-length"])))
            if "method" in m and "id" in m:
                r = None
                if m["method"] == "workspace/configuration":
                    r = [{} for _ in m["params"]["items"]]
                self._send({"jsonrpc": "2.0", "id": m["id"], "result": r})
            elif "id" in m:
                with self.cv:
                    self.replies[m["id"]] = m; self.cv.notify_all()
    def _send(self, m):
        b = json.dumps(m).encode()
        self.p.stdin.write(b"Content-Length: %d\r\n\r\n" % len(b) + b); self.p.stdin.flush()
    def tell(self, method, params): self._send({"jsonrpc": "2.0", "method": method, "params": params})
    def ask(self, method, params, timeout=300):
        self.n += 1; i = self.n
        self._send({"jsonrpc": "2.0", "id": i, "method": method, "params": params})
        with self.cv:
            if not self.cv.wait_for(lambda: i in self.replies, timeout): raise TimeoutError(method)
            return self.replies.pop(i)
    def sync(self, path, text):
        uri = pathlib.Path(path).as_uri()
        v = self.versions.get(uri, 0) + 1; self.versions[uri] = v
        if v == 1: self.tell("textDocument/didOpen", {"textDocument": {"uri": uri, "languageId": "python", "version": v, "text": text}})
        else: self.tell("textDocument/didChange", {"textDocument": {"uri": uri, "version": v}, "contentChanges": [{"text": text}]})

def utf16col(line, bytecol):  # ast gives utf8 byte offsets
    return len(line.encode()[:bytecol].decode().encode("utf-16-le")) // 2

def apply(text, edits):
    lines = text.splitlines(keepends=True)
    starts = [0]
    for l in lines: starts.append(starts[-1] + len(l))
    def off(p):
        line = lines[p["line"]] if p["line"] < len(lines) else ""
        return starts[p["line"]] + len(line.encode("utf-16-le")[: 2 * p["character"]].decode("utf-16-le"))
    for e in sorted(edits, key=lambda e: (e["range"]["start"]["line"], e["range"]["start"]["character"]), reverse=True):
        a, b = off(e["range"]["start"]), off(e["range"]["end"])
        text = text[:a] + e["newText"] + text[b:]
    return text

def main():
    root = pathlib.Path(sys.argv[1]).resolve(); mp = pathlib.Path(sys.argv[2])
    rules = [l.split("#")[0].split() for l in mp.read_text().splitlines()]
    rules = [r for r in rules if r]
    cfg = root / "pyrightconfig.json"
    cfg.write_text(json.dumps({"include": ["src", "tests", "bench"], "venvPath": ".", "venv": ".venv", "extraPaths": ["src", "."], "typeCheckingMode": "off", "reportMissingImports": False}))
    lsp = Lsp(str(root))
    done = failed = 0
    every = {}
    try:
        some = root / "src/hansa/errors.py"
        lsp.sync(some, some.read_text())
        for _ in range(3):  # until the whole program is loaded
            lsp.ask("workspace/symbol", {"query": "UsageError"}); time.sleep(2)
        for rule in rules:
            if len(rule) != 2: print("BAD LINE", rule); failed += 1; continue
            target, new = rule
            mod, _, qual = target.partition(":")
            if mod.startswith("hansa"):
                base = root / "src" / mod.replace(".", "/")
            else:
                base = root / mod.replace(".", "/")
            path = base.with_suffix(".py") if base.with_suffix(".py").exists() else base / "__init__.py"
            if not path.exists(): print("NO FILE", target); failed += 1; continue
            src = path.read_text()
            try: pos = locate(ast.parse(src), qual, src)
            except Exception as e: pos = None; print("LOCATE", target, e)
            if pos is None: print("NOT FOUND", target); failed += 1; continue
            if path.as_uri() not in lsp.versions: lsp.sync(path, src)
            t0 = time.time()
            r = lsp.ask("textDocument/rename", {"textDocument": {"uri": path.as_uri()}, "position": {"line": pos[0], "character": utf16col(src.splitlines()[pos[0]], pos[1])}, "newName": new})
            res = r.get("result")
            ch = {}
            parts = qual.split(".")
            if len(parts) == 2:
                for cls in ast.walk(ast.parse(src)):
                    if isinstance(cls, ast.ClassDef) and cls.name == parts[0]:
                        for n in cls.body:
                            if isinstance(n, ast.Assign) and isinstance(n.targets[0], ast.Name) and n.targets[0].id == "__slots__":
                                for e in ast.walk(n.value):
                                    if isinstance(e, ast.Constant) and e.value == parts[1]:
                                        every.setdefault(path, {})[(e.lineno-1, e.col_offset+1, e.lineno-1, e.end_col_offset-1)] = {"range": {"start": {"line": e.lineno-1, "character": e.col_offset+1}, "end": {"line": e.lineno-1, "character": e.end_col_offset-1}}, "newText": new}
            if res:
                ch = dict(res.get("changes") or {})
                for d in res.get("documentChanges") or []:
                    ch.setdefault(d["textDocument"]["uri"], []).extend(d["edits"])
            if not ch: print("NO EDITS", target, r.get("error")); failed += 1; continue
            n = 0
            for uri, edits in ch.items():
                f = pathlib.Path(urllib.parse.unquote(uri.removeprefix("file://")))
                n += len(edits)
                for e in edits:
                    key = (e["range"]["start"]["line"], e["range"]["start"]["character"], e["range"]["end"]["line"], e["range"]["end"]["character"])
                    old = every.setdefault(f, {}).setdefault(key, e)
                    if old["newText"] != e["newText"]: print("CONFLICT", f, key, old["newText"], e["newText"])
            done += 1
            print(f"{target} -> {new}: {n} places in {len(ch)} files, {time.time()-t0:.1f} s", flush=True)
    finally:
        lsp.p.kill(); cfg.unlink(missing_ok=True)
    for f, edits in every.items():
        f.write_text(apply(f.read_text(), list(edits.values())))
    print(f"{done} renamed, {failed} failed")
main()
