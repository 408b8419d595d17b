#!/usr/bin/env bash
# For whoever has a GPU for ten minutes: speeds, where the time goes, then trainings of Procgen.
#
#     benchmark/gpu.sh                    all of it, in at most nine minutes
#     benchmark/gpu.sh resume 180         goes on with the trainings, for 180 seconds in all
#     DEVICE=cpu SMALL=1 benchmark/gpu.sh to try it out
#
# Results are in runs/gpu (FOLDER; runs/gpu_try with DEVICE or SMALL), as soon as there are any: a .json of throughput.py
# for each speed and each profile, log.txt, and a .tar.gz of each training, with its last checkpoint. With OUT set, these
# are copied there too.
# No part outlasts its limit, in seconds.
set -uo pipefail

fail() {
    echo "gpu.sh: error: $*" >&2
    exit 2
}

here=$(cd "$(dirname "$0")" && pwd)
device=${DEVICE:-cuda}
made_with="DEVICE=$device SMALL=${SMALL:-}" # what is tried out is not gone on with
folder=runs/gpu
if [ "$made_with" != "DEVICE=cuda SMALL=" ]; then folder=runs/gpu_try; fi
folder=${FOLDER:-$folder}
python=${PYTHON:-python3}
precision=${PRECISION:-bf16} # of the trainings, as in ppo_procgen.sh
threads=${THREADS:-4}        # of each training, which Procgen uses too
total=${TOTAL:-530}
measure_limit=${MEASURE:-260}
grace=${GRACE:-25} # for a training to finish its update and save
resume=
if [ "${1:-}" = resume ]; then
    resume=yes
    total=${2:-}
    case $total in
    "" | *[!0-9]*) fail "resume: say for how many seconds, as in gpu.sh resume 180" ;;
    esac
fi

# The most important ones first, since time may run out; a name with "profile" measures the parts of an update
measured=(
    "envpool_8_fp32 ppo_atari_envpool --num-threads 1 --num-envs 8"
    "envpool_8_bf16 ppo_atari_envpool --num-threads 1 --num-envs 8 --precision bf16"
    "envpool_8_profile ppo_atari_envpool --num-threads 1 --num-envs 8"
    "simulator_4096 ppo_continuous_action_gpu --num-envs 4096"
    "simulator_16384 ppo_continuous_action_gpu --num-envs 16384"
    "envpool_64_fp32 ppo_atari_envpool --num-threads 1 --num-envs 64"
    "envpool_64_bf16 ppo_atari_envpool --num-threads 1 --num-envs 64 --precision bf16"
    "procgen_64_bf16 ppo_procgen --num-threads 4 --precision bf16"
    "procgen_64_fp32 ppo_procgen --num-threads 4"
    "envpool_64_profile ppo_atari_envpool --num-threads 1 --num-envs 64"
    "procgen_64_profile ppo_procgen --num-threads 4 --precision bf16"
    "lstm_8_fp32 ppo_atari_lstm --num-threads 1"
    "atari_8_fp32_and_sb3 ppo_atari --num-threads 1"
)
sizes="--device $device --no-torch-deterministic"
times=(--seconds 3 --warm-up 1 --rounds 1)
training="--total-timesteps 2000000 --checkpoints 3 --precision $precision"
if [ -n "${SMALL:-}" ]; then
    sizes+=" --num-steps 16 --num-minibatches 2 --update-epochs 1"
    times=(--seconds 0.2 --warm-up 0 --rounds 1)
    training="--total-timesteps 8192 --num-envs 8 --num-steps 32 --num-minibatches 2 --update-epochs 1 --checkpoints 4"
    threads=1
fi
training+=" --device $device --num-threads $threads --no-torch-deterministic"
levels="--exp-name ppo_procgen_200_levels --num-levels 200"
trainings=(
    "starpilot_1 --env-id starpilot --seed 1"
    "starpilot_2 --env-id starpilot --seed 2"
    "coinrun_1 --env-id coinrun --seed 1 $levels"
    "coinrun_2 --env-id coinrun --seed 2 $levels"
)
if [ -n "${TRAININGS:-}" ]; then trainings=("${trainings[@]:0:TRAININGS}"); fi

if [ -f "$folder/made_with.txt" ] && [ "$(cat "$folder/made_with.txt")" != "$made_with" ]; then
    fail "$folder is of $(cat "$folder/made_with.txt"), and this is $made_with; name another FOLDER"
fi
if [ "$device" = cuda ] && ! "$python" -c 'import torch; raise SystemExit(not torch.cuda.is_available())'; then
    fail "torch finds no GPU; DEVICE=cpu SMALL=1 benchmark/gpu.sh tries it out"
