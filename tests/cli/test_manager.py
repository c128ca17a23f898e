import json
import os
import signal
import subprocess
import sys
import urllib.request

from hansa.cli.main import main


def test_manager_runs_until_stopped_and_keeps_its_state(tmp_path):
    database = f"sqlite:///{tmp_path / 'm.db'}"
    command = [sys.executable, "-m", "hansa.cli", "manager", "--port", "0", "--database", database]
    for expected in (0, 1):
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        assert process.stderr is not None
        url = next(line for line in process.stderr if "manager up" in line).split("api=")[1]
        base = url.split()[0]
        with urllib.request.urlopen(f"{base}/nodes", timeout=20) as answer:
            assert len(json.load(answer)) == expected
        body = json.dumps({"ip": "tcp://127.0.0.1:1883"}).encode()
        asked = urllib.request.Request(f"{base}/join", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(asked, timeout=20) as answer:
            assert json.load(answer)["id"] == 0
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
        process.stderr.close()


def test_token_is_printed_once_and_stored_as_a_digest(tmp_path, capsys):
    database = tmp_path / "m.db"
    assert main(["manager", "--database", f"sqlite:///{database}", "--add-token", "agents"]) == 0
    printed = capsys.readouterr()
    token = printed.out.strip()
    assert printed.err.startswith("added the token 'agents' with scope join")
    assert len(token) > 40
    kept = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert token.encode() not in kept
    assert main(["manager", "--database", f"sqlite:///{database}", "--add-token", "a b"]) == 2
    assert "--add-token 'a b': the name must be 1 to 64 of" in capsys.readouterr().err


def test_listening_beyond_loopback_requires_a_token(tmp_path, capsys):
    given = ["manager", "--host", "0.0.0.0", "--database", f"sqlite:///{tmp_path / 'm.db'}"]
    assert main(given) == 2
    assert "no token is set" in capsys.readouterr().err


def test_missing_extra_is_named(tmp_path):
    (tmp_path / "uvicorn.py").write_text("raise ImportError('not here')")
    done = subprocess.run(
        [sys.executable, "-m", "hansa.cli", "manager"],
        env=os.environ | {"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (
        2,
        "hansa: hansa manager needs more: pip install '.[manager]' in a checkout of Hansa, or with"
        " its wheel, pip install './hansa-VERSION-py3-none-any.whl[manager]' (not here)\n",
    )  # fmt: skip
