// Package fakegpu builds an emulated NVIDIA GPU for end-to-end tests: a ggml backend module,
// libggml-cuda.so, with which Ollama finds devices CUDA0, CUDA1 and so on where no card is.
// The CPU backend computes, and everything else is as on a card: memory that the CPU backend
// may not use, that is limited and begins as NaN, streams that compute after their delay
// while the host goes on, and transfers that wait for no stream. See module/settings.h for
// the environment variables, and [Build].
package fakegpu
