#!/usr/bin/env bash
# The same agent with a real model on one GPU (see gpu.yaml for what must lie where).
set -euo pipefail
cd "$(dirname "$0")/../.."
agl train --config examples/spider/gpu.yaml "$@"
