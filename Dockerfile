# Two images, `cpu` (the last one, so the default) and `gpu`:
#
#   docker build --target cpu -t millrace:0.1.0 .
#   docker build --target gpu -t millrace:0.1.0-gpu .
#
# Say where the code is from, for those who find the image: --build-arg REVISION=$(git rev-parse HEAD) and SOURCE=<URL>.
#
# Nothing is installed but what the locks name, by hash. It runs as a numbered user on a read-only root: all that it
# writes goes to /var/lib/millrace (checkpoints) and /tmp.

# The digest is that of the tag's index over all architectures.
ARG PYTHON=python:3.11.14-slim-bookworm@sha256:65a93d69fa75478d554f4ad27c85c1e69fa184956261b4301ebaf6dbb0a3543d


# What both images have in common.
FROM ${PYTHON} AS base
ENV PATH=/opt/millrace/bin:$PATH \
    PYTHONSAFEPATH=1 \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    HOME=/tmp
RUN install -d -o 10001 -g 10001 -m 0750 /var/lib/millrace \
    && install -d /etc/millrace
LABEL org.opencontainers.image.title="millrace" \
      org.opencontainers.image.description="A Kafka topic goes in; a Keras model that never stops learning comes out." \
      org.opencontainers.image.licenses="Apache-2.0"
WORKDIR /etc/millrace
EXPOSE 8080
STOPSIGNAL SIGTERM
# Kubernetes has probes of its own and does not look at it. `millrace serve`, or another port, sets HEALTH_URL.
ENV HEALTH_URL=http://127.0.0.1:8080/livez
HEALTHCHECK --interval=30s --timeout=5s --start-period=180s --retries=3 \
    CMD ["python", "-c", "import os, urllib.request as r; r.urlopen(os.environ['HEALTH_URL'], timeout=4)"]
ENTRYPOINT ["millrace"]
CMD ["run", "--config", "/etc/millrace/millrace.yaml"]


# The environment, without pip in it; so large that it is a layer of its own, which new code does not change.
FROM ${PYTHON} AS cpu-environment
COPY requirements/run.lock /build/requirements/run.lock
RUN python -m venv --without-pip /opt/millrace \
    && pip --python /opt/millrace/bin/python install --no-cache-dir --require-hashes --only-binary :all: \
        -r /build/requirements/run.lock


FROM ${PYTHON} AS gpu-environment
COPY requirements/gpu.lock /build/requirements/gpu.lock
RUN python -m venv --without-pip /opt/millrace \
    && pip --python /opt/millrace/bin/python install --no-cache-dir --require-hashes --only-binary :all: \
        -r /build/requirements/gpu.lock


# A compiler of C, for one part of the project.
FROM cpu-environment AS build-environment
COPY requirements/build.lock /build/requirements/build.lock
RUN pip install --no-cache-dir --require-hashes --only-binary :all: -r /build/requirements/build.lock
ENV CC="/usr/local/bin/python -m ziglang cc"


# The wheel of the project itself. Its build backend is in the lock: TensorFlow asks for it.
FROM build-environment AS wheel
WORKDIR /build
COPY pyproject.toml setup.py README.md LICENSE ./
COPY consumers ./consumers
COPY pipelines ./pipelines
COPY training ./training
COPY app ./app
COPY millrace ./millrace
RUN pip --python /opt/millrace/bin/python wheel --no-cache-dir --no-index --no-deps --no-build-isolation \
        --wheel-dir /wheel .


FROM base AS gpu
COPY --from=gpu-environment /opt/millrace /opt/millrace
RUN --mount=type=bind,from=wheel,source=/wheel,target=/wheel \
    pip --python /opt/millrace/bin/python install --no-cache-dir --no-index --no-deps /wheel/*.whl
# What the container runtime hands in of the driver; CUDA itself comes with the environment.
ENV NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility
ARG REVISION=""
ARG SOURCE=""
LABEL org.opencontainers.image.version="0.1.0-gpu" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.source="${SOURCE}"
USER 10001:10001


FROM base AS cpu
COPY --from=cpu-environment /opt/millrace /opt/millrace
RUN --mount=type=bind,from=wheel,source=/wheel,target=/wheel \
    pip --python /opt/millrace/bin/python install --no-cache-dir --no-index --no-deps /wheel/*.whl
ARG REVISION=""
ARG SOURCE=""
LABEL org.opencontainers.image.version="0.1.0" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.source="${SOURCE}"
USER 10001:10001
