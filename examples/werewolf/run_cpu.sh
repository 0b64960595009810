#!/usr/bin/env bash
# What produced the table in README.md: the demo with seed 1.
set -euo pipefail
cd "$(dirname "$0")/../.."
PYTHONPATH=examples python -m werewolf.demo
