// Package ollamatest starts a built Ollama, talks to it, and kills it. Tests and the benchmarks use it.
//
// # Basics
//
//	s, err := ollamatest.Start(ctx, ollamatest.Options{})
//	defer s.Close()
//	err = s.CreateModel(ctx, "small", "small.gguf", testmodel.Modelfile("small.gguf"))
//	result, err := s.Generate(ctx, ollamatest.Request{
//		Model: "small", Prompt: prompt, Raw: true,
//		Options: ollamatest.Greedy(16, 4096),
//	})
//	err = s.KillServer() // as a power cut would, runners included
//	err = s.Restart(ctx)
//
// In a test, [ForTest] does the starting, the cleaning up and, when the test failed, the printing of the
// server's log. [ForTest] skips the test where there is no Ollama to run. [FindBinary] finds the executable.
//
// A server gets a HOME and an OLLAMA_MODELS of its own, a port that the system chooses, and none of the
// OLLAMA_* variables of the surrounding process. A server's URL changes with every restart.
//
// # Time
//
// Ollama's own durations are not a user's wait: prompt_eval_duration starts after a
// cache restore, and prompt_eval_count ignores caching. A [Result] therefore has
// durations by the client's clock, too. Compare [Result.TTFTMinusLoad].
//
// # Caveats
//
// [Server.Close] leaves no process and no temporary file behind. If the process that called Start ends
// without calling it, even by SIGKILL, Linux sends the server SIGTERM, upon which it ends its runners and
// itself; macOS lets them run. Windows has no such servers. The whole log is kept in memory.
package ollamatest
