#!/usr/bin/env bash
# Build an environment as a machine with a GPU has it, to rehearse in on a CPU: about 5 GB.
#
#     benchmarks/gpu/environment.sh FOLDER
#     PYTHON=FOLDER/bin/python benchmarks/gpu/run.sh right --rehearse
#
# Needs Python 3.12 (PYTHON312, by default python3.12). torch comes from the package index with its CUDA libraries.
set -euo pipefail
folder=${1:?give the folder of the environment}
"${PYTHON312:-python3.12}" -m venv "$folder"
"$folder/bin/python" -m pip install --quiet \
    torch==2.11.0 transformers==5.17.0 accelerate==1.15.0 peft==0.21.2 huggingface-hub==1.33.0
"$folder/bin/python" -c 'import torch; print(torch.__version__, "with CUDA", torch.version.cuda)'
