#!/usr/bin/env bash
# A task of a Slurm job array: it makes one run of the sweep that follows.
#   sbatch --array=0-59%8 --partition=long --time=600 --cpus-per-task=2 benchmark/slurm.sh benchmark/ppo.sh
# A run that gets SIGTERM saves a checkpoint: by preemption, by `scancel --signal=TERM`, and 120 s before its time limit.
# The task then ends with status 143 and is requeued, and its next start resumes the run.
#SBATCH --nodes=1 --ntasks=1
#SBATCH --requeue --open-mode=append
#SBATCH --signal=TERM@120
trap : TERM
export SRUN_CPUS_PER_TASK="${SLURM_CPUS_PER_TASK:-1}" # srun does not take it from the job
# Slurm signals only the first process of the step: this bash, which passes the signal on. That ends its first wait; the
# second gives the status.
step='"$@" &
    trap "trap : TERM; kill -TERM 0" TERM
    wait $!
    wait $!'
srun bash -c "$step" bash "$@" --task "$SLURM_ARRAY_TASK_ID"
status=$?
if [ "$status" -eq 143 ]; then
    scontrol requeue "$SLURM_JOB_ID"
fi
exit "$status"
