"""Routers over HTTP: definitions, the graph, lists, keys, and what removing topics does (API §6, §1.4, §11)."""

from contextlib import contextmanager
from urllib.parse import quote

import httpx
import pytest

from topics.testing.server import Server


def put(http, name, source, dest, **fields):
    return http.put(f"/v0/routers/{quote(name, safe='')}", json={"source": source, "dest": dest, **fields})


def get(http, name):
    return http.get(f"/v0/routers/{quote(name, safe='')}")


def drop(http, name):
    return http.delete(f"/v0/routers/{quote(name, safe='')}")


def error_of(response, status, code):
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert error["code"] == code
    return error


def exists(http, topic):
    return http.get(f"/v0/topics/{topic}").status_code == 200


@contextmanager
def server(tmp_path, **settings):
    with Server(tmp_path / "own", **({"shards": 2, "gateways": 2} | settings)) as one:
        one.start().wait_ready()
        with httpx.Client(base_url=one.url, timeout=30) as client:
            yield one, client


# --- put, get, delete -----------------------------------------------------------------------------------------------


def test_put_makes_a_router_and_both_topics(http, name):
    made = put(http, f"{name}->x", name, f"{name}.d")
    assert made.status_code == 201
    body = made.json()
    assert body.pop("performance")["server_total_ms"] > 0
    assert body == {
        "router": f"{name}->x",
        "created": True,
        "source": name,
        "dest": f"{name}.d",
        "preserve_node": True,
        "preserve_tag": True,
        "filter": None,
        "allow_cycle": False,
        "guarantee": "at_least_once",
    }
    assert exists(http, name)
    assert exists(http, f"{name}.d")


def test_put_is_an_upsert(http, name):
    fields = {"filter": ["tag", "Glob", "public:*"], "guarantee": "exactly_once", "preserve_node": False}
    assert put(http, name, f"{name}.s", f"{name}.d", **fields).status_code == 201
    again = put(http, name, f"{name}.s", f"{name}.d", **fields)
    assert again.status_code == 200
    assert again.json()["created"] is False
    changed = put(http, name, f"{name}.s", f"{name}.d", preserve_tag=False)
    assert changed.status_code == 200
    assert changed.json()["created"] is False
    shown = get(http, name).json()
    assert shown["preserve_tag"] is False
    assert shown["preserve_node"] is True
    assert shown["filter"] is None
    assert shown["guarantee"] == "at_least_once"


def test_get_shows_it_all(http, name):
    put(http, name, f"{name}.s", f"{name}.d", filter="a*", allow_cycle=True)
    body = get(http, name).json()
    assert body.pop("performance")
    assert body == {
        "router": name,
        "source": f"{name}.s",
        "dest": f"{name}.d",
        "preserve_node": True,
        "preserve_tag": True,
        "filter": ["tag", "Glob", "a*"],
        "allow_cycle": True,
        "guarantee": "at_least_once",
        "forwarded_total": 0,
    }


def test_a_router_that_is_not_there(http, name):
    error = error_of(get(http, f"{name}->none"), 404, "router_not_found")
    assert error["detail"]["router"] == f"{name}->none"
    gone = drop(http, name)
    assert gone.status_code == 200
    assert gone.json()["deleted"] is False
    assert gone.json()["router"] == name


def test_delete_is_idempotent(http, name):
    put(http, name, f"{name}.s", f"{name}.d")
    assert drop(http, name).json()["deleted"] is True
    assert drop(http, name).json()["deleted"] is False
    error_of(get(http, name), 404, "router_not_found")
    assert exists(http, f"{name}.s")
    assert exists(http, f"{name}.d")


def test_moving_a_router_to_other_topics(http, name):
    put(http, name, f"{name}.a", f"{name}.b")
    for n in range(8):  # sources and destinations on either shard
        moved = put(http, name, f"{name}.a{n}", f"{name}.b{n}")
        assert moved.status_code == 200
        assert get(http, name).json()["source"] == f"{name}.a{n}"
    listed = http.get("/v0/routers", params={"prefix": name}).json()["routers"]
    assert [(row["source"], row["dest"]) for row in listed] == [(f"{name}.a7", f"{name}.b7")]


