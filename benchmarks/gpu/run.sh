#!/usr/bin/env bash
# One part of what is tried and measured on a GPU: right, real or speed.
#
#     benchmarks/gpu/run.sh right [--carried DIR] [--work DIR] [--output DIR] [--minutes N] [--only STEP ...]
#     benchmarks/gpu/run.sh right --rehearse      the same steps with little work, on a CPU
#
# Needs Python 3.11 or newer with torch, transformers, accelerate and peft, and the folder that pack.sh makes.
# A part ends after five minutes at the latest. Called again, it goes on with the steps that are not done.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
python=${PYTHON:-python3}
export HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false PYTHONUNBUFFERED=1
case " $* " in
*" --rehearse "*) exec "$python" "$here/run.py" "$@" ;;
*) exec timeout --signal=TERM --kill-after=8 290 "$python" "$here/run.py" "$@" ;;
esac
