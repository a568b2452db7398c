# API, Celery worker, KV collector and bootstrap: no torch, no vLLM.
FROM python:3.11-slim
WORKDIR /app
COPY pyproject.toml ./
COPY service service
COPY migrations migrations
COPY workers workers
COPY stack stack
RUN pip install --no-cache-dir ".[s3]" && useradd --system everturn
USER everturn
EXPOSE 8000