@pytest.mark.parametrize("bad", ["-x", "a b", "a/b", "$x", ">a", "a" * 256])
def test_names(http, bad):
    error_of(put(http, bad, "names.s", "names.d"), 400, "invalid_request")


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"dest": "d"}, "source"),
        ({"source": "s"}, "dest"),
        ({"source": "same", "dest": "same"}, "dest"),
        ({"source": "s", "dest": "d", "filter": ["tag", "Like", "x"]}, "filter"),
        ({"source": "s", "dest": "d", "guarantee": "maybe"}, "guarantee"),
        ({"source": "s", "dest": "d", "preserve_tag": "x"}, "preserve_tag"),
    ],
)
def test_bad_definitions_leave_nothing(http, name, fields, field):
    named = {key: f"{name}.{value}" if key in ("source", "dest") else value for key, value in fields.items()}
    error = error_of(http.put(f"/v0/routers/{name}", json=named), 400, "invalid_request")
    assert error["detail"]["field"] == field
    for topic in named.values():
        assert not isinstance(topic, str) or not exists(http, topic)


def test_wrong_content_type_and_method(http, name):
    assert http.put(f"/v0/routers/{name}", content=b"{}", headers={"content-type": "text/plain"}).status_code == 415
    wrong = http.post(f"/v0/routers/{name}", json={})
    assert error_of(wrong, 405, "method_not_allowed")
    assert set(wrong.headers["allow"].split(", ")) == {"DELETE", "GET", "HEAD", "PUT"}


def test_create_dest_false(http, name):
    missing = put(http, name, f"{name}.s", f"{name}.d", create_dest=False)
    assert error_of(missing, 404, "topic_not_found")["detail"]["topic"] == f"{name}.d"
    assert not exists(http, f"{name}.s")
    http.put(f"/v0/topics/{name}.d", json={})
    assert put(http, name, f"{name}.s", f"{name}.d", create_dest=False).status_code == 201
    assert exists(http, f"{name}.s")


# --- the graph ------------------------------------------------------------------------------------------------------


def test_cycles_are_refused_with_their_path(http, name):
    a, b, c = f"{name}.a", f"{name}.b", f"{name}.c"
    put(http, f"{name}1", a, b)
    put(http, f"{name}2", b, c)
    error = error_of(put(http, f"{name}3", c, a), 409, "router_cycle")
    assert error["detail"]["cycle"] == [c, a, b, c]
    error = error_of(put(http, f"{name}3", b, a), 409, "router_cycle")
    assert error["detail"]["cycle"] == [b, a, b]
    error_of(get(http, f"{name}3"), 404, "router_not_found")
    assert put(http, f"{name}3", c, a, allow_cycle=True).status_code == 201
    assert put(http, f"{name}1", a, b).status_code == 200  # what is there stays


def test_a_refused_cycle_makes_no_topics(http, name):
    put(http, f"{name}1", f"{name}.a", f"{name}.b")
    error_of(put(http, f"{name}2", f"{name}.x", f"{name}.b"), 409, "topic_exists_incompatible")
    assert not exists(http, f"{name}.x")


def test_fan_in_is_refused(http, name):
    put(http, f"{name}1", f"{name}.a", f"{name}.d")
    error = error_of(put(http, f"{name}2", f"{name}.b", f"{name}.d"), 409, "topic_exists_incompatible")
    assert error["detail"]["reason"] == "router_dest_fan_in"
    error = error_of(
        put(http, f"{name}2", f"{name}.b", f"{name}.d", allow_cycle=True), 409, "topic_exists_incompatible"
    )
    assert error["detail"]["reason"] == "router_dest_fan_in"
    assert put(http, f"{name}3", f"{name}.a", f"{name}.d", filter="x").status_code == 201  # the same source
    drop(http, f"{name}1")
    drop(http, f"{name}3")
    assert put(http, f"{name}2", f"{name}.b", f"{name}.d").status_code == 201


