#!/usr/bin/env bash
# Makes an environment in which verl trains on GPUs, and says what it found there.
#
#   scripts/setup_gpu.sh [--venv FOLDER] [--python PYTHON] [--engine vllm|embedded] [--torch-index URL]
#                        [--flash-attn] [--dry-run]
#
# --venv         where to make it (.venvs/verl-gpu)
# --python       Python 3.11 or 3.12 (python3)
# --engine       what is to serve the policy: vLLM, or agl-local's engine alone (vllm)
# --torch-index  a further package index that has torch for this machine's CUDA (none: torch as pip finds it)
# --flash-attn   also build flash-attn; verl trains without it, as the driver configures it
# --dry-run      print the commands; run none
#
# The versions are those of plugins/verl/pyproject.toml. Not run on a machine with GPUs by us.
set -euo pipefail
cd "$(dirname "$0")/.."

venv=.venvs/verl-gpu python=python3 engine=vllm index="" flash="" dry=""

refuse() {
  echo "setup_gpu: $1" >&2
  exit 2
}

while (($#)); do
  case $1 in
    --venv | --python | --engine | --torch-index)
      (($# > 1)) || refuse "$1 needs a value"
      case $1 in
        --venv) venv=$2 ;;
        --python) python=$2 ;;
        --engine) engine=$2 ;;
        --torch-index) index=$2 ;;
      esac
      shift 2
      ;;
    --flash-attn) flash=yes; shift ;;
    --dry-run) dry=yes; shift ;;
    -h | --help) sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' "$0"; exit 0 ;;
    *) refuse "$1 is not known; --help says what is" ;;
  esac
done

case $engine in
  vllm) extra=vllm ;;
  embedded) extra=gpu ;;
  *) refuse "--engine is $engine; it is vllm or embedded" ;;
esac

run() {
  printf '+'
  printf ' %q' "$@"
  echo
  [[ -n $dry ]] || "$@"
}

# ------------------------------------------------------------------------------------------- what is there
if command -v nvidia-smi >/dev/null && gpus=$(nvidia-smi --query-gpu=name,memory.total,driver_version --format=csv,noheader); then
  echo "GPUs:"
  echo "$gpus" | sed 's/^/  /'
else
  echo "GPUs: none that nvidia-smi sees"
  [[ -n $dry ]] || refuse "there is no GPU to set up; on a CPU: scripts/environment verl"
fi
version=$("$python" -c 'import sys; print("{}.{}".format(*sys.version_info))') || refuse "--python: $python does not start"
echo "Python: $version"
case $version in
  3.11 | 3.12) ;;
  *) refuse "--python: verl 0.9.1 with vLLM is for Python 3.11 and 3.12; $python is $version" ;;
esac

# ----------------------------------------------------------------------------------------------- install it
pip=("$venv/bin/python" -m pip --disable-pip-version-check install)
more=()
[[ -z $index ]] || more=(--extra-index-url "$index")
run "$python" -m venv "$venv"
run "${pip[@]}" --upgrade pip
run "${pip[@]}" "${more[@]}" -e core -e plugins/local -e "plugins/verl[$extra]"
if [[ -n $flash ]]; then
  run "${pip[@]}" ninja packaging wheel setuptools
  run "${pip[@]}" --no-build-isolation flash-attn==2.8.3
fi

# -------------------------------------------------------------------------------------------- what it became
run "$venv/bin/python" -m agl_verl.inside.found --engine "$engine"
echo "Interpreter for backend.options.python: $venv/bin/python"
