# Unpacks .whl/packages.tar.xz of gpu_wheels.sh, once, and lets this shell use it: source benchmark/gpu_setup.sh
packages=${PACKAGES:-/tmp/gpu_packages}
if [ ! -d "$packages" ]; then
    mkdir -p "$packages.part"
    python3 -m tarfile --filter data -e .whl/packages.tar.xz "$packages.part"
    mv "$packages.part/packages" "$packages"
fi
export PYTHONPATH=$packages
export LD_LIBRARY_PATH=$packages/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
