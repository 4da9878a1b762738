# Ollama with kvtier, on the image of the same Ollama release, whose libraries serve CPUs
# and GPUs. Paged attention needs libraries of its own and is refused with these:
# docs/gpu.md.
#
#   docker build --tag ollama-kvtier .
#
# compose.yaml builds and runs it.

# The C library here must be no newer than that of the Ollama image, Ubuntu 24.04.
FROM golang:1.25-bookworm AS build
RUN apt-get update \
    && apt-get install -y --no-install-recommends \
        git build-essential cmake ninja-build nlohmann-json3-dev libstb-dev \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /kvtier
COPY go.mod go.sum ./
RUN go mod download
COPY . .
RUN make build BUILD_FLAGS=--no-cuda

FROM ollama/ollama:0.16.1
COPY --from=build /kvtier/build/ollama/bin/ollama /kvtier/build/ollama/bin/kvtier /usr/bin/
ENV OLLAMA_KV_TIERING=1
