#!/usr/bin/env bash
# fetch_deepspeed.sh - downloads DeepSpeed and its dependencies without PyTorch and numpy into one folder for PYTHONPATH, for
# perf/workers_vs_torch.py and for machines without access to a package index.
# ls-bench: by name
#
#   perf/fetch_deepspeed.sh [DIR [ARCH [PYTHON]]]      defaults: build-deepspeed, this machine's, this Python's
#   perf/fetch_deepspeed.sh build-deepspeed x86_64 3.12
#
# DeepSpeed is built from its source archive with DS_BUILD_OPS=0, so it has no machine code: its C++ extensions (shared-memory
# all-reduce, CPU Adam) are compiled where they run, if a compiler and ninja are available. The build needs a Python with torch, numpy
# and setuptools ($PYTHON; else the one of `./run oracle`).
set -euo pipefail
dir=${1:-build-deepspeed}
arch=${2:-$(uname -m)}
oracle=${LS_ORACLE:-${XDG_CACHE_HOME:-$HOME/.cache}/lockstep/oracle}/bin/python
python=${PYTHON:-$oracle}
[ -x "$(command -v "$python")" ] || python=python3
version=${3:-$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')}
needs=(einops hjson msgpack ninja 'packaging>=20.0' psutil py-cpuinfo 'pydantic>=2.0.0' tqdm) # requirements.txt less torch, numpy

rm -rf "$dir.new"
mkdir -p "$dir.new"
"$python" -m pip install --quiet --no-compile --target "$dir.new" --only-binary=:all: --python-version "$version" \
    --platform "manylinux2014_$arch" --platform "manylinux_2_17_$arch" --platform "manylinux_2_28_$arch" "${needs[@]}"
DS_BUILD_OPS=0 DS_ACCELERATOR=cpu "$python" -m pip install --quiet --no-compile --target "$dir.new" --no-deps \
    --no-build-isolation --no-binary deepspeed deepspeed
find "$dir.new" -name __pycache__ -type d -prune -exec rm -rf {} +
if find "$dir.new" -name '*.so' | grep -E -- '-(x86_64|aarch64)-linux' | grep -v -- "-$arch-linux"; then
    echo "fetch_deepspeed: a downloaded library is for another architecture (see above)" >&2
    exit 1
fi
rm -rf "$dir"
mv "$dir.new" "$dir"
found=$(basename "$dir"/deepspeed-*.dist-info .dist-info)
echo "$dir: $found for Python $version on $arch, $(du -sm "$dir" | cut -f1) MiB"
