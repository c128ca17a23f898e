"""check_map.py REPO MAP...: every target of a rename map exists; no target twice; class names stay unique."""
import ast, pathlib, sys
import rename_lib as lib
root = pathlib.Path(sys.argv[1]); seen = {}; bad = 0
for f in sys.argv[2:]:
    for n, line in enumerate(pathlib.Path(f).read_text().splitlines(), 1):
        rule = line.split("#")[0].split()
        if not rule: continue
        if len(rule) != 2 or not rule[1].isidentifier(): print(f, n, "bad line:", line); bad += 1; continue
        target, new = rule; mod, _, qual = target.partition(":")
        if target in seen and seen[target] != new: print(f, n, "twice, differently:", target, seen[target], new); bad += 1
        seen[target] = new
        path = lib.path_of(root, mod)
        if path is None: print(f, n, "no module:", target); bad += 1; continue
        src = path.read_text()
        try: pos = lib.locate(ast.parse(src), qual, src)
        except Exception as e: pos = None
        if pos is None: print(f, n, "not found:", target); bad += 1
print(len(seen), "targets,", bad, "problems")
