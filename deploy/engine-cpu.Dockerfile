# The CPU engine, from the same lock as `make up`.
FROM python:3.11-slim
RUN apt-get update && apt-get install --yes --no-install-recommends make libnuma1 && rm -rf /var/lib/apt/lists/*
WORKDIR /app
COPY . .
RUN scripts/setup.sh
ENTRYPOINT [".venv/bin/python", "-m", "workers.launcher"]