# --- lists ----------------------------------------------------------------------------------------------------------


def walk(http, **params):
    rows, cursor = [], None
    while True:
        page = http.get("/v0/routers", params=params | ({"cursor": cursor} if cursor else {})).json()
        rows += page["routers"]
        cursor = page.get("next_cursor")
        if cursor is None:
            return rows
        assert len(page["routers"]) == params["page_size"]


def test_lists_are_filtered_and_paged(http, name):
    for n in range(12):
        put(http, f"{name}->{n:02}", f"{name}.s{n % 2}", f"{name}.d{n}")
    rows = walk(http, prefix=name, page_size=5)
    assert [row["router"] for row in rows] == [f"{name}->{n:02}" for n in range(12)]
    assert rows[3] == {
        "router": f"{name}->03",
        "source": f"{name}.s1",
        "dest": f"{name}.d3",
        "guarantee": "at_least_once",
        "forwarded_total": 0,
    }
    from_s1 = walk(http, prefix=name, source=f"{name}.s1", page_size=2)
    assert [row["dest"] for row in from_s1] == [f"{name}.d{n}" for n in range(1, 12, 2)]
    assert [row["router"] for row in walk(http, dest=f"{name}.d7", page_size=10)] == [f"{name}->07"]
    assert walk(http, prefix=name, source=f"{name}.none", page_size=10) == []
    whole = http.get("/v0/routers", params={"prefix": name, "page_size": 12}).json()
    assert "next_cursor" not in whole


def test_bad_list_queries(http):
    error_of(http.get("/v0/routers", params={"cursor": "%%%"}), 400, "invalid_request")
    error_of(http.get("/v0/routers", params={"page_size": "0"}), 400, "invalid_request")


# --- removal of topics ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["source", "dest"])
def test_removing_a_topic_removes_its_routers(http, name, end):
    """Over several names, so that the other end is on either shard."""
    for n in range(6):
        topic, others = f"{name}.{n}", [f"{name}.{n}.{m}" for m in range(4)]
        expected = []
        for m, other in enumerate(others if end == "source" else others[:1]):
            ends = (topic, other) if end == "source" else (other, topic)
            router = f"{name}->{n}.{m}"
            assert put(http, router, *ends).status_code == 201
            expected.append(router)
        gone = http.delete(f"/v0/topics/{topic}").json()
        assert gone["deleted"] is True
        assert gone["routers_removed"] == expected
        for router in expected:
            error_of(get(http, router), 404, "router_not_found")
        assert exists(http, others[0])
    assert http.get("/v0/routers", params={"prefix": name}).json()["routers"] == []


def test_a_topic_in_the_middle(http, name):
    put(http, f"{name}->1", f"{name}.a", f"{name}.b")
    put(http, f"{name}->2", f"{name}.b", f"{name}.c")
    assert http.delete(f"/v0/topics/{name}.b").json()["routers_removed"] == [f"{name}->1", f"{name}->2"]


def test_if_empty_keeps_the_routers(http, name):
    put(http, name, f"{name}.a", f"{name}.b")
    http.post(f"/v0/topics/{name}.a", json={"records": [{"data": 1}]})
    error_of(http.delete(f"/v0/topics/{name}.a", params={"if_empty": "true"}), 409, "topic_not_empty")
    assert get(http, name).status_code == 200


def test_nothing_to_remove(http, name):
    gone = http.delete(f"/v0/topics/{name}").json()
    assert gone["deleted"] is False
    assert gone["routers_removed"] == []


# --- durability, caps, keys -----------------------------------------------------------------------------------------


