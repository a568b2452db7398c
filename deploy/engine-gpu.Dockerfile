# vLLM's own GPU image with the engine part of Everturn beside it: launcher, connector, middleware.
FROM vllm/vllm-openai:v0.32.0
# For a KV store on s3://; a folder needs nothing.
RUN python3 -m pip install --no-cache-dir obstore==0.12.1
WORKDIR /app
COPY service service
COPY workers workers
ENV PYTHONPATH=/app
ENTRYPOINT ["python3", "-m", "workers.launcher"]
