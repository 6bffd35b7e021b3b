# A server for trained models on a CPU: docker build -t tyler . && docker run -p 127.0.0.1:8000:8000 tyler
# For CUDA: docker build --build-arg TORCH_INDEX=https://download.pytorch.org/whl/cu130 -t tyler . ; docker run --gpus all ...
FROM python:3.12-slim

ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu

ENV PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    HF_HOME=/home/tyler/.cache/huggingface

RUN useradd --create-home --uid 1000 tyler

WORKDIR /app
# What is large and changes rarely comes first: a change of the source alone builds in seconds.
COPY constraints.txt ./
# The local version of the CPU index, 2.x+cpu, is the newer one to pip, so it comes before PyPI's with CUDA.
RUN pip install --no-cache-dir -c constraints.txt --extra-index-url "$TORCH_INDEX" torch transformers peft fastapi uvicorn
COPY pyproject.toml README.md LICENSE ./
COPY src ./src
RUN pip install --no-cache-dir -c constraints.txt --extra-index-url "$TORCH_INDEX" '.[serve,gguf]'

USER tyler
WORKDIR /home/tyler
# Docker gives a volume the owner of the folder that is there: models that were downloaded stay.
RUN mkdir -p "$HF_HOME"
VOLUME ["/home/tyler/.cache/huggingface"]

EXPOSE 8000
HEALTHCHECK --interval=30s --timeout=5s --start-period=120s \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/health/ready', timeout=4)"]

# In exec form, so that the server gets SIGTERM itself and drains; `docker stop --time 40` gives it the time.
ENTRYPOINT ["tyler", "serve", "--host", "0.0.0.0", "--port", "8000"]
CMD ["mini-tyler"]
