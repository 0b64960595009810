#!/usr/bin/env bash
# What produced the table in README.md: the demo for seeds 1, 2 and 3.
set -euo pipefail
cd "$(dirname "$0")/../.."
for seed in 1 2 3; do python examples/spider/demo.py --seed "$seed"; done
