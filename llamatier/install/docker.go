package install

// Dockerfile and Compose are the files with which a container runs ours: a container is
// changed in its image. docker/ in this repository has the same with a build from source.
const (
	Dockerfile = `FROM ollama/ollama:0.34.2
COPY kvtier-llama-server /usr/lib/ollama/
RUN cd /usr/lib/ollama && mv llama-server llama-server-real && mv kvtier-llama-server llama-server
ENV OLLAMA_KV_TIERING=1
`
	Compose = `services:
  ollama:
    build: .
    init: true # waits for processes that outlive Ollama, so that none stays as a zombie
    stop_grace_period: 30s # slots are stored before the end
    ports:
      - "127.0.0.1:11434:11434" # for this machine alone
    volumes:
      - ollama:/root/.ollama # models, and pages in kv-cache
volumes:
  ollama:
`
)
