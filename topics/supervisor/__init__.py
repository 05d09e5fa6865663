"""The supervisor: starts, watches and restarts shard and gateway processes.

    start.py     logs and keys, then serve.py             child.py     one child: start, watch, start again
    serve.py     the whole life of the server             programs.py  what a child is started with
    policy.py    when to start again, a pure function     environment.py  what it inherits
    datadir.py   LOCK, FORMAT                             slotmap.py   SLOTS: who owns which hash slot
    listen.py    the TCP sockets                          rundir.py    the private run directory, the port file
    template.py  a process of which children are forks    template_start.py  starting it
    forks.py     children that are                        patience.py  when a silent child is killed
    admin.py     `status` and `restart` over RPC          notify.py    systemd
    keyload.py   API keys: read, digested, forgotten      report.py    what `status` tells of each process

What a child can rely on:

- Both kinds are forks of the template, or interpreters of their own where there is none; they need not know which.
- Both get a lifeline, a pipe whose other end only the supervisor holds: at end of file, end. Both are in a
  process group of their own, so Ctrl-C reaches only the supervisor, and are stopped by SIGTERM. Their environment has
  no TOPICS_* variable but the three that `topics.logs.inherit` reads.
- A shard is `python -m topics.shards --dir DIR --socket RUN/shard-<i>.sock --lifeline FD --board PATH --index I`, two
  caps, and one flag per field of Limits. It answers `health` from the first moment: `ready`, `replay_progress`,
  `topics`.
- A gateway is `python -m topics.gateway --boot-fd FD`; that file holds a `topics.settings.GatewayBoot` as JSON. It is
  ready when it accepts on `listen_fd` and answers `health` with `{"ready": true}` at `socket`. It starts together with
  the shards and tells clients how they are from the board. On SIGTERM it takes no new work (503 shutting_down), ends
  what is open and exits 0 within `settings.gateway_stop_ms`; from then on it alone holds its listening socket.
- Exit status 65: the data cannot be used, do not start again. 70: storage failed, start again. 2: bad arguments.
"""
