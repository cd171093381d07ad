# docker build -t hemnet .          (torch from another index: --build-arg PIP_EXTRA_INDEX_URL=...)
# docker run --rm -v "$PWD:/work" hemnet train --preset cpu --data.root data --out runs/mine
FROM python:3.13-slim

ARG PIP_EXTRA_INDEX_URL=""
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 OMP_WAIT_POLICY=PASSIVE

WORKDIR /opt/hemnet
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY src ./src
RUN pip install --constraint constraints.txt ".[data,export,app,hf]"

RUN useradd --create-home hemnet
USER hemnet
WORKDIR /work
EXPOSE 7860
ENTRYPOINT ["hemnet"]
CMD ["--help"]
