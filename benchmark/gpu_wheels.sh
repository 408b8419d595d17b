#!/usr/bin/env bash
# Packs what gpu.sh needs besides torch, for a machine without network: .whl/packages.tar.xz, 52 MiB.
#
#     benchmark/gpu_wheels.sh              here; the pip of a Python 3.12 is enough: PYTHON=python3.12
#     source benchmark/gpu_setup.sh        there, in a copy of the repository with .whl/
#
# For Python 3.12 on x86-64 Linux with torch, numpy, tensorboard, pandas, imageio, filelock, matplotlib and OpenCV. Whole
# wheels would take 200 MB; what no run of gpu.sh reads is left out: EnvPool's other environments, MuJoCo's viewer.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
out=$PWD/.whl
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
site=$work/packages

pip() { "$python" -m pip --disable-pip-version-check --quiet "$@"; }

# As in requirements-all.txt, which pins them, with neither what they need in turn nor what the machine has
names="ale-py cffi docstring-parser dm-env dm-tree envpool envpool-assets farama-notifications glfw gym3 gym-notices
    gymnasium markdown-it-py mdurl mujoco optree procgen-mirror psutil pycparser pygments pyopengl rich stable-baselines3
    typeguard tyro websockets"
wanted=()
for name in $names; do
    pin=$(cat requirements-all.txt requirements-procgen.txt | grep "^$name==" | head -1)
    wanted+=("$(echo "${pin%%;*}" | tr -d ' ')")
done
platforms=()
for version in _2_34 _2_28 _2_27 _2_24 _2_17 2014 1; do
    platforms+=(--platform "manylinux${version}_x86_64")
done
pip install --no-deps --no-compile --only-binary=:all: --python-version 3.12 --implementation cp "${platforms[@]}" \
    --target "$site" "${wanted[@]}"
pip wheel --no-deps --wheel-dir "$work" gym==0.26.2 # has no wheel; plain Python
pip install --no-deps --no-compile --target "$site" "$work"/gym-*.whl

# What no run of gpu.sh reads
cd "$site"
find envpool -name '*_envpool.so' ! -path 'envpool/atari/*' -delete
echo 'import envpool.atari.registration' >envpool/entry.py # where it imports all of them
rm -rf envpool/vizdoom/bin envpool/jumanji/assets envpool_assets/[!_a]* mujoco/experimental mujoco/include bin
rm -rf mujoco/_render_filament*.so mujoco/sysid mujoco/testdata
find . -name __pycache__ -o -name tests | xargs rm -rf

# Procgen links Qt and libGL, for windows that it never opens
packages="libglib2.0-0 libpcre2-8-0 libgl1 libglvnd0 libglx0 libopengl0 libegl1 libx11-6 libxcb1 libxau6 libxdmcp6 libbsd0 libmd0"
mkdir "$work/debs" "$site/lib"
(cd "$work/debs" && apt-get --quiet --quiet download $packages)
for deb in "$work"/debs/*.deb; do
    dpkg -x "$deb" "$work/root"
done
find "$work/root" -name 'lib*.so*' -exec cp -P {} "$site/lib" \;

mkdir -p "$out"
tar -C "$work" -cf - packages | xz -6 -T2 >"$out/packages.tar.xz"
ls -l "$out"
