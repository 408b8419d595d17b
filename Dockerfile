# Every script in one image, without a display and not as root.
#
#     docker build -t ppo .                                         # torch as pip is set up for: mostly with CUDA, 5 GB
#     docker build --build-arg TORCH_INDEX=ADDRESS -t ppo .         # torch from this index; pytorch.org names the one for CPUs
#     mkdir -p runs
#     docker run --rm --user "$(id -u):$(id -g)" -v "$PWD/runs:/app/runs" ppo python cleanrl/ppo.py
#
# With CUDA add --gpus all, and --ipc=host for many processes. Without --user it runs as uid 1000, which then has to be
# able to write to the mounted folder.
# 3.11 is the newest Python that all packages have wheels for; without PyBullet it would be 3.12.
ARG BASE=python:3.11-slim-trixie
FROM ${BASE}

# EGL and the software renderer draw MuJoCo's videos; ffmpeg comes with imageio-ffmpeg.
RUN apt-get update \
    && apt-get install -y --no-install-recommends libegl1 libgl1 libgl1-mesa-dri libglib2.0-0 \
    && rm -rf /var/lib/apt/lists/*

# uid 1000, and a home that whoever --user names can write to
RUN useradd --uid 1000 --create-home ppo \
    && install -d -m 1777 /app/runs \
    && python3 -m venv /opt/venv
ENV PATH=/opt/venv/bin:$PATH HOME=/tmp WANDB_DIR=/app/runs MUJOCO_GL=egl PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
WORKDIR /app

# torch first and alone, since only its build depends on the index
ARG TORCH_INDEX
COPY pyproject.toml README.md LICENSE requirements-all.txt requirements-procgen.txt ./
RUN pip install --no-cache-dir --no-deps ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} "$(grep '^torch==' requirements-all.txt)" \
    && pip install --no-cache-dir --constraint requirements-all.txt \
        '.[atari,envpool,mujoco,dm-control,pybullet,box2d,track,benchmark]' \
    && pip install --no-cache-dir --no-deps -r requirements-procgen.txt

COPY cleanrl cleanrl
COPY benchmark benchmark

USER ppo
CMD ["python", "cleanrl/ppo.py", "--help"]