def test_definitions_survive_restarts(tmp_path):
    with server(tmp_path) as (one, client):
        for n in range(8):
            assert put(client, f"r{n}", f"s{n}", f"d{n}", filter=f"t{n}*").status_code == 201
        drop(client, "r3")
        client.delete("/v0/topics/s4")
        client.delete("/v0/topics/d5")
        one.kill_all()
        one.start().wait_ready()
        with httpx.Client(base_url=one.url, timeout=30) as again:
            rows = again.get("/v0/routers").json()["routers"]
            assert [row["router"] for row in rows] == ["r0", "r1", "r2", "r6", "r7"]
            assert get(again, "r6").json()["filter"] == ["tag", "Glob", "t6*"]
            assert again.get("/v0/metrics", headers={"accept": "application/json"}).json()["topics_routers"] == 5


def test_the_cap_on_routers(tmp_path):
    with server(tmp_path, max_routers=2) as (_, client):
        assert put(client, "a", "s", "d1").status_code == 201
        assert put(client, "b", "s", "d2").status_code == 201
        refused = put(client, "c", "s2", "d3")
        error = error_of(refused, 429, "throttled")
        assert error["detail"]["limit"] == "max_routers"
        assert error["detail"]["max"] == 2
        assert refused.headers["retry-after"]
        assert not exists(client, "s2")
        assert not exists(client, "d3")
        assert put(client, "a", "s", "d1", preserve_tag=False).status_code == 200
        drop(client, "b")
        assert put(client, "c", "s2", "d3").status_code == 201


def test_a_router_that_the_topic_cap_refuses_leaves_no_topic(tmp_path):
    with server(tmp_path, max_topics=1) as (_, client):
        error = error_of(put(client, "a", "s", "d"), 429, "throttled")
        assert error["detail"]["limit"] == "max_topics"
        assert client.get("/v0/topics").json()["topics"] == []
        assert client.get("/v0/routers").json()["routers"] == []


def test_keys(tmp_path):
    keys = "full,look:read,make:admin:t1:,cut:delete:t1:,see:read:t1:"
    with server(tmp_path, api_keys=keys) as (_, client):

        def as_key(key):
            return {"authorization": f"Bearer {key}"}

        def put_as(key, name, source, dest):
            body = {"source": source, "dest": dest}
            return client.put(f"/v0/routers/{quote(name, safe='')}", json=body, headers=as_key(key))

        error_of(put_as("look", "t1:r", "t1:a", "t1:b"), 403, "forbidden")
        error_of(put_as("make", "t2:r", "t1:a", "t1:b"), 403, "forbidden")
        error_of(put_as("make", "t1:r", "t2:a", "t1:b"), 403, "forbidden")
        error_of(put_as("make", "t1:r", "t1:a", "t2:b"), 403, "forbidden")
        assert put_as("make", "t1:r", "t1:a", "t1:b").status_code == 201
        assert put_as("full", "t1:far", "t1:a", "t2:b").status_code == 201
        assert put_as("full", "t2:r", "t2:b", "t2:c").status_code == 201
        seen = client.get("/v0/routers", headers=as_key("see")).json()["routers"]
        assert [row["router"] for row in seen] == ["t1:r"]
        assert client.get("/v0/routers/t1:r", headers=as_key("see")).status_code == 200
        error_of(client.get("/v0/routers/t2:r", headers=as_key("see")), 403, "forbidden")
        error_of(client.get("/v0/routers/t1:far", headers=as_key("see")), 403, "forbidden")
        error_of(client.delete("/v0/routers/t1:r", headers=as_key("see")), 403, "forbidden")
        error_of(client.delete("/v0/routers/t2:r", headers=as_key("cut")), 403, "forbidden")
        error_of(client.delete("/v0/routers/t1:far", headers=as_key("cut")), 403, "forbidden")
        error_of(put_as("make", "t1:far", "t1:a", "t1:c"), 403, "forbidden")
        assert client.get("/v0/routers/t1:far", headers=as_key("full")).json()["dest"] == "t2:b"
        assert client.delete("/v0/routers/t1:none", headers=as_key("cut")).json()["deleted"] is False
        assert client.delete("/v0/routers/t1:r", headers=as_key("cut")).json()["deleted"] is True
        error_of(client.get("/v0/routers"), 401, "unauthorized")
