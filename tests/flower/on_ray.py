"""Runs of several methods on a Ray cluster of two machines, both of them this one, that stays between runs.

``python -m tests.flower.on_ray FOLDER SETTING ...``

Standard input holds the settings of each run, one line of JSON with its name and its words.
"""

import json
import os
import sys
from pathlib import Path

from fedveil import run

if __name__ == "__main__":
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "object_store_memory": 80_000_000})
    try:
        cluster.add_node(num_cpus=1, object_store_memory=80_000_000)
        for line in sys.stdin:
            name, words = json.loads(line)
            where = f"runtime.ray_address={cluster.address}"
            run(*words, *sys.argv[2:], "runtime=flower", where, out=Path(sys.argv[1]) / name)
            assert all(node.any_processes_alive() for node in cluster.list_all_nodes())  # a run ends what is its own
            print(name, flush=True)
    finally:
        cluster.shutdown()
