# A server for model files:
#   docker build --tag robust-serve .                              on a CPU
#   docker build --tag robust-serve:gpu --build-arg FLAVOUR=gpu .  on NVIDIA GPUs
#   docker build --tag robust-serve:asgi --build-arg ENGINE=asgi . without Java and torch: for ONNX files
#   docker run --rm -p 8080:8080 -v "$PWD/models:/models:ro" -e ROBUST_SERVE_TOKEN robust-serve /models/digits.onnx
# PIP_EXTRA_INDEX_URL may name an index of CPU-only torch wheels, which makes the CPU image several gigabytes smaller.

ARG FLAVOUR=cpu
# The extra that brings the server: torchserve or asgi.
ARG ENGINE=torchserve

# Bases are pinned by digest: a tag moves. `docker buildx imagetools inspect python:3.11-slim-bookworm` prints the digest
# that its tag has today; take it over when the base has fixes that you want.
FROM python:3.11-slim-bookworm@sha256:a36c24f9cbdf4fd0f52d67f0823eeac19c2028c637cecc392d97f980d4fec56b AS base-cpu

# CUDA 13 and cuDNN 9, for which onnxruntime-gpu 1.31 (constraints.txt) is built.
FROM nvidia/cuda:13.0.2-cudnn-runtime-ubuntu24.04@sha256:14d94b039cb94bbd5da559f303b46bc4b0d5d6c24ab1a9d7b186e566ed3400dc AS base-gpu
# The distribution decides about the patch level of its Python.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends python3 python3-venv \
    && rm -rf /var/lib/apt/lists/*

# Both bases have their tags above.
# hadolint ignore=DL3006
FROM base-${FLAVOUR} AS build
ARG FLAVOUR
ARG ENGINE
ARG PIP_EXTRA_INDEX_URL=""
WORKDIR /source
RUN python3 -m venv /opt/robust
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY robustinfer robustinfer
COPY train train
COPY export export
COPY serve serve
RUN /opt/robust/bin/pip install --no-cache-dir --constraint constraints.txt ".[${FLAVOUR},${ENGINE},sign]" \
    && /opt/robust/bin/robust --version

# hadolint ignore=DL3006
FROM base-${FLAVOUR} AS serve
ARG ENGINE
RUN useradd --uid 10001 --no-create-home --shell /usr/sbin/nologin robust
COPY --from=build /opt/robust /opt/robust
ENV PATH="/opt/robust/bin:${PATH}" \
    PYTHONDONTWRITEBYTECODE=1 \
    ORT_DISABLE_TELEMETRY=1 \
    ROBUST_SERVE_ENGINE=${ENGINE} \
    ROBUST_SERVE_HOST=0.0.0.0 \
    ROBUST_SERVE_PORT=8080 \
    ROBUST_SERVE_HEALTH_PORT=8081 \
    ROBUST_SERVE_METRICS_HOST=0.0.0.0 \
    ROBUST_SERVE_METRICS_PORT=8082
USER 10001
WORKDIR /models
EXPOSE 8080 8081 8082
STOPSIGNAL SIGTERM
# Healthy means: every model makes predictions. The server says so at its health port, wherever that is.
HEALTHCHECK --interval=30s --timeout=15s --start-period=120s --retries=3 CMD ["python3", "-m", "robust.serve.service.health"]
ENTRYPOINT ["robust", "serve"]
CMD ["/models/model.onnx"]