fi
mkdir -p "$folder"
echo "$made_with" >"$folder/made_with.txt"
folder=$(cd "$folder" && pwd)
exec > >(tee -a "$folder/log.txt") 2>&1
export PYTHONUNBUFFERED=1

left() { echo $((total - SECONDS)); }

say() { echo "[$SECONDS s] $*"; }

# Runs a command for at most so many seconds, and never longer than there is time
within() {
    local limit=$1
    shift
    if [ "$limit" -gt "$(left)" ]; then limit=$(left); fi
    if [ "$limit" -lt 5 ]; then return 124; fi
    timeout --kill-after 5 "$limit" "$@"
}

# Copies what there is; each file at once, so that none is half there
collect() {
    local run name
    for run in "$folder"/trainings/*/runs/*; do
        name=$(basename "$(dirname "$(dirname "$run")")")
        pack "$run" "$folder/$name.tar.gz"
    done
    if [ -z "${OUT:-}" ]; then return; fi
    cp "$folder"/*.json "$folder"/*.tar.gz "$folder/log.txt" "$OUT" 2>/dev/null
}

# A run folder's logs and last checkpoint
pack() {
    local parent name last
    parent=$(dirname "$1")
    name=$(basename "$1")
    last=$(ls "$1/checkpoints" 2>/dev/null | grep '^[0-9]*\.pt$' | sort -n | tail -1)
    if [ -z "$last" ]; then return; fi
    (cd "$parent" && tar -czf "$2.part" "$name"/*.csv "$name"/*.json "$name"/*.py "$name/checkpoints/$last")
    mv "$2.part" "$2"
}

# Measures what isn't measured yet
measure() {
    local one name script options words end=$((SECONDS + measure_limit))
    for one in "${measured[@]}"; do
        read -r name script options <<<"$one"
        if [ -f "$folder/$name.json" ] || [ "$SECONDS" -ge "$end" ]; then continue; fi
        say "$name"
        words=(--script "$script" --arguments "$options $sizes" --output "$folder/$name.json" "${times[@]}")
        case $name in
        *profile) words+=(--profile --no-sb3) ;;
        *sb3) ;;
        *) words+=(--no-sb3) ;;
        esac
        within $((end - SECONDS)) "$python" "$here/throughput.py" "${words[@]}" || say "$name: status $?"
        collect
    done
}

# Starts a training, or goes on with it: NAME OPTIONS…
start() {
    local name=$1 run
    shift
    mkdir -p "$folder/trainings/$name"
    run=$(ls -d "$folder/trainings/$name"/runs/*/checkpoints/*.pt 2>/dev/null | tail -1)
    cd "$folder/trainings/$name" || return
    if [ -n "$run" ]; then
        set -- --resume "runs/$(basename "$(dirname "$(dirname "$run")")")"
    else
        rm -rf runs # was ended before its first checkpoint
        set -- "$@" $training
    fi
    exec "$python" "$here/../cleanrl/ppo_procgen.py" "$@" >>"$folder/trainings/$name/log.txt" 2>&1
}

# Whether any of the processes still runs
alive() { kill -0 "$@" 2>/dev/null; }

train() {
    local end=$((total - grace - 10)) pids=() next=$((SECONDS + 60)) i
    if [ $((end - SECONDS)) -lt 20 ]; then
        say "no time is left to train"
        return
    fi
    say "training until second $end"
    for i in "${!trainings[@]}"; do
        # shellcheck disable=SC2086
        start ${trainings[i]} &
        pids+=($!)
    done
    trap 'kill -TERM "${pids[@]}" 2>/dev/null' EXIT
    while alive "${pids[@]}" && [ "$SECONDS" -lt "$end" ]; do
        sleep 1
        if [ "$SECONDS" -ge "$next" ]; then
            tail -qn 1 "$folder"/trainings/*/log.txt
            collect
            next=$((SECONDS + 60))
        fi
    done
    say "stopping what still runs"
    kill -TERM "${pids[@]}" 2>/dev/null
    end=$((SECONDS + grace))
    while alive "${pids[@]}" && [ "$SECONDS" -lt "$end" ]; do sleep 0.5; done
    kill -KILL "${pids[@]}" 2>/dev/null
    tail -n 3 "$folder"/trainings/*/log.txt
}

if [ "$device" = cuda ]; then nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader; fi
if [ -z "$resume" ]; then measure; fi
train
say "collecting"
collect
say "done: $folder"
