#!/bin/sh
# Builds the kernels outside the tree for work on them: native/build.sh [DIR] [cmake options]; then POISE_NATIVE=DIR.
set -eu
dir=${1:-/tmp/poise-native}
[ $# -gt 0 ] && shift
cmake -S "$(dirname "$0")" -B "$dir" -DCMAKE_BUILD_TYPE=Release -DPOISE_WERROR=ON "$@" >/dev/null
cmake --build "$dir" -j1
