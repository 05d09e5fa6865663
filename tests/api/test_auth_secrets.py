"""Keys in use leave no trace: logs at their most talkative, what /proc shows of every process, and every file."""

import os
from pathlib import Path
from typing import Any

import httpx

from topics.testing.server import Server

SECRETS = [f"hush-{name}-{os.urandom(8).hex()}" for name in ("full", "reader", "wrong")]


def use(server: Server) -> None:
    """Every way in which a client might let a secret slip."""
    with httpx.Client(base_url=server.url) as client, httpx.Client(base_url=server.url, http1=False, http2=True) as two:
        for http in (client, two):
            for secret in SECRETS:
                headers = {"authorization": f"Bearer {secret}"}
                for path in ("/v0/topics/a", "/v0/topics", "/v0/metrics", "/v0/ready", "/v0/nope", "/v0/topics/%ff"):
                    http.get(path, headers=headers)
                    http.get(path, headers={"authorization": secret})
                    http.get(path, params={"token": secret}, headers=headers)
                http.put("/v0/topics/a", json={}, headers=headers)
                http.post("/v0/topics/a", json={"records": [{"data": 1}]}, headers=headers)
                http.post("/v0/topics/a", content=b"{", headers=headers | {"content-type": "application/json"})
                http.post(f"/v0/topics/a/diff?token={secret}", json={"from_seq": 0}, headers=headers)


def test_keys_in_use_leave_no_trace(tmp_path):
    keys = tmp_path / "keys"
    keys.write_text(f"{SECRETS[1]}:read\n")
    keys.chmod(0o600)
    given: dict[str, Any] = {"api_keys": SECRETS[0], "api_keys_file": keys, "log_level": "debug", "gateways": 2}
    with Server(tmp_path / "s", **given) as server:
        server.start().wait_ready()
        use(server)
        children = [child["pid"] for child in server.status()["children"]]
        found: list[object] = []
        for pid in [server.process.pid, *children]:
            for name in ("environ", "cmdline", "comm", "status"):
                shown = Path(f"/proc/{pid}/{name}").read_bytes()
                found += [(pid, name) for secret in SECRETS if secret.encode() in shown]
        run_dir = Path(server.holder()["run_dir"])
        assert server.stop() == 0
        files = [path for folder in (run_dir, server.folder) for path in folder.rglob("*") if path.is_file()]
        found += [path for path in files if any(secret.encode() in path.read_bytes() for secret in SECRETS)]
        assert found == []
        assert len(children) == 4
        text = server.text()
    assert not any(secret in text for secret in SECRETS)
    assert "/v0/topics/a/diff" in text  # requests were logged, without their queries
    assert "token=" not in text
