#!/usr/bin/env bash
# Twelve seats and a real model, trained by verl (see gpu.yaml for what must lie where).
set -euo pipefail
cd "$(dirname "$0")/../.."
agl train --config examples/werewolf/gpu.yaml "$@"
