# stitch-mcp over HTTP: C++ programs are built, checked and timed in the container, on its CPUs.
#
#   docker build -t stitch-mcp .
#   docker run --rm --init --user "$(id -u):$(id -g)" -p 127.0.0.1:8321:8321 -e STITCH_MCP_TOKEN=... \
#     -v "$PWD:/workspace" stitch-mcp
#
# `--user` lets the server write into a folder that is not uid 1000's; `--init` takes in processes that programs leave.
# Docker's default profile forbids namespaces of one's own, so isolation inside reaches `fs+net` where the kernel
# has Landlock; `docker run ... stitch-mcp doctor` tells what it reaches and what raises it.
FROM python:3.12-slim

RUN apt-get update \
    && apt-get install --yes --no-install-recommends g++ libomp-dev \
    && rm -rf /var/lib/apt/lists/*

# The CPU build of torch: a tenth of the default one.
RUN pip install --no-cache-dir --index-url https://download.pytorch.org/whl/cpu torch

WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY stitch_mcp ./stitch_mcp
COPY planner ./planner
COPY rag_index ./rag_index
COPY tools ./tools
RUN pip install --no-cache-dir ".[torch]" && rm -rf /src

# Whoever `--user` names may have no home folder: caches lie where all can write.
RUN useradd --create-home stitch && mkdir /workspace && chown stitch /workspace && mkdir -m 1777 /cache
ENV STITCH_CACHE_DIR=/cache
USER stitch
WORKDIR /workspace
VOLUME /workspace
EXPOSE 8321

ENTRYPOINT ["stitch-mcp"]
CMD ["serve", "--http", "--host", "0.0.0.0", "--workspace", "/workspace"]
