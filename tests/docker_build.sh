#!/usr/bin/env bash
# Builds the Dockerfile without a daemon, on a Debian base made here, and runs every script in the image.
# Needs root and: apt-get install buildah crun debootstrap. `make test-docker` runs it; 20 to 30 minutes, and 8 GB while it runs.
# pip inside the build is set up as pip is outside (its configuration and the folders that it names are mounted), so
# that torch comes from wherever this machine gets it.
set -euo pipefail
cd "$(dirname "$0")/.."

for tool in buildah crun debootstrap; do
    if ! command -v "$tool" > /dev/null; then
        echo "skipped: $tool is not installed; apt-get install buildah crun debootstrap"
        exit 0
    fi
done
if [ "$(id -u)" != 0 ]; then
    echo "skipped: buildah's chroot isolation needs root here; run it as root"
    exit 0
fi

work=$(mktemp -d "${TMPDIR:-/tmp}/docker_build.XXXXXX")
buildah() { command buildah --storage-driver overlay --root "$work/storage" --runroot "$work/runroot" "$@"; }
container=""
end() {
    [ -z "$container" ] || buildah rm "$container" > /dev/null || true
    buildah rmi --all --force > /dev/null 2>&1 || true
    rm -rf "$work"
}
trap end EXIT
step() { echo "== $* ($(date +%T))"; }

