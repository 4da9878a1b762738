// Package tiering turns Ollama's environment and a loaded model into a tiered cache.
//
// It is what the patched runner calls: [Enabled] first, then [Start] once per model that
// is loaded for good. Start reads the environment, names the model and the engine (the
// fingerprint under which pages are kept), opens the page store and wraps the cache. Any
// reason not to is one log line, and the model runs as it would without tiering.
//
// # The server's side
//
// Some things outlive runners and belong to the server that starts them: [ClaimInstance]
// holds the directory of a server with an id, [Forget] removes the pages of a model that
// was removed.
//
// # Variables
//
// See [tierenv.Config] for the variables, their defaults and what a bad value does. They are
// read as Ollama reads its own: surrounding spaces and quotes are dropped.
package tiering
