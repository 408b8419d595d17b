#!/usr/bin/env bash
# A task of an AWS Batch array job: it makes one run of the sweep that follows. aws_batch.json starts it.
# Batch signals only the first process of the container: this bash, which passes the signal on, so that the run saves a
# checkpoint. That ends its first wait; the second gives the status, 143, with which aws_batch.json has the task started
# again.
trap "trap : TERM; kill -TERM 0" TERM
"$@" --task "$AWS_BATCH_JOB_ARRAY_INDEX" &
wait $!
wait $!
