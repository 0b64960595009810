"""What it costs the gateway to choose among the addresses of a policy.

    python bench/addresses.py [--addresses 128]

Prints one JSON object: microseconds of the first choice for an attempt, and of each further one.
"""

from __future__ import annotations

import argparse
import json
import time

from agentlightning.gateway.upstream.endpoints import Endpoints, ranking

ATTEMPTS, CALLS = 2_000, 50


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--addresses", type=int, default=128)
    count = parser.parse_args().addresses
    addresses = Endpoints([f"http://10.0.0.{n}:8000/v1" for n in range(count)])
    ranking.cache_clear()
    seconds = []
    for calls in (1, CALLS):
        begin = time.process_time()
        for attempt in range(ATTEMPTS):
            for _ in range(calls):
                next(addresses.order(f"at-{attempt:016x}"))
        seconds.append((time.process_time() - begin) / ATTEMPTS / calls)
    first, further = (round(1e6 * s, 1) for s in seconds)
    print(json.dumps({"addresses": count, "first_us": first, "further_us": further}))


if __name__ == "__main__":
    main()