step "a Debian base" # as python:3.11-slim-trixie: this Debian with an older Python, which is that of the one before
mirror=${DEBIAN_MIRROR:-http://deb.debian.org/debian}
debootstrap --variant=minbase --include=ca-certificates trixie "$work/base" "$mirror" > "$work/debootstrap.log" \
    || { tail "$work/debootstrap.log"; exit 1; }
echo "deb $mirror bookworm main" > "$work/base/etc/apt/sources.list.d/bookworm.list"
printf 'Package: /python3/\nPin: release n=bookworm\nPin-Priority: 1001\n' > "$work/base/etc/apt/preferences.d/python"
chroot "$work/base" sh -c 'apt-get update && apt-get install -y --no-install-recommends python3 python3-venv && apt-get clean' \
    > "$work/apt.log" 2>&1 || { tail "$work/apt.log"; exit 1; }
container=$(buildah from scratch)
buildah add --quiet "$container" "$work/base" / > /dev/null
buildah commit --quiet "$container" localhost/base > /dev/null
buildah rm "$container" > /dev/null
container=""
rm -rf "$work/base"

step "the Dockerfile's build"
# pip's configuration of this machine as one file, and the local folders that it names
mapfile -t mounts < <(python3 -m pip config list | python3 -c '
import ast, re, sys
values, folders = {}, set()
for line in sys.stdin:
    name, value = line.strip().split("=", 1)
    key = name.rsplit(".", 1)[-1]
    values[key] = value = ast.literal_eval(value)
    folders.update(re.findall(r"(?:^|\s|file://)(/\S+)", value))
with open(sys.argv[1], "w") as file:
    file.write("[global]\n" + "".join(f"{key} = {value}\n" for key, value in values.items()))
print(*sorted(folders), sep="\n")' "$work/pip.conf")
volumes=(--volume "$work/pip.conf:/etc/pip.conf:ro")
for path in "${mounts[@]}"; do
    if [ -e "$path" ]; then
        while [ -d "$path" ] && [ "$(dirname "$path")" != / ] && [ "$(dirname "$path")" != /opt ]; do path=$(dirname "$path"); done
        volumes+=(--volume "$path:$path:ro")
    fi
done
readarray -t volumes < <(printf '%s\n' "${volumes[@]}" | awk '$0 == "--volume" {next} !seen[$0]++ {print "--volume"; print}')
buildah bud --isolation chroot --pull-never --layers "${volumes[@]}" --ignorefile .dockerignore \
    --build-arg BASE=localhost/base --build-arg TORCH_INDEX= --tag localhost/ppo . > "$work/build.log" 2>&1 \
    || { tail -30 "$work/build.log"; exit 1; }
buildah images --format '{{.Name}} {{.Size}}' | grep ppo

step "what the image is"
[ "$(buildah inspect --type image --format '{{.OCIv1.Config.User}}' localhost/ppo)" = ppo ]
container=$(buildah from --pull-never localhost/ppo)
mkdir -p "$work/runs"
chown 1000:1000 "$work/runs"
inside() { buildah run --isolation chroot --volume "$work/runs:/app/runs" "$container" -- "$@"; }
[ "$(inside id -u)" = 1000 ]
for path in cleanrl benchmark /etc; do # can't be written
    if inside touch "$path/new" > /dev/null 2>&1; then echo "uid 1000 can write to $path"; exit 1; fi
done
for path in tests docs .git benchmark/results; do # stayed outside
    if inside test -e "$path" > /dev/null 2>&1; then echo "$path is in the image"; exit 1; fi
done
inside python cleanrl/ppo.py --help > /dev/null

step "every script, with a video"
tiny="--num-envs 2 --num-steps 8 --num-minibatches 1 --update-epochs 1 --total-timesteps 16 --checkpoints 1"
wanted=0
for script in cleanrl/*.py; do
    echo "$script"
    case "$script" in
        *_gpu.py) video="" ;; # makes none
        *continuous*) video="--capture-video --env-id InvertedPendulum-v4" ;; # its episodes are short
        *) video="--capture-video" ;;
    esac
    [ -z "$video" ] || wanted=$((wanted + 1))
    inside python "$script" $tiny $video > "$work/log" 2>&1 || { cat "$work/log"; exit 1; }
done
for env_id in LunarLanderContinuous-v3 dm_control/cartpole-balance-v0 HopperBulletEnv-v0; do
    echo "ppo_continuous_action.py --env-id $env_id"
    inside python cleanrl/ppo_continuous_action.py --env-id "$env_id" $tiny > "$work/log" 2>&1 \
        || { cat "$work/log"; exit 1; }
done
inside python -c "from dm_control import suite; print(suite.load('cartpole', 'balance').physics.render().shape)" \
    > "$work/log" 2>&1 || { cat "$work/log"; exit 1; }
videos=$(find "$work/runs" -path '*/videos/*.mp4' -size +0 -printf '%h\n' | sort -u | wc -l)
[ "$videos" = "$wanted" ] || { echo "$wanted runs were to leave a video, $videos did"; exit 1; }
[ -z "$(find "$work/runs" ! -uid 1000)" ]

step "every sweep"
for sweep in benchmark/ppo*.sh; do
    name=$(basename "$sweep" .sh)
    echo "$sweep"
    status=0
    inside "$sweep" --status > "$work/log" 2>&1 || status=$?
    [ "$status" = 1 ] || { cat "$work/log"; exit 1; } # 1: it is a sweep, and its runs aren't done
    case "$name" in *_gpu) continue ;; esac # sweeps two scripts, whose tasks have different names
    inside "$sweep" --num-seeds 1 --workers 2 --command "python cleanrl/$name.py $tiny --exp-name $name-sweep" \
        > "$work/log" 2>&1 || { cat "$work/log"; exit 1; }
done
echo "a task of AWS Batch"
readarray -t task < <(python3 -c '
import json
definition = json.load(open("benchmark/aws_batch.json"))
for word in definition["containerProperties"]["command"]:
    print(definition["parameters"][word.removeprefix("Ref::")] if word.startswith("Ref::") else word)')
inside env AWS_BATCH_JOB_ARRAY_INDEX=1 "${task[@]}" --command "python cleanrl/ppo.py $tiny --exp-name batch" > "$work/log" 2>&1 \
    || { cat "$work/log"; exit 1; }
[ "$(find "$work/runs" -path '*__batch__*/end.json' | wc -l)" = 1 ]

step "the pages' docker run, by a user with uid 12345"
docker() { # run --rm --user UID:GID -v FOLDER:FOLDER -e NAME ppo COMMAND …
    local options=()
    shift
    while [ "$1" != ppo ]; do
        case "$1" in
            --rm) shift ;;
            --user) options+=(--user "$2"); shift 2 ;;
            -v) options+=(--volume "$2"); shift 2 ;;
            -e) [ -z "${!2:-}" ] || options+=(--env "$2=${!2}"); shift 2 ;;
            *) echo "docker: $1 is unknown here" >&2; return 1 ;;
        esac
    done
    shift
    buildah run --isolation chroot "${options[@]}" "$container" -- "$@"
}
id() { echo 12345; } # as it is typed in --user
export WANDB_API_KEY=0123456789012345678901234567890123456789 WANDB_MODE=offline
mkdir -p "$work/typed/runs"
chown 12345:12345 "$work/typed/runs"
for page in docs/install.md docs/tracking.md; do
    line=$(sed -e ':a' -e '/\\$/N; s/\\\n//; ta' "$page" | grep '^docker run')
    echo "$line"
    (cd "$work/typed" && eval "$line $tiny") > "$work/log" 2>&1 || { cat "$work/log"; exit 1; }
done
[ "$(find "$work/typed/runs" -name '*.pt' -uid 12345 | wc -l)" = 2 ]
[ "$(find "$work/typed/runs" -path '*/offline-run-*/*.wandb' -size +0 | wc -l)" = 1 ]
step "all of it works"
