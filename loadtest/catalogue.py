"""Every workload there is, in the order in which they run."""

from loadtest import delivery, heldup, keys, latency, recovery, routed, routers, w1, w2, w3, w4, w5

WORKLOADS = {
    module.WORKLOAD.name: module.WORKLOAD  # one file each
    for module in (w1, w2, w3, w4, w5, delivery, routers, routed, latency, heldup, recovery, keys)
}
