"""`topics serve` whole, with the real gateway: the one test here that needs every part of the product."""

import time

from tests.supervisor.server_process import ServerProcess


def test_start_serve_restart_stop(tmp_path):
    began = time.monotonic()
    with ServerProcess(tmp_path, gateway=None, gateways=2) as server:
        server.wait_ready()
        print(f"ready after {time.monotonic() - began:.2f} s")
        assert server.get("/v0/health")["status"] == "ok"
        assert server.get("/v0/ready")["status"] == "ready"
        old = server.child("gateway", 1)["pid"]
        server.call("restart", kind="gateway", index=1)
        server.wait_back("gateway", 1, old)
        assert [server.get("/v0/ready")["status"] for _ in range(8)] == ["ready"] * 8
        assert server.stop() == 0
        assert "raceback" not in server.text()
